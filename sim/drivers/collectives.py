"""Collective operations in virtual time: inputs, times of completion, and the one result."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from typing_extensions import override

from ..collectives.hierarchy import Sites
from ..collectives.pipelines import hierarchical
from ..collectives.symmetric import (
    EqualLinks,
    SymmetricRound,
    SymmetricSharing,
    alone_s,
    bytes_of_rounds,
    symmetric_rounds,
)
from ..config.user_code.call import format_error, with_line
from ..errors import SchemeError
from ..program import operations as ops
from ..program.averaging import combined, part
from ..program.encoding import Payload, decoded
from ..traffic.clock import Clock
from ..traffic.flows import Flows
from ..traffic.placing import Completion, Placed, PlacedBlocks, place
from ..traffic.rendezvous import Tag
from ..traffic.transfers import Transfers
from .job import Job
from .pending import Pending

_R = TypeVar("_R")

PRICED_WORK: Final = 64
"""Most messages per member counted as work for a collective priced as a whole."""
ROUNDS_WORK: Final = 4
"""Messages per member counted as work for a collective in rounds of all workers at once."""


class TrafficMet(Exception):
    """Other traffic is on the links of a collective that was to be priced as a whole."""


def priced_if_alone(run: Callable[[bool], _R]) -> _R:
    """``run(True)``, which prices collectives as a whole; or, if other traffic meets them, ``run(False)``."""
    with suppress(TrafficMet):
        return run(True)
    return run(False)


@dataclass(frozen=True, eq=False)
class PlacedRounds(Placed):
    """A hierarchical all-reduce among all workers of a cluster of equal sites, hosts and links.

    Attributes:
        rounds: of every worker, one after another.
        links: of the cluster.
        sites: ranks per host of each site.
        num_bytes: of the payload.
    """

    rounds: tuple[SymmetricRound, ...]
    links: EqualLinks
    sites: Sites
    num_bytes: int

    @override
    def _price(self, ready_s: tuple[float, ...]) -> Completion:
        if len(set(ready_s)) > 1:
            collective = hierarchical(self.sites, self.num_bytes)
            return place(collective, self.members, self.model).completion(ready_s)
        begun_s = ready_s[0] + self.model.launch_s
        end_s = begun_s + alone_s(self.rounds, self.links, self.model.block_overhead_s)
        done_s = [end_s] * len(self.members)
        return done_s, done_s


def place_rounds(job: Job, operation: ops.Operation[Any], members: tuple[int, ...]) -> PlacedRounds | None:
    """An all-reduce among all workers in rounds of equal messages; None where that does not hold."""
    links = job.transfer.equal_links
    if links is None or not isinstance(operation, ops.AllReduce) or not job.transport.posted_ahead:
        return None
    if len(members) < job.workers:
        return None
    order, sites = job.choice.by_site(members)
    num_bytes = job.num_bytes(operation.value)
    if job.choice.name_of_all_reduce(members, num_bytes) != "hierarchical":
        return None
    rounds = symmetric_rounds(sites, num_bytes, links)
    if rounds is None:
        return None
    messages = len(order) * sum(each.messages for each in rounds)
    sent = (bytes_of_rounds(rounds),) * len(order)
    return PlacedRounds(order, job.transfer, False, messages, sent, rounds, links, sites, num_bytes)


class RoundsInFlight:
    """The rounds of ``collectives`` among all workers in flight; several collectives share the links."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sharing: SymmetricSharing | None = None
        self._leaving: dict[int, _RoundsOfOne] = {}  # by number of the round in flight
        self._solutions = 0
        self.collectives = 0

    def start(self, placed: PlacedRounds, finished: Callable[[], None]) -> None:
        """Begin a collective on all workers now; ``finished`` is called when all have completed it."""
        if self._sharing is None:
            self._sharing = SymmetricSharing(placed.links)
        self.collectives += 1
        self._begin(_RoundsOfOne(placed, finished))

    def _begin(self, run: _RoundsOfOne) -> None:
        if run.position == len(run.placed.rounds):
            self.collectives -= 1
            run.finished()
            return
        model = run.placed.model
        before_s = model.block_overhead_s + (0.0 if run.position else model.launch_s)
        self._clock.at(self._clock.now + before_s, self._leave, run)

    def _leave(self, run: _RoundsOfOne) -> None:
        assert self._sharing is not None
        number = self._sharing.start(run.placed.rounds[run.position], self._clock.now)
        self._leaving[number] = run
        self._wake()

    def _wake(self) -> None:
        assert self._sharing is not None
        self._solutions += 1
        if self._leaving:
            end_s, number = self._sharing.next_end()
            self._clock.at(max(end_s, self._clock.now), self._left, (self._solutions, number))

    def _left(self, ended: tuple[int, int]) -> None:
        """End a round whose bytes have left, unless rates have changed since."""
        solution, number = ended
        if solution != self._solutions:
            return
        assert self._sharing is not None
        self._sharing.end(number, self._clock.now)
        run = self._leaving.pop(number)
        latency_s = run.placed.rounds[run.position].latency_s
        run.position += 1
        self._clock.at(self._clock.now + latency_s, self._begin, run)
        self._wake()


@dataclass(slots=True, eq=False)
class _RoundsOfOne:
    placed: PlacedRounds
    finished: Callable[[], None]
    position: int = 0


class _CollectiveInFlight:
    __slots__ = (
        "begun",
        "can_wait",
        "early",
        "flows",
        "inputs",
        "joined_s",
        "last_s",
        "left",
        "members",
        "placed",
        "priced",
        "result",
        "waiting",
    )

    def __init__(
        self, members: tuple[int, ...], placed: PlacedBlocks | PlacedRounds, priced: bool, begun: int
    ) -> None:
        self.members = members
        self.placed = placed
        self.priced = priced  # once all members have joined
        self.begun = begun  # transfers of the run when the first member joined
        self.can_wait = True  # no member does anything beside it
        self.flows: Flows | None = None
        self.joined_s: dict[int, float] = {}
        self.waiting: dict[int, Pending] = {}  # members still in the collective
        self.inputs: dict[int, Payload | None] = {}
        self.early: list[Pending] = []  # complete before all had joined
        self.last_s = 0.0
        self.result: Any = None
        self.left = len(members)


class CollectivesInFlight:
    """All collective operations of a run, matched by kind, by their number on each worker, and by group.

    Args:
        job: of the run.
        clock, transfers: virtual time, and transport of the bytes.
        complete: called with an operation that is complete on its worker.
        alone: whether an operation is all that its worker does.
        priced: whether a collective is priced as a whole, once all members have joined, as long as nothing
            else is on its links; later traffic raises ``TrafficMet``, for the run to begin again without.
            False: only collectives of blocks that have their links for themselves are.

    Attributes:
        work: of pricing so far, as an equivalent number of messages.
    """

    def __init__(
        self,
        job: Job,
        clock: Clock,
        transfers: Transfers,
        complete: Callable[[Pending], None],
        alone: Callable[[Pending], bool],
        priced: bool,
    ) -> None:
        self._alone = alone
        self._placed: dict[tuple[int, tuple[int, ...]], PlacedBlocks] = {}
        self._job = job
        self._clock = clock
        self._transfers = transfers
        self._complete = complete
        self._priced = priced
        self._idle_s = [0.0] * job.workers  # end of priced collectives' bytes, by host
        self._all_idle_s = 0.0  # end of their use of shared links
        self._rounds = RoundsInFlight(clock)
        self._placed_rounds: dict[int, PlacedRounds | None] = {}  # by bytes
        self.work = 0
        self._sequence: list[dict[str, int]] = [{} for _ in range(job.workers)]
        self._open: dict[Tag, _CollectiveInFlight] = {}

    def check_idle(self, rank: int) -> None:
        """Raise ``TrafficMet`` if a worker begins an exchange while a priced collective uses its links."""
        if self._rounds.collectives or self._is_busy(rank):
            raise TrafficMet

    def _is_busy(self, rank: int) -> bool:
        return self._clock.now < self._idle_s[rank] or self._clock.now < self._all_idle_s

    def begin(self, pending: Pending, members: tuple[int, ...]) -> None:
        """Join a worker to its next collective of this kind, with the members of its group."""
        operation, name, rank = pending.operation, pending.name, pending.task.rank
        number = self._sequence[rank].get(name, 0)
        self._sequence[rank][name] = number + 1
        tag = (name, number, members[0])
        collective = self._open.get(tag)
        if collective is None:
            placed = self._place_rounds(operation, members) or self._place(operation, members, rank)
            priced = self._can_be_priced(placed, pending)
            collective = _CollectiveInFlight(members, placed, priced, self._transfers.begun)
            self._open[tag] = collective
        if collective.members is not members and collective.members != members:
            raise SchemeError(
                f"{name}: worker {rank} has the group {members}, another member {collective.members}; "
                "groups must be the same on all workers"
            )
        collective.inputs[rank] = getattr(operation, "value", None)
        collective.joined_s[rank] = collective.last_s = self._clock.now
        if len(collective.inputs) == len(members):
            for early in collective.early:
                self._clock.at(self._clock.now, partial(self._finished, tag=tag), early)
        placed = collective.placed
        if isinstance(placed, PlacedRounds):
            self._join_rounds(collective, placed, pending, tag)
            return
        self.check_idle(rank)
        if collective.priced:
            self._join_priced(collective, placed, pending, tag)
        else:
            self._join(collective, placed, pending, tag)

    def waiting_for(self, worker: int) -> list[Pending]:
        """The operations of all collectives that wait for ``worker`` to join."""
        return [
            pending
            for collective in self._open.values()
            if worker in collective.members and worker not in collective.inputs
            for pending in collective.waiting.values()
        ]

    def _place_rounds(self, operation: ops.Operation[Any], members: tuple[int, ...]) -> PlacedRounds | None:
        if not self._priced or not isinstance(operation, ops.AllReduce) or len(members) < self._job.workers:
            return None
        num_bytes = self._job.num_bytes(operation.value)
        if num_bytes not in self._placed_rounds:
            self._placed_rounds[num_bytes] = place_rounds(self._job, operation, members)
        return self._placed_rounds[num_bytes]

    def _join_rounds(
        self, collective: _CollectiveInFlight, placed: PlacedRounds, pending: Pending, tag: Tag
    ) -> None:
        """Join a collective that begins when all members have joined; only such may be on the links."""
        rank, now_s = pending.task.rank, self._clock.now
        if self._transfers.in_flight or self._transfers.begun != collective.begun or self._is_busy(rank):
            raise TrafficMet
        collective.can_wait = collective.can_wait and self._alone(pending)
        pending.bytes = placed.bytes_sent[0]
        collective.waiting[rank] = pending
        if len(collective.waiting) < len(placed.members):
            return
        if min(collective.joined_s.values()) < now_s:
            if self._rounds.collectives or not collective.can_wait:
                raise TrafficMet
            self._end_all(collective, placed, tag)
            return
        self._transfers.messages += placed.messages
        self.work += ROUNDS_WORK * len(placed.members)
        waiting = list(collective.waiting.values())

        def finished() -> None:
            for each in waiting:
                self._clock.at(self._clock.now, partial(self._finished, tag=tag), each)

        self._rounds.start(placed, finished)

    def _place(self, operation: ops.Operation[Any], members: tuple[int, ...], rank: int) -> PlacedBlocks:
        collective, order = self._job.choice.collective_of(operation, members, rank)
        key = id(collective), order
        if key not in self._placed:
            self._placed[key] = place(collective, order, self._job.transfer)
        return self._placed[key]

    def _can_be_priced(self, placed: PlacedBlocks | PlacedRounds, pending: Pending) -> bool:
        """Whether nothing in flight can meet a collective whose first member joins now."""
        transfer = self._job.transfer
        depends = transfer.network.varies or transfer.uneven or transfer.tcp or transfer.queue != "fair"
        if not self._priced or depends or (isinstance(placed, PlacedBlocks) and placed.one_by_one):
            return False
        shared = transfer.sharing != "none"
        free = placed.access_only or not shared
        return (
            (free or (len(placed.members) == self._job.workers and not self._transfers.in_flight))
            and not isinstance(pending.operation, ops.Broadcast)  # whose root need not wait for the last
            and self._alone(pending)
            and not self._transfers.uses(pending.task.rank)
        )

    def _join_priced(
        self, collective: _CollectiveInFlight, placed: Placed, pending: Pending, tag: Tag
    ) -> None:
        """Join a collective that sends nothing until all members have joined."""
        rank = pending.task.rank
        if not self._alone(pending) or self._transfers.uses(rank):
            raise TrafficMet
        pending.bytes = placed.bytes_sent[placed.position[rank]]
        collective.waiting[rank] = pending
        if len(collective.waiting) < len(placed.members):
            return
        shared = self._job.transfer.sharing != "none"
        if shared and not placed.access_only and self._transfers.begun != collective.begun:
            raise TrafficMet
        self._end_all(collective, placed, tag)

    def _join(
        self, collective: _CollectiveInFlight, placed: PlacedBlocks, pending: Pending, tag: Tag
    ) -> None:
        """Join a collective of blocks.

        If each member does nothing else, and nobody else uses the links, the time at which the last one
        joined is enough. Otherwise the blocks are in flight from the start.
        """
        pending.bytes = placed.bytes_sent[placed.position[pending.task.rank]]
        collective.waiting[pending.task.rank] = pending
        everybody = len(placed.members) == self._job.workers
        recursion = (
            collective.flows is None
            and placed.own_links
            and not placed.collective.rendezvous
            and (everybody or placed.access_only)
            and not isinstance(pending.operation, ops.Broadcast)
            and self._alone(pending)
        )
        if recursion:
            if len(collective.waiting) == len(placed.members):
                self._end_all(collective, placed, tag)
            return
        if collective.flows is None:
            ended = partial(self._finished, tag=tag)
            collective.flows = placed.flows(self._clock, self._transfers, tag, ended)
            for rank, each in collective.waiting.items():
                collective.flows.join(placed.position[rank], each)
        else:
            collective.flows.join(placed.position[pending.task.rank], pending)

    def _end_all(self, collective: _CollectiveInFlight, placed: Placed, tag: Tag) -> None:
        now_s = self._clock.now
        ready_s = tuple([collective.joined_s[host] - now_s for host in placed.members])
        self._transfers.messages += placed.messages
        self.work += min(placed.messages, PRICED_WORK * len(placed.members))
        done_s, idle_s = placed.completion(ready_s)
        ended = partial(self._finished, tag=tag)
        for host, end_s, left_s in zip(placed.members, done_s, idle_s, strict=True):
            self._clock.at(now_s + max(end_s, 0.0), ended, collective.waiting[host])
            if self._priced:
                self._idle_s[host] = now_s + left_s
        if self._priced and self._job.transfer.sharing != "none" and not placed.access_only:
            self._all_idle_s = now_s + max(done_s)

    def _finished(self, pending: Pending, tag: Tag) -> None:
        collective, operation = self._open[tag], pending.operation
        members = collective.members
        if len(collective.inputs) < len(members) and not isinstance(operation, ops.Broadcast):
            collective.early.append(pending)  # an empty shard is neither sent nor waited for
            return
        if collective.result is None:
            inputs = [collective.inputs.get(rank) for rank in members]  # a broadcast has only the root's
            try:
                if self._job.problem is None and isinstance(operation, ops.AllReduce):  # nothing to average
                    collective.result = decoded(inputs[0])  # type: ignore[arg-type]
                else:
                    collective.result = combined(operation, inputs, members)
            except RuntimeError as error:
                why = f"the members' values cannot be combined in one {pending.name}: {format_error(error)}"
                raise SchemeError(with_line(why, pending.task.coroutine)) from error
        position = bisect_left(members, pending.task.rank)  # members ascend
        pending.reply = part(operation, collective.result, position, len(members))
        if isinstance(operation, ops.Broadcast):
            pending.peer_s = max(pending.start_s, collective.joined_s[pending.peer])
        else:
            pending.peer_s = collective.last_s
        collective.waiting.pop(pending.task.rank, None)
        collective.left -= 1
        if collective.left == 0:
            collective.flows = None  # which keep all inputs alive
            del self._open[tag]
            self._transfers.close(tag)
        pending.ready_s = self._clock.now
        self._complete(pending)
