"""Operations in flight in virtual time."""

from __future__ import annotations

from collections.abc import Callable

from ..program.encoding import Payload
from .tasks.runner import InFlight


class Pending(InFlight):
    """An operation that takes time, in parts: complete when the latest part is.

    Setting ``parts`` above 0 requires ``on_settled``, which is called when every part has its time.
    """

    parts = 0
    on_settled: Callable[[Pending], None]
    values: list[Payload | None]
    ticket = 0

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
