"""Collective operations in virtual time: inputs, times of completion, and the one result."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import chain
from typing import Any

from ..config.user_code.call import format_error, with_line
from ..errors import SchemeError
from ..program import operations as ops
from ..program.averaging import combined, part, root_of
from ..program.encoding import Payload, decoded
from ..traffic.clock import Clock
from ..traffic.flows import Alike, AlikeTransfers, Flows
from ..traffic.placing import Placed, in_turn_apart, lanes_between, place
from ..traffic.rendezvous import Tag
from ..traffic.transfers import Transfers
from .job import PRICED_WORK, Job
from .tasks.clocked import Pending


@dataclass(slots=True, eq=False)
class _CollectiveInFlight:
    members: tuple[int, ...]
    placed: Placed
    alike: Alike | None  # None: it is not to be in flight as classes
    left: int  # members still in it
    can_wait: bool = True  # no member does anything beside it
    flows: Flows | None = None  # None: it is priced
    joined_s: dict[int, float] = field(default_factory=dict)
    waiting: dict[int, Pending] = field(default_factory=dict)  # members still in the collective
    inputs: dict[int, Payload | None] = field(default_factory=dict)
    early: list[Pending] = field(default_factory=list)  # complete before all had joined
    last_s: float = 0.0
    result: Any = None


class CollectivesInFlight:
    """All collective operations of a run, matched by kind, by their number on each worker, and by group.

    A collective that can have its links for itself is priced as a whole, once all members have joined. If
    other traffic meets it before its end, it is replayed up to then, and continues message by message.

    Args:
        job: of the run.
        clock, transfers: virtual time, and transport of the bytes.
        complete: called with an operation that is complete on its worker.
        alone: whether an operation is all that its worker does.
        priced: whether any collective is priced.

    Attributes:
        work, begun: messages that pricing so far is worth; those of all collectives begun so far.
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
        transfer = job.transfer  # whether the times of messages depend on when they are sent, or on draws
        depends = transfer.network.varies or transfer.uneven or transfer.tcp or transfer.queue != "fair"
        self._priced = priced and not depends
        # End of priced collectives' bytes, by host and lanes.
        self._idle_s: list[dict[frozenset[int], float]] = [{} for _ in range(job.workers)]
        self._lanes = lru_cache(maxsize=None)(partial(lanes_between, transfer))
        self._in_turn = job.collectives.transport.nccl_collectives
        self._on_shared: dict[Tag, _CollectiveInFlight] = {}  # priced ones that any message of a member meets
        self._alike: AlikeTransfers | None = None  # of the last collectives in classes,
        self._in_classes: dict[Tag, _CollectiveInFlight] = {}  # which are these
        self._replayed_s = 0.0  # end of the last replay
        self.work = self.begun = 0
        self._sequence: list[dict[str, int]] = [{} for _ in range(job.workers)]
        self._open: dict[Tag, _CollectiveInFlight] = {}
        if self._priced:
            transfers.watch = self._meet

    def begin(self, pending: Pending, members: tuple[int, ...]) -> None:
        """Join a worker to its next collective of this kind, with the members of its group."""
        operation, name, rank = pending.operation, pending.name, pending.task.rank
        if isinstance(operation, ops.Broadcast):
            pending.peer = root_of(operation, rank, members)
        number = self._sequence[rank].get(name, 0)
        self._sequence[rank][name] = number + 1
        tag = (name, number, members[0])
        collective = self._open.get(tag) or self._begin(tag, operation, members, rank)
        if collective.members is not members and collective.members != members:
            raise SchemeError(
                f"{name}: worker {rank} has the group {members}, another member {collective.members}; "
                "groups must be the same on all workers"
            )
        placed = collective.placed
        is_met = collective.flows is None and self._is_met(collective, pending)
        pending.sends = placed.sends.get(rank, ())
        collective.inputs[rank] = getattr(operation, "value", None)
        collective.joined_s[rank] = collective.last_s = self._clock.now
        collective.waiting[rank] = pending
        if len(collective.inputs) == len(members):
            for early in collective.early:
                self._clock.at(self._clock.now, partial(self._finished, tag=tag), early)
        if collective.flows is not None:
            collective.flows.join(placed.position[rank], pending)
        elif is_met:
            self._move({tag: collective, **self._priced_on(rank, placed.lanes)})
        else:
            if not collective.can_wait:
                self._on_shared[tag] = collective
            if len(collective.waiting) == len(members):
                self._price(collective, tag)

    def waiting_for(self, worker: int) -> list[Pending]:
        """The operations of all collectives that wait for ``worker``, which has died, to join."""
        of_worker = {
            tag: each
            for tag, each in self._open.items()
            if worker in each.members and len(each.inputs) < len(each.members)
        }
        if priced := {tag: each for tag, each in of_worker.items() if each.flows is None}:
            self._move(priced | self._priced_on(worker))
        waiting = [each.waiting.values() for each in of_worker.values() if worker not in each.inputs]
        return list(chain.from_iterable(waiting))

    def _begin(
        self, tag: Tag, operation: ops.Operation[Any], members: tuple[int, ...], rank: int
    ) -> _CollectiveInFlight:
        placed = self._place(operation, members, rank)
        self.begun += placed.collective.messages
        everybody, idle = len(members) == self._job.workers, not self._transfers.in_flight
        priced = self._priced and not isinstance(operation, ops.Broadcast)
        alike = None
        only_alike = all(other.alike is not None for other in self._on_shared.values())
        if priced and everybody and idle and only_alike and not placed.always_apart:
            alike = placed.alike((0.0,) * len(members))
        collective = self._open[tag] = _CollectiveInFlight(members, placed, alike, len(members))
        if not priced or not (self._is_separate(collective) or (idle and (everybody or placed.access_only))):
            ended = partial(self._through, tag=tag)
            collective.flows = placed.flows(self._clock, self._transfers, tag, ended)
        elif not self._is_separate(collective):
            self._on_shared[tag] = collective
        return collective

    def _place(self, operation: ops.Operation[Any], members: tuple[int, ...], rank: int) -> Placed:
        collective, order = self._job.choice.collective_of(operation, members, rank)
        key = id(collective), order
        if key not in self._placed:
            self._placed[key] = place(collective, order, self._job.transfer)
        return self._placed[key]

    # --- collectives priced as a whole --------------------------------------------------------------

    def _is_separate(self, collective: _CollectiveInFlight) -> bool:
        """Whether nothing but other traffic of a member can meet it on that member's links."""
        separate = collective.placed.separate or self._job.transfer.sharing == "none"
        return separate and collective.alike is None

    def _is_met(self, collective: _CollectiveInFlight, pending: Pending) -> bool:
        """Whether anything else can be on the links of a worker that joins a priced collective now."""
        rank, lanes = pending.task.rank, collective.placed.lanes
        if collective.placed.unlimited:
            return False
        alone = self._alone(pending)
        collective.can_wait = collective.can_wait and alone
        if not self._is_idle(rank, lanes):
            return True
        if collective.alike is not None:
            return False
        if not (alone or self._in_turn):
            return True
        if alone and self._is_separate(collective):
            return self._transfers.uses(rank)
        others = (other.placed for other in self._on_shared.values() if other is not collective)
        return any(not lanes.isdisjoint(self._lanes(*pair)) for pair in self._transfers.pairs()) or any(
            rank in other.position
            and not lanes.isdisjoint(other.lanes)
            and not (self._in_turn and in_turn_apart(other, collective.placed))
            for other in others
        )

    def _is_idle(self, host: int, lanes: frozenset[int]) -> bool:
        """Whether the bytes of priced collectives of a host are off these lanes."""
        now_s, ends_s = self._clock.now, self._idle_s[host]
        return all(end_s <= now_s or lanes.isdisjoint(on) for on, end_s in ends_s.items())

    def _price(self, collective: _CollectiveInFlight, tag: Tag) -> None:
        """Set the ends of a collective that all members have joined."""
        alike, late = collective.alike, min(collective.joined_s.values()) < self._clock.now
        if alike is None or (late and collective.can_wait and len(self._on_shared) == 1):
            collective.alike = None
            self._end_all(collective, tag)
        elif late:
            self._move(self._on_shared)
        else:
            self._begin_classes(collective, alike, tag)

    def _begin_classes(self, collective: _CollectiveInFlight, alike: Alike, tag: Tag) -> None:
        if self._alike is None or not self._alike.alike:
            self._alike, self._in_classes = AlikeTransfers(self._clock, self._job.transfer, alike), {}
        elif not self._alike.can_take(alike):
            self._move(self._on_shared)
            return
        self._in_classes[tag] = collective
        self.work += len(alike.classes.one)
        in_class: dict[int, list[Pending]] = {}
        for host, of in zip(collective.placed.members, alike.classes.rank.tolist(), strict=True):
            in_class.setdefault(of, []).append(collective.waiting[host])
        flows = alike.flows(self._clock, self._alike, partial(self._class_ended, tag=tag))
        for of, pendings in in_class.items():
            flows.join(of, pendings)

    def _end_all(self, collective: _CollectiveInFlight, tag: Tag) -> None:
        now_s, placed = self._clock.now, collective.placed
        ready_s = tuple([collective.joined_s[host] - now_s for host in placed.members])
        self.work += min(placed.collective.messages, PRICED_WORK * len(placed.members))
        done_s, idle_s = placed.completion(ready_s)
        ended = partial(self._ended, tag=tag)
        for host, end_s, left_s in zip(placed.members, done_s, idle_s, strict=True):
            self._clock.at(now_s + max(end_s, 0.0), ended, collective.waiting[host])
            self._idle_s[host][placed.lanes] = 0.0 if placed.unlimited else now_s + left_s

    def _class_ended(self, pendings: list[Pending], tag: Tag) -> None:
        for each in pendings:
            self._ended(each, tag)

    def _ended(self, pending: Pending, tag: Tag) -> None:
        """End a member's part in a collective, as priced; unless it has been met."""
        if tag in self._open and self._open[tag].flows is None:
            self._finished(pending, tag)

    # --- and met by other traffic -------------------------------------------------------------------

    def _meet(self, *hosts: int) -> None:
        """Continue, message by message, the priced collectives that a message between hosts can meet.

        Args:
            hosts: source and destination; or one that may receive from anybody.
        """
        if not self._open:
            return
        lanes = self._lanes(*hosts) if len(hosts) > 1 else None
        for host in hosts:
            if met := self._priced_on(host, lanes):
                self._move(met)

    def _priced_on(self, host: int, lanes: frozenset[int] | None = None) -> dict[Tag, _CollectiveInFlight]:
        """Priced collectives that messages of a host can meet, on these lanes or on any."""
        met = self._on_shared
        if any(end_s > self._clock.now for end_s in self._idle_s[host].values()):
            met = met | {tag: each for tag, each in self._open.items() if each.flows is None}
        return {
            tag: each
            for tag, each in met.items()
            if host in each.placed.position and (lanes is None or not lanes.isdisjoint(each.placed.lanes))
        }

    def _move(self, met: dict[Tag, _CollectiveInFlight]) -> None:
        """Replay priced collectives up to now, message by message; from now on they are among the others.

        Those in classes are replayed with all that have shared their links without a break.
        """
        met = met.copy()
        if not self._in_classes.keys().isdisjoint(met):
            met = self._in_classes | met
            self._alike, self._in_classes = None, {}

        def begin() -> None:
            for tag, each in met.items():
                ended = partial(self._through, tag=tag)
                each.flows = each.placed.flows(self._clock, self._transfers, tag, ended)
                for host, at_s in each.joined_s.items():
                    join = partial(each.flows.join, each.placed.position[host])
                    self._clock.at(at_s, join, each.waiting.get(host))

        for tag, each in met.items():
            self._on_shared.pop(tag, None)
            if not each.left:
                self._transfers.messages -= each.placed.collective.messages
        self._replayed_s = self._clock.now
        first_s = min(joined_s for each in met.values() for joined_s in each.joined_s.values())
        if first_s < self._clock.now:
            self._transfers.replay(first_s, begin)
        else:
            begin()

    def _through(self, pending: Pending | None, tag: Tag) -> None:
        """End a member's part in a collective, message by message; in a replay, when that is over."""
        if self._clock.now < self._replayed_s:
            self._clock.at(self._replayed_s, partial(self._through, tag=tag), pending)
        elif pending is not None:  # None: it has ended before the replay
            self._finished(pending, tag)

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
            if collective.flows is None:
                self._transfers.messages += collective.placed.collective.messages
            collective.flows, collective.inputs, collective.result = None, {}, None  # nobody needs them again
            del self._open[tag]
            self._on_shared.pop(tag, None)
            self._transfers.close(tag)
        pending.ready_s = self._clock.now
        self._complete(pending)
