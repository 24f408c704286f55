"""Collective operations in virtual time: inputs, times of completion, and the one result."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

from ..config.user_code.call import format_error, with_line
from ..errors import SchemeError
from ..program import operations as ops
from ..program.averaging import combined, part
from ..program.encoding import Payload, decoded
from ..traffic.alike import Alike, AlikeTransfers
from ..traffic.clock import Clock
from ..traffic.flows import Flows
from ..traffic.placing import Placed, place
from ..traffic.rendezvous import Tag
from ..traffic.transfers import Transfers
from .job import Job
from .pending import Pending

_R = TypeVar("_R")

PRICED_WORK: Final = 64
"""Most messages per member counted as work for a collective priced as a whole."""


class TrafficMet(Exception):
    """Other traffic is on the links of a collective that was to be priced as a whole."""


def priced_if_alone(run: Callable[[bool], _R]) -> _R:
    """``run(True)``, which prices collectives as a whole; or, if other traffic meets them, ``run(False)``."""
    with suppress(TrafficMet):
        return run(True)
    return run(False)


class _CollectiveInFlight:
    __slots__ = (
        "alike",
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
        self, members: tuple[int, ...], placed: Placed, alike: Alike | None, priced: bool, begun: int
    ) -> None:
        self.members = members
        self.placed = placed
        self.alike = alike  # None: it is not in flight as classes
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
        self._placed: dict[tuple[int, tuple[int, ...]], Placed] = {}
        self._job = job
        self._clock = clock
        self._transfers = transfers
        self._complete = complete
        self._priced = priced
        self._idle_s = [0.0] * job.workers  # end of priced collectives' bytes, by host
        self._all_idle_s = 0.0  # end of their use of shared links
        self._alike: AlikeTransfers | None = None  # of the last collectives in classes
        self.work = 0
        transfer = job.transfer  # whether the times of messages depend on when they are sent, or on draws
        self._depends = transfer.network.varies or transfer.uneven or transfer.tcp or transfer.queue != "fair"
        self._sequence: list[dict[str, int]] = [{} for _ in range(job.workers)]
        self._open: dict[Tag, _CollectiveInFlight] = {}

    def check_idle(self, rank: int) -> None:
        """Raise ``TrafficMet`` if a worker begins an exchange while a priced collective uses its links."""
        if self._in_classes or self._is_busy(rank):
            raise TrafficMet

    @property
    def _in_classes(self) -> bool:
        """Whether a collective is in flight as classes of like blocks."""
        return self._alike is not None and bool(self._alike.alike)

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
            placed = self._place(operation, members, rank)
            alike = self._find_alike(placed, operation)
            priced = self._can_be_priced(placed, pending)
            collective = _CollectiveInFlight(members, placed, alike, priced, self._transfers.begun)
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
        if collective.alike is not None:
            self._join_alike(collective, placed, pending, tag)
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

    def _find_alike(self, placed: Placed, operation: ops.Operation[Any]) -> Alike | None:
        """The classes of a collective of all workers in which blocks share links; None: there are none."""
        everybody = self._priced and len(placed.members) == self._job.workers
        if not everybody or isinstance(operation, ops.Broadcast) or self._depends or placed.always_apart:
            return None
        return placed.alike((0.0,) * len(placed.members))

    def _join_alike(
        self, collective: _CollectiveInFlight, placed: Placed, pending: Pending, tag: Tag
    ) -> None:
        """Join a collective in classes: it begins when all have joined; only such may be on the links."""
        rank, now_s, alike = pending.task.rank, self._clock.now, collective.alike
        assert alike is not None
        if self._transfers.in_flight or self._transfers.begun != collective.begun or self._is_busy(rank):
            raise TrafficMet
        collective.can_wait = collective.can_wait and self._alone(pending)
        pending.bytes = placed.collective.bytes_sent[placed.position[rank]]
        collective.waiting[rank] = pending
        if len(collective.waiting) < len(placed.members):
            return
        if min(collective.joined_s.values()) < now_s:
            if self._in_classes or not collective.can_wait:
                raise TrafficMet
            self._end_all(collective, placed, tag)
            return
        self._transfers.messages += placed.collective.messages
        self.work += len(alike.classes.one)
        if self._alike is None or not self._in_classes:
            self._alike = AlikeTransfers(self._clock, self._job.transfer, alike)
        elif not self._alike.can_take(alike):
            raise TrafficMet
        in_class: dict[int, list[Pending]] = {}
        for host, of in zip(placed.members, alike.classes.rank.tolist(), strict=True):
            in_class.setdefault(of, []).append(collective.waiting[host])
        flows = alike.flows(self._clock, self._alike, partial(self._class_finished, tag=tag))
        for of, pendings in in_class.items():
            flows.join(of, pendings)

    def _class_finished(self, pendings: list[Pending], tag: Tag) -> None:
        for each in pendings:
            self._finished(each, tag)

    def _place(self, operation: ops.Operation[Any], members: tuple[int, ...], rank: int) -> Placed:
        collective, order = self._job.choice.collective_of(operation, members, rank)
        key = id(collective), order
        if key not in self._placed:
            self._placed[key] = place(collective, order, self._job.transfer)
        return self._placed[key]

    def _can_be_priced(self, placed: Placed, pending: Pending) -> bool:
        """Whether nothing in flight can meet a collective whose first member joins now."""
        transfer = self._job.transfer
        if not self._priced or self._depends:
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
        pending.bytes = placed.collective.bytes_sent[placed.position[rank]]
        collective.waiting[rank] = pending
        if len(collective.waiting) < len(placed.members):
            return
        shared = self._job.transfer.sharing != "none"
        if shared and not placed.access_only and self._transfers.begun != collective.begun:
            raise TrafficMet
        self._end_all(collective, placed, tag)

    def _join(self, collective: _CollectiveInFlight, placed: Placed, pending: Pending, tag: Tag) -> None:
        """Join a collective of blocks.

        If each member does nothing else, and nobody else uses the links, the time at which the last one
        joined is enough. Otherwise the blocks are in flight from the start.
        """
        pending.bytes = placed.collective.bytes_sent[placed.position[pending.task.rank]]
        collective.waiting[pending.task.rank] = pending
        everybody = len(placed.members) == self._job.workers
        recursion = (
            collective.flows is None
            and not placed.collective.rendezvous
            and placed.always_apart
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
        self._transfers.messages += placed.collective.messages
        self.work += min(placed.collective.messages, PRICED_WORK * len(placed.members))
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
