"""Completion of collectives on every worker, from the workers' joining times."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...collectives.collective import side_by_side
from ...collectives.sends import Sends, sends_of
from ...errors import NotInLockstep
from ...program import operations as ops
from ...program.averaging import root_of
from ...program.encoding import Encoded, Payload
from ...program.groups import partition
from ...seeds import Floats, Integers
from ...traffic.connections import Connections
from ...traffic.placing import Placed, place
from ..job import PRICED_WORK, Job


@dataclass(frozen=True, slots=True, eq=False)
class Collected:
    """Completion of a collective; vectors [n].

    ``last_s``: when the last member of a worker's group (of a broadcast, the root) had joined; ``num_bytes``:
    sent by each, by ``sends``; ``work``: messages as counted by ``PRICED_WORK``.
    """

    end_s: Floats
    last_s: Floats
    num_bytes: Integers
    sends: Sends
    messages: int
    work: int


@dataclass(frozen=True, slots=True, eq=False)
class JoinedCollective:
    """A collective of one group, or those of all groups at once, that its members are about to join.

    Attributes:
        placed: on its hosts.
        last_s: when the last member joins it.
        ready_s: when each member joins, relative to ``last_s``.
        root: of a broadcast, else -1.
        last_of_group_s: when the last member of its own group joins, per member.
    """

    placed: Placed
    last_s: float
    ready_s: tuple[float, ...]
    root: int
    last_of_group_s: float | Floats


class CollectiveTimes:
    """Times the collectives of a run, each as a whole."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._shared = job.transfer.sharing != "none"
        self._placed: dict[tuple[Any, ...], Placed] = {}
        self._joined: tuple[Any, Floats, list[JoinedCollective]] | None = None
        self._connections = Connections(job.transfer.connect_s)
        self._idle_s: Floats | None = None  # when collectives free a host's links; None: none yet

    def check_idle(self, begin_s: Floats) -> None:
        """Raise ``NotInLockstep`` if a collective uses links of exchanges that begin at ``begin_s`` [n]."""
        if self._idle_s is not None and (begin_s < self._idle_s).any():
            raise NotInLockstep("bytes of a collective are on their way when the next exchange begins")

    def times(self, operation: Any, joined_s: Floats) -> Collected:
        """Completion of a collective that each worker joins at ``joined_s`` [n].

        Raises ``NotInLockstep`` if other bytes can be on its links.
        """
        joined_s = self._after_connecting(operation, joined_s)
        self.check_idle(joined_s)
        n = self._job.workers
        if self._idle_s is None:
            self._idle_s = np.zeros(n)
        end_s, last_of_all_s, sent = np.empty(n), np.empty(n), np.empty(n, np.int64)
        messages = work = 0
        for each in (joined := self.joined(operation, joined_s)):
            placed, last_s = each.placed, each.last_s
            members = list(placed.members)
            done_s, idle_s = placed.completion(each.ready_s)
            if each.root >= 0:  # all wait for the root, else for those above only
                end_s[members] = last_s + np.array(done_s)
                last_of_all_s[members] = np.maximum(joined_s[members], joined_s[each.root])
            else:
                end_s[members] = np.maximum(last_s + np.array(done_s), each.last_of_group_s)
                last_of_all_s[members] = each.last_of_group_s
            meets_all = self._shared and not placed.access_only
            self._idle_s[members] = last_s + (max(done_s) if meets_all else np.array(idle_s))
            sent[members] = placed.collective.bytes_sent
            messages += placed.collective.messages
            work += min(placed.collective.messages, PRICED_WORK * len(members))
        self._joined = None  # it holds all workers' values
        sends = sends_of(tuple((each.placed.collective, each.placed.members) for each in joined))
        return Collected(end_s, last_of_all_s, sent, sends, messages, work)

    def _after_connecting(self, operation: Any, joined_s: Floats) -> Floats:
        """When each member has connected to its group."""
        if not self._job.transfer.connect_s:
            return joined_s
        groups = partition(operation.groups, self._job.workers)
        ready_s = {i: self._connections.ready_s(i, group, joined_s[i]) for group in groups for i in group}
        return np.array([ready_s[i] for i in range(self._job.workers)])

    def joined(self, operation: Any, joined_s: Floats) -> list[JoinedCollective]:
        """The collectives of all groups, whose workers join at ``joined_s`` [n]. Raises as ``times``."""
        known = self._joined
        if known is not None and known[0] is operation and known[1] is joined_s:
            return known[2]
        joined = []
        signature = _signature(operation)
        for group in partition(operation.groups, self._job.workers):
            root = root_of(operation, group[0], group) if isinstance(operation, ops.Broadcast) else -1
            placed = self._placed.get((*signature, root, group))
            if placed is None:
                placed = self._placed[*signature, root, group] = self._place(_of_one_worker(operation), group)
            joined.append(self._join(placed, joined_s, root))
        if self._shared and len(joined) > 1 and not all(each.placed.access_only for each in joined):
            joined = [self._join_together(operation, joined, joined_s)]
        self._joined = operation, joined_s, joined
        return joined

    def _join(self, placed: Placed, joined_s: Floats, root: int = -1) -> JoinedCollective:
        times_s = joined_s[list(placed.members)]
        last_s = float(times_s.max())
        return JoinedCollective(placed, last_s, tuple((times_s - last_s).tolist()), root, last_s)

    def _join_together(
        self, operation: Any, apart: list[JoinedCollective], joined_s: Floats
    ) -> JoinedCollective:
        key = tuple(id(each.placed) for each in apart)  # ids of objects kept in _placed
        placed = self._placed.get(key)
        if placed is None:
            all_placed = [each.placed for each in apart]
            collectives = [each.collective for each in all_placed]
            if isinstance(operation, ops.Broadcast) or any(c.rendezvous or c.tail for c in collectives):
                name = ops.name_of(type(operation))
                raise NotInLockstep(f"{name}: groups share links with each other (network.sharing)")
            members = tuple(host for each in all_placed for host in each.members)
            placed = self._placed[key] = place(side_by_side(collectives), members, self._job.transfer)
        of_groups = np.repeat([each.last_s for each in apart], [len(each.placed.members) for each in apart])
        return replace(self._join(placed, joined_s), last_of_group_s=of_groups)

    def _place(self, operation: ops.Operation[Any], members: tuple[int, ...]) -> Placed:
        return place(*self._job.choice.collective_of(operation, members, members[0]), self._job.transfer)


def _of_one_worker(operation: Any) -> Any:
    """The operation with the value of worker 0 alone: all workers' values have equally many bytes."""
    value: Payload | None = getattr(operation, "value", None)
    if value is None:
        return operation
    return replace(operation, value=value.row(0) if isinstance(value, Encoded) else value[0])


def _signature(operation: Any) -> tuple[Any, ...]:
    """All that determines a collective's messages in a group: its kind and its bytes."""
    value: Payload | None = getattr(operation, "value", None)
    kind = type(operation), getattr(operation, "length", None)
    if value is None:
        return kind
    if isinstance(value, Encoded):
        parts = tuple((part.shape, part.dtype) for part in value.parts)
        return *kind, value.codec, parts, value.length, value.dtype, value.whole, value.shards
    return *kind, value.shape, value.dtype
