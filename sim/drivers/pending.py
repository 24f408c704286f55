"""Operations that are under way in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..collectives.algorithms import Part
from ..program.encoding import Payload
from ..program.operations import Handle, Operation
from .transfers import Tag, Transfers
from .underway import Task, Underway

Tensor = torch.Tensor


class Pending(Underway):
    """An operation that takes time, in parts: it is complete when all of them are, at their latest time."""

    peer_s: float
    parts = 0
    values: list[Payload | None]
    ticket = 0

    def __init__(
        self,
        task: Task[Pending],
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


class CollectiveRun:
    """One worker's way through the rounds of a collective."""

    def __init__(
        self,
        pending: Pending,
        part: Part,
        rank: int,
        tag: Tag,
        transfers: Transfers,
        at: Callable[[float, Callable[[Any], None], Any], None],
        finished: Callable[[Pending], None],
    ) -> None:
        self._pending = pending
        self._rounds = part.rounds
        self._window = part.window
        self._rank = rank
        self._tag = tag
        self._transfers = transfers
        self._at = at
        self._finished = finished
        self._begun = 0
        self._done = [False] * len(self._rounds)
        self._first_open = 0

    def begin(self) -> None:
        """Post the first rounds."""
        self._advance()

    def _advance(self) -> None:
        total = len(self._rounds)
        while self._first_open < total and self._done[self._first_open]:
            self._first_open += 1
        if self._first_open == total:
            self._finished(self._pending)
            return
        while self._begun < total and self._begun < self._first_open + self._window:
            number = self._begun
            self._begun += 1
            self._post(number)

    def _post(self, number: int) -> None:
        part = _RoundPart(self, number)
        now = self._rounds[number]
        part.parts = len(now.receives) + len(now.sends)
        if part.parts == 0:
            self._round_done(number)
            return
        for source, _ in now.receives:
            self._transfers.receive(source, self._rank, self._tag, part, 0)
        for destination, num_bytes in now.sends:
            self._transfers.send(self._rank, destination, self._tag, num_bytes, part, None)

    def settled(self, part: _RoundPart) -> None:
        """All messages of a round have a time of completion."""
        self._at(part.ready_s, self._round_done, part.number)

    def _round_done(self, number: int) -> None:
        self._done[number] = True
        self._advance()

    @property
    def pending(self) -> Pending:
        """The operation that this is a part of."""
        return self._pending


class _RoundPart:
    """The messages of one round of one worker."""

    __slots__ = ("number", "parts", "ready_s", "run")

    def __init__(self, run: CollectiveRun, number: int) -> None:
        self.run = run
        self.number = number
        self.parts = 0
        self.ready_s = 0.0

    def sent(self, time_s: float, peer_s: float) -> None:
        """One send is complete at ``time_s``."""
        self._part(time_s)

    def received(self, slot: int, value: Payload | None, source: int, time_s: float, peer_s: float) -> None:
        """One receive is complete at ``time_s``."""
        self._part(time_s)

    def _part(self, time_s: float) -> None:
        if time_s > self.ready_s:
            self.ready_s = time_s
        self.parts -= 1
        if self.parts == 0:
            self.run.settled(self)
