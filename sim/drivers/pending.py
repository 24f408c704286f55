"""Operations that are under way in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..program.encoding import Payload
from ..program.operations import Handle, Operation
from .tasks import CoroutineTask, InFlight


class Pending(InFlight):
    """An operation that takes time, in parts: it is complete when all of them are, at their latest time."""

    peer_s: float
    parts = 0
    values: list[Payload | None]
    ticket = 0

    def __init__(
        self,
        task: CoroutineTask[Pending],
        name: str,
        operation: Operation[Any],
        start_s: float,
        handle: Handle | None,
        on_settled: Callable[[Pending], None],
    ) -> None:
        # As its parent does: a call less, for a million of them a minute.
        self.task = task
        self.name = name
        self.operation = operation
        self.start_s = self.ready_s = self.peer_s = start_s
        self.handle = handle
        self.on_settled = on_settled

    def sent(self, time_s: float, peer_s: float) -> None:
        """One send is complete at ``time_s``."""
        if time_s > self.ready_s:
            self.ready_s = time_s
        if peer_s > self.peer_s:
            self.peer_s = peer_s
        self.parts -= 1
        if self.parts == 0:
            self.on_settled(self)

    def received(self, slot: int, value: Payload | None, source: int, time_s: float, peer_s: float) -> None:
        """One receive is complete at ``time_s``."""
        self.values[slot] = value
        self.peer = source
        self.sent(time_s, peer_s)
