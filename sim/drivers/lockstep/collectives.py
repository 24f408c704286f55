"""When a collective ends on every worker, given when each of them joined it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...collectives.blocks import BlockSchedule
from ...errors import NotInLockstep
from ...program import operations as ops
from ...program.averaging import root_of
from ...program.encoding import Encoded, Payload
from ...program.groups import partition
from ...seeds import Floats, Integers
from ..blocks import PlacedBlocks, place_blocks
from ..collectives import PRICED_WORK, Placed, PlacedRounds, place_rounds
from ..job import Job
from ..tables import PlacedTable, place_table


@dataclass(frozen=True, slots=True, eq=False)
class Collected:
    """When a collective ends; vectors [n].

    Attributes:
        end_s: on each worker.
        last_s: when the last member of its group had joined; of a broadcast, the root.
        num_bytes: that each sends.
        messages: how many there are.
        work: as how many they count, see ``PRICED_WORK``.
    """

    end_s: Floats
    last_s: Floats
    num_bytes: Integers
    messages: int
    work: int


class CollectiveTimes:
    """Times the collectives of a run, each as a whole.

    Args:
        job: whose they are.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._shared = job.transfer.sharing != "none"
        self._placed: dict[tuple[int, tuple[int, ...]], Placed] = {}
        self._rounds: dict[int, PlacedRounds | None] = {}  # by bytes
        self._idle_s = np.zeros(job.workers)  # until when bytes of collectives use a host's links

    def check_idle(self, begin_s: Floats) -> None:
        """Check that nothing of a collective is on the links of workers that begin an exchange [n].

        Raises:
            NotInLockstep: something is.
        """
        if (begin_s < self._idle_s).any():
            raise NotInLockstep("bytes of a collective are on their way when the next exchange begins")

    def times(self, operation: Any, joined_s: Floats) -> Collected:
        """When a collective that each worker joins at ``joined_s`` [n] ends.

        Args:
            operation: with the values of all workers.
            joined_s: by rank.

        Raises:
            NotInLockstep: its messages have to be followed one by one.
        """
        self.check_idle(joined_s)
        n = self._job.workers
        end_s, last_of_all_s, sent = np.empty(n), np.empty(n), np.empty(n, np.int64)
        messages = work = 0
        for placed, last_s, ready_s in self.begun(operation, joined_s):
            members = list(placed.members)
            done_s, idle_s = placed.completion(ready_s)
            if isinstance(operation, ops.Broadcast):  # which nobody but those below waits for
                end_s[members] = last_s + np.array(done_s)
                root_s = joined_s[root_of(operation, members[0], placed.members)]
                last_of_all_s[members] = np.maximum(joined_s[members], root_s)
            else:
                end_s[members] = last_s + np.maximum(done_s, 0.0)
                last_of_all_s[members] = last_s
            meets_all = self._shared and not placed.access_only
            self._idle_s[members] = last_s + (max(done_s) if meets_all else np.array(idle_s))
            sent[members] = placed.bytes_sent
            messages += placed.messages
            work += min(placed.messages, PRICED_WORK * len(members))
        return Collected(end_s, last_of_all_s, sent, messages, work)

    def begun(self, operation: Any, joined_s: Floats) -> Iterator[tuple[Placed, float, tuple[float, ...]]]:
        """Each group's collective, when the last member joins it, and when each does, counted from then.

        Raises:
            NotInLockstep: as ``times``.
        """
        own = _of_one_worker(operation)
        for group in partition(operation.groups, self._job.workers):
            placed = self._place(own, group)
            joined = joined_s[list(placed.members)]
            last_s = float(joined.max())
            yield placed, last_s, tuple((joined - last_s).tolist())

    def _place(self, operation: ops.Operation[Any], members: tuple[int, ...]) -> Placed:
        job, name = self._job, ops.name_of(type(operation))
        if isinstance(operation, ops.AllReduce) and len(members) == job.workers:
            num_bytes = job.num_bytes(operation.value)
            if num_bytes not in self._rounds:
                self._rounds[num_bytes] = place_rounds(job, operation, members)
            rounds = self._rounds[num_bytes]
            if rounds is not None:
                return rounds
        blocks = job.blocks_of(operation, members, members[0])
        schedule, order = blocks or job.table_of(operation, members, members[0])
        known = self._placed.get((id(schedule), order))
        if isinstance(known, PlacedBlocks | PlacedTable) and known.schedule is schedule:
            return known
        placed = place_blocks(schedule, order, job.transfer) if isinstance(schedule, BlockSchedule) else (
            place_table(schedule, order, job.transfer)
        )  # fmt: skip
        if placed is None:
            raise NotInLockstep(f"{name}: its messages have to be followed one by one (network.transport)")
        if self._shared and len(members) < job.workers and not placed.access_only:
            raise NotInLockstep(f"{name}: groups share links with each other (network.sharing)")
        self._placed[id(schedule), order] = placed
        return placed


def _of_one_worker(operation: Any) -> Any:
    """The operation with the value of worker 0 alone: all workers' values have as many bytes."""
    value: Payload | None = getattr(operation, "value", None)
    if value is None:
        return operation
    return replace(operation, value=value.row(0) if isinstance(value, Encoded) else value[0])
