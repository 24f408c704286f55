"""Completion of collectives on every worker, from the workers' joining times, for jobs in rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...collectives.collective import sends_of
from ...errors import NotInLockstep
from ...program import operations as ops
from ...program.averaging import root_of
from ...program.encoding import Encoded, Payload
from ...program.groups import partition
from ...seeds import Floats
from ...traffic.placing import PlacedOnEach, place
from ..job import PRICED_WORK, Job
from ..turns import Connections
from .accounts import StackedOperation


@dataclass(frozen=True, slots=True, eq=False)
class JoinedCollective:
    """A collective of one group that its members are about to join.

    Attributes:
        on_each: on its hosts, in each job.
        last_s: when the last member joins it [jobs, 1].
        ready_s: when each member joins, relative to ``last_s`` [jobs, members].
        root: of a broadcast, else -1.
    """

    on_each: PlacedOnEach
    last_s: Floats
    ready_s: Floats
    root: int


class CollectiveTimes:
    """Times the collectives of jobs, each as a whole; several jobs differ in networks without sharing."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs, job = jobs, jobs[0]
        self._job = job
        self._shared = job.transfer.sharing != "none"
        self._placed: dict[tuple[Any, ...], PlacedOnEach] = {}
        self._joined: tuple[Any, Floats, list[JoinedCollective]] | None = None
        self._connections = [Connections(each.transfer.connect_s) for each in jobs]
        self._idle_s: Floats | None = None  # when collectives free a host's links; None: none yet

    def check_idle(self, begin_s: Floats) -> None:
        """Raise ``NotInLockstep`` if a collective uses links of exchanges that begin at ``begin_s``."""
        if self._idle_s is not None and (begin_s < self._idle_s).any():
            raise NotInLockstep("bytes of a collective are on their way when the next exchange begins")

    def times(self, operation: Any, begin_s: Floats, step: int) -> tuple[StackedOperation, int, int]:
        """A collective begun at ``begin_s`` [jobs, n], its messages, and their ``PRICED_WORK``.

        Its ``peer_s``: when the last member of a worker's group (of a broadcast, the root) had joined.
        Raises ``NotInLockstep`` if other bytes can be on its links, or the jobs' algorithms differ.
        """
        joined_s = self._after_connecting(operation, begin_s)
        self.check_idle(joined_s)
        n = self._job.workers
        if self._idle_s is None:
            self._idle_s = np.zeros(joined_s.shape)
        end_s, last_of_all_s, sent = np.empty(joined_s.shape), np.empty(joined_s.shape), np.empty(n, np.int64)
        messages = work = 0
        for each in (joined := self.joined(operation, joined_s)):
            placed, last_s = each.on_each.each[0], each.last_s
            members = list(placed.members)
            done_s, idle_s = each.on_each.completion(each.ready_s)
            if each.root >= 0:  # all wait for the root, else for those above only
                end_s[:, members] = last_s + done_s
                last_of_all_s[:, members] = np.maximum(joined_s[:, members], joined_s[:, [each.root]])
            else:
                end_s[:, members] = np.maximum(last_s + done_s, last_s)
                last_of_all_s[:, members] = last_s
            meets_all = self._shared and not placed.separate
            self._idle_s[:, members] = last_s + (done_s.max() if meets_all else idle_s)
            sent[members] = placed.collective.bytes_sent
            messages += placed.collective.messages
            work += min(placed.collective.messages, PRICED_WORK * len(members))
        self._joined = None  # it holds all workers' values
        sends = sends_of(
            tuple((each.on_each.each[0].collective, each.on_each.each[0].members) for each in joined)
        )
        root = np.asarray(operation.root) if isinstance(operation, ops.Broadcast) else -1
        collected = StackedOperation(
            ops.name_of(type(operation)), step, begin_s, end_s, last_of_all_s, None, num_bytes=sent,
            peer=root, in_half=ops.adds_in_half(operation), sends=sends,
        )  # fmt: skip
        return collected, messages, work

    def _after_connecting(self, operation: Any, joined_s: Floats) -> Floats:
        """When each member has connected to its group."""
        if not self._job.transfer.connect_s:
            return joined_s
        ready_s = joined_s.copy()
        for group in partition(operation.groups, self._job.workers):
            for i in group:
                for row, connections in enumerate(self._connections):
                    ready_s[row, i] = connections.ready_s(i, group, float(joined_s[row, i]))
        return ready_s

    def joined(self, operation: Any, joined_s: Floats) -> list[JoinedCollective]:
        """The collectives of all groups, whose workers join at ``joined_s``. Raises as ``times``."""
        known = self._joined
        if known is not None and known[0] is operation and known[1] is joined_s:
            return known[2]
        joined = []
        kind = signature(operation)
        for group in partition(operation.groups, self._job.workers):
            root = root_of(operation, group[0], group) if isinstance(operation, ops.Broadcast) else -1
            placed = self._placed.get((*kind, root, group))
            if placed is None:
                placed = self._placed[*kind, root, group] = self._place(of_one_worker(operation), group)
            times_s = joined_s[:, list(placed.each[0].members)]
            last_s = times_s.max(axis=1, keepdims=True)
            joined.append(JoinedCollective(placed, last_s, times_s - last_s, root))
        if self._shared and len(joined) > 1 and not all(each.on_each.each[0].access_only for each in joined):
            name = ops.name_of(type(operation))
            raise NotInLockstep(f"{name}: groups share links with each other (network.sharing)")
        self._joined = operation, joined_s, joined
        return joined

    def _place(self, operation: ops.Operation[Any], members: tuple[int, ...]) -> PlacedOnEach:
        taken = [each.choice.collective_of(operation, members, members[0]) for each in self._jobs]
        if any(own[0] is not taken[0][0] or own[1] != taken[0][1] for own in taken):
            raise NotInLockstep("the algorithms of collectives differ")
        return PlacedOnEach(
            tuple(place(*own, job.transfer) for own, job in zip(taken, self._jobs, strict=True))
        )


def of_one_worker(operation: Any) -> Any:
    """The operation with the value of worker 0 alone: all workers' values have equally many bytes."""
    value: Payload | None = getattr(operation, "value", None)
    if value is None:
        return operation
    return replace(operation, value=value.row(0) if isinstance(value, Encoded) else value[0])


def signature(operation: Any) -> tuple[Any, ...]:
    """All that determines a collective's messages in a group: its kind and its bytes."""
    value: Payload | None = getattr(operation, "value", None)
    kind = type(operation), getattr(operation, "length", None)
    if value is None:
        return kind
    if isinstance(value, Encoded):
        parts = tuple((part.shape, part.dtype) for part in value.parts)
        return *kind, value.codec, parts, value.length, value.dtype, value.whole, value.shards
    return *kind, value.shape, value.dtype
