"""Collective operations in virtual time: everybody's inputs, the rounds, and the one result."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ..collectives.schedule import RankRounds
from ..config.user_code import format_error
from ..errors import SchemeError
from ..program import operations as ops
from ..program.averaging import combined, part
from ..program.encoding import Payload
from .blocks import BlockFlows, PlacedBlocks, place_blocks
from .clock import Clock
from .job import Job
from .pending import Pending
from .transfers import Tag, Transfers


class _CollectiveInFlight:
    """The inputs of one collective operation of one group, and its one result."""

    __slots__ = (
        "early",
        "flows",
        "inputs",
        "joined_s",
        "last_s",
        "left",
        "members",
        "placed",
        "result",
        "waiting",
    )

    def __init__(self, members: tuple[int, ...], placed: PlacedBlocks | None) -> None:
        self.members = members
        self.placed = placed
        self.flows: BlockFlows | None = None
        self.joined_s: dict[int, float] = {}
        self.waiting: dict[int, Pending] = {}  # of those whose blocks are not through
        self.inputs: dict[int, Payload | None] = {}
        self.early: list[Pending] = []  # came through before all had begun
        self.last_s = 0.0
        self.result: Any = None
        self.left = len(members)


class CollectivesInFlight:
    """All collective operations of a run, matched by kind, by their number on each worker, and by group.

    Args:
        job: whose collectives they are.
        clock, transfers: virtual time, and what moves the bytes.
        complete: called with an operation whose worker is through.
        alone: whether an operation is all that its worker does.
    """

    def __init__(
        self,
        job: Job,
        clock: Clock,
        transfers: Transfers,
        complete: Callable[[Pending], None],
        alone: Callable[[Pending], bool],
    ) -> None:
        self._alone = alone
        self._places: dict[tuple[int, tuple[int, ...]], PlacedBlocks] = {}
        self._job = job
        self._clock = clock
        self._transfers = transfers
        self._complete = complete
        self._sequence: list[dict[str, int]] = [{} for _ in range(job.workers)]
        self._open: dict[Tag, _CollectiveInFlight] = {}

    def begin(self, pending: Pending, members: tuple[int, ...]) -> None:
        """A worker joins its next collective of this kind, with the members of its group."""
        operation, name, rank = pending.operation, pending.name, pending.task.rank
        number = self._sequence[rank].get(name, 0)
        self._sequence[rank][name] = number + 1
        tag = (name, number, members[0])
        collective = self._open.get(tag)
        if collective is None:
            placed = self._place(operation, members, rank)
            collective = self._open[tag] = _CollectiveInFlight(members, placed)
        if collective.members != members:
            raise SchemeError(
                f"{name}: worker {rank} has the group {members}, another member {collective.members}; "
                "groups must be the same on all workers"
            )
        collective.inputs[rank] = getattr(operation, "value", None)
        collective.last_s = self._clock.now
        if len(collective.inputs) == len(members):
            for early in collective.early:
                self._clock.at(self._clock.now, partial(self._finished, tag=tag), early)
        if collective.placed is not None:
            self._join(collective, collective.placed, pending, tag)
            return
        own = self._job.part_of(operation, members, rank)
        pending.bytes = own.bytes_sent
        if not own.rounds:
            self._clock.at(self._clock.now, partial(self._finished, tag=tag), pending)
            return
        run = CollectiveRun(pending, own, tag, self._transfers, self._clock, partial(self._finished, tag=tag))
        run.advance()

    def waiting_for(self, worker: int) -> list[Pending]:
        """The operations of all collectives that ``worker`` has not joined and that cannot end without it."""
        return [
            pending
            for collective in self._open.values()
            if worker in collective.members and worker not in collective.inputs
            for pending in collective.waiting.values()
        ]

    def _place(
        self, operation: ops.Operation[Any], members: tuple[int, ...], rank: int
    ) -> PlacedBlocks | None:
        """A collective as blocks on hosts; None where it is a table of messages."""
        blocks = self._job.blocks_of(operation, members, rank)
        if blocks is None:
            return None
        schedule, order = blocks
        placed = self._places.get((id(schedule), order))
        if placed is None or placed.schedule is not schedule:
            placed = self._places[id(schedule), order] = place_blocks(schedule, order, self._job.transfer)
        return placed

    def _join(
        self, collective: _CollectiveInFlight, placed: PlacedBlocks, pending: Pending, tag: Tag
    ) -> None:
        """A worker joins a collective of blocks.

        If each member does nothing else, and nobody else uses the links, then it is enough to know when the
        last one joined. If not, the blocks are on their way from the start.
        """
        pending.bytes = placed.schedule.bytes_sent[placed.members.index(pending.task.rank)]
        collective.waiting[pending.task.rank] = pending
        collective.joined_s[pending.task.rank] = self._clock.now
        everybody = len(placed.members) == self._job.workers
        recursion = (
            collective.flows is None
            and placed.own_links
            and (everybody or placed.access_only)
            and not isinstance(pending.operation, ops.Broadcast)  # whose root need not wait for the last
            and self._alone(pending)
        )
        if recursion:
            if len(collective.waiting) == len(placed.members):
                self._end_all(collective, placed, tag)
            return
        if collective.flows is None:
            collective.flows = BlockFlows(
                placed, self._clock, self._transfers, partial(self._through, collective, tag)
            )
            for rank in collective.waiting:
                collective.flows.join(placed.members.index(rank))
        else:
            collective.flows.join(placed.members.index(pending.task.rank))

    def _end_all(self, collective: _CollectiveInFlight, placed: PlacedBlocks, tag: Tag) -> None:
        """All members have joined, and their blocks have all links for themselves."""
        now_s = self._clock.now
        ready_s = tuple(collective.joined_s[host] - now_s for host in placed.members)
        self._transfers.messages += len(placed.schedule.blocks)
        for host, end_s in zip(placed.members, placed.completion_s(ready_s), strict=True):
            pending = collective.waiting[host]
            self._clock.at(now_s + max(end_s, 0.0), partial(self._finished, tag=tag), pending)

    def _through(self, collective: _CollectiveInFlight, tag: Tag, rank: int) -> None:
        assert collective.placed is not None
        self._finished(collective.waiting[collective.placed.members[rank]], tag)

    def _finished(self, pending: Pending, tag: Tag) -> None:
        """A worker has come through all rounds of its collective."""
        collective, operation = self._open[tag], pending.operation
        members = collective.members
        if len(collective.inputs) < len(members) and not isinstance(operation, ops.Broadcast):
            collective.early.append(pending)  # of a shard without elements nothing is sent, nor waited for
            return
        if collective.result is None:
            inputs = [collective.inputs.get(rank) for rank in members]  # a broadcast needs the root's alone
            # Without values there is nothing to average.
            known = self._job.problem is None and isinstance(operation, ops.AllReduce)
            try:
                collective.result = inputs[0] if known else combined(operation, inputs, members)
            except RuntimeError as error:
                why = f"the members' values cannot be combined in one {pending.name}: {format_error(error)}"
                place = getattr(pending.task.coroutine, "place", "")  # a user's scheme knows its line
                raise SchemeError(f"{place}: {why}" if place else why) from error
        pending.reply = part(operation, collective.result, members.index(pending.task.rank), len(members))
        pending.peer_s = collective.last_s
        collective.waiting.pop(pending.task.rank, None)
        collective.left -= 1
        if collective.left == 0:
            del self._open[tag]
            self._transfers.close(tag)
        pending.ready_s = self._clock.now
        self._complete(pending)


class CollectiveRun:
    """One worker's way through the rounds of a collective; ``finished`` is called after the last one."""

    def __init__(
        self,
        pending: Pending,
        part: RankRounds,
        tag: Tag,
        transfers: Transfers,
        clock: Clock,
        finished: Callable[[Pending], None],
    ) -> None:
        self.pending = pending
        self._rounds = part.rounds
        self._window = part.window
        self._tag = tag
        self._transfers = transfers
        self._clock = clock
        self._finished = finished
        self._begun = 0
        self._done = [False] * len(self._rounds)
        self._first_open = 0

    def advance(self) -> None:
        """Post the rounds that may begin: at most a window of them after the first that is not complete."""
        total = len(self._rounds)
        while self._first_open < total and self._done[self._first_open]:
            self._first_open += 1
        if self._first_open == total:
            self._finished(self.pending)
            return
        while self._begun < total and self._begun < self._first_open + self._window:
            number = self._begun
            self._begun += 1
            self._post(number)

    def _post(self, number: int) -> None:
        part, now, rank = _RoundPart(self, number), self._rounds[number], self.pending.task.rank
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
