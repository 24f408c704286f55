"""Tables of rounds in virtual time: message by message, or as a whole where nothing else can meet them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Final

import numpy as np
from typing_extensions import override

from ..collectives.pricing import MessageCosts, StreamCosts, TableWaves, lay_out, table_completion_s
from ..collectives.schedule import RankRounds, Schedule, among
from ..network.routes import route_pairs
from ..network.transfer import TransferModel
from ..program.encoding import Payload
from .blocks import Completion, PlacedCollective
from .clock import Clock
from .rendezvous import Tag
from .transfers import Transfers

_ALONE: Final = ("alone", 0, 0)
"""The tag of a collective that has a clock for itself."""


@dataclass(frozen=True, eq=False)
class PlacedTable(PlacedCollective):
    """A table of rounds on hosts.

    Attributes:
        schedule: rank i of it is ``members[i]``.
        waves: of the schedule.
        costs: where no link ever has two of its messages; None: they share links with each other.
    """

    schedule: Schedule
    waves: TableWaves
    costs: MessageCosts | None

    @property
    def messages(self) -> int:
        """How many it has."""
        return len(self.waves.source)

    @cached_property
    def bytes_sent(self) -> tuple[int, ...]:
        """Bytes that each rank sends."""
        sent = np.bincount(self.waves.source, weights=self.waves.num_bytes, minlength=self.waves.ranks)
        return tuple(int(each) for each in sent)

    @override
    def _price(self, ready_s: tuple[float, ...]) -> Completion:
        if self.costs is None:
            return _solve_s(self, ready_s)
        done_s, idle_s = table_completion_s(self.waves, np.array(ready_s), self.costs)
        return done_s.tolist(), idle_s.tolist()


def place_table(schedule: Schedule, members: tuple[int, ...], model: TransferModel) -> PlacedTable | None:
    """Place a table on hosts, rank i on ``members[i]``; None where it has to go message by message.

    That is on a network that varies, and over streams that share links or carry announcements.
    """
    shared = model.sharing != "none"
    streams = model.streams and shared
    if model.network.varies or not any(schedule.rounds):
        return None
    waves = lay_out(schedule)
    n = waves.ranks
    keys, pair = np.unique(waves.source * n + waves.destination, return_inverse=True)
    sources, destinations = np.divmod(keys, n)
    routes = route_pairs(sources, destinations, members, model)
    if streams:
        both_ways = bool(model.announcement) and bool(np.isin(destinations * n + sources, keys).any())
        if both_ways or len(np.unique(sources)) < len(keys) or routes.most_pairs > 1:
            return None
    one_sent = len(np.unique(waves.sender_round)) == len(waves.sender_round)
    in_turn = waves.window == 1 and one_sent and waves.one_each and routes.one_end
    costs = None
    if streams or not shared or in_turn:
        back = route_pairs(destinations, sources, members, model)
        costs = MessageCosts(
            busy_s=waves.num_bytes / routes.bytes_per_s[pair],
            latency_s=routes.latency_s[pair],
            announce_s=model.announcement * back.latency_s[pair],
            overhead_s=model.overhead_s,
            stream=StreamCosts(model.buffer_bytes, model.copy_s_per_byte, model.device_copy_s_per_byte / 2)
            if streams
            else None,
        )
    return PlacedTable(members, model, routes.access_only, schedule, waves, costs)


def _solve_s(placed: PlacedTable, ready_s: tuple[float, ...]) -> Completion:
    """Let the messages of a table share their links on a clock of its own."""
    clock, first_s = Clock(), min(ready_s)
    transfers = Transfers(clock, placed.model)
    parts = among(placed.schedule, placed.members)
    ended_s: dict[int, float] = {}

    def end(host: int) -> None:
        ended_s[host] = clock.now

    for host, joined_s in zip(placed.members, ready_s, strict=True):
        run = CollectiveRun(host, host, parts[host], _ALONE, transfers, clock, end)
        clock.at(joined_s - first_s, CollectiveRun.advance, run)
    while len(ended_s) < len(placed.members):
        clock.step()
    done_s = [first_s + ended_s[host] for host in placed.members]
    return done_s, done_s


class CollectiveRun:
    """One worker's way through the rounds of a collective, message by message.

    Args:
        owner: whose it is; ``finished`` is called with it after the last round.
        rank: of the worker.
        part: its rounds.
        tag: of the messages.
        transfers, clock: what moves the bytes, and virtual time.
    """

    def __init__(
        self,
        owner: Any,
        rank: int,
        part: RankRounds,
        tag: Tag,
        transfers: Transfers,
        clock: Clock,
        finished: Callable[[Any], None],
    ) -> None:
        self.owner = owner
        self._rank = rank
        self._rounds = part.rounds
        self._window = part.window
        self._tag = tag
        self._transfers = transfers
        self._clock = clock
        self._finished = partial(finished, owner)
        self._begun = 0
        self._done = [False] * len(self._rounds)
        self._first_open = 0

    def advance(self) -> None:
        """Post the rounds that may begin: at most a window of them after the first that is not complete."""
        total = len(self._rounds)
        while self._first_open < total and self._done[self._first_open]:
            self._first_open += 1
        if self._first_open == total:
            self._finished()
            return
        while self._begun < total and self._begun < self._first_open + self._window:
            number = self._begun
            self._begun += 1
            self._post(number)

    def _post(self, number: int) -> None:
        part, now, rank = _RoundPart(self, number), self._rounds[number], self._rank
        part.parts = len(now.receives) + len(now.sends)
        if part.parts == 0:
            self._round_done(number)
            return
        for source, _ in now.receives:
            self._transfers.receive(source, rank, self._tag, part, 0)
        for destination, num_bytes in now.sends:
            self._transfers.send(rank, destination, self._tag, num_bytes, part, None)

    def settled(self, part: _RoundPart) -> None:
        """All messages of a round have a time of completion."""
        self._clock.at(part.ready_s, self._round_done, part.number)

    def _round_done(self, number: int) -> None:
        self._done[number] = True
        self.advance()


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
