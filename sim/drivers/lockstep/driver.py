"""The lockstep driver: a synchronous scheme for all workers at once, in virtual time.

Every operation of the one coroutine is an operation of all workers; each of them begins it at a time of its
own. So a step costs a few operations on vectors, whatever the number of workers. It does only what it can do
exactly (see ``exact``), and says so where it meets something else.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from torch import Tensor
from typing_extensions import override

from ...collectives.pricing import Integers
from ...errors import NotInLockstep
from ...program import operations as ops
from ...seeds import Floats
from ...training.scoring import Scorer
from ...training.snapshots import INSTANT
from ..job import Job
from ..outcome import Outcome
from ..tasks import InFlight
from .accounts import StackedAccounts, StackedOperation
from .collectives import CollectiveTimes
from .durations import Durations
from .messages import MixTimes
from .published import PublishedSteps
from .stacked import StackedRunner, StackedTask

_BEGUN_APART: Final = "a gradient and what goes on beside it are followed by the event driver"


class LockstepDriver(StackedRunner):
    """Runs a job's scheme once, for all workers, and keeps each worker's clock.

    Args:
        job: what to run; ``exact.why_not`` has no objection.
        scorer: scores what is published, and may end the run.
        progress: called with the total number of steps published so far.
    """

    def __init__(
        self, job: Job, scorer: Scorer[Tensor], *, progress: Callable[[int], None] | None = None
    ) -> None:
        super().__init__(job)
        n = job.workers
        self._progress = progress
        self._limit_s = job.max_time_s
        may_be_cut = scorer.scores or self._limit_s < math.inf
        self._accounts = StackedAccounts(n, job.event_log(), may_be_cut)
        self._steps = PublishedSteps(job, scorer, may_be_cut)
        self._durations = Durations(job.compute, n)
        self._mixes = MixTimes(job.transfer, may_be_cut)
        self._collectives = CollectiveTimes(job)
        self._now_s: Floats = np.zeros(n)
        self._sent: Integers = np.zeros(n, np.int64)
        self._done = 0
        self._begun: dict[int, StackedOperation] = {}  # started, by handle, not yet waited for
        self.messages = 0

    def run(self) -> Outcome:
        """Run to the end.

        Raises:
            NotInLockstep: the event driver is needed for this job.
            RunError: the scheme raised or broke a rule.
        """
        try:
            self.begin(0)
        finally:
            self.close(0)
        last_s = float(self._now_s.max())
        if self._steps.over_s == math.inf:
            self._steps.hand_over(min(last_s, self._limit_s), last_s)
        wall_s = min(self._steps.over_s, self._limit_s, last_s)
        # What a score ends, it ends after all that happens at that instant.
        instant_s = wall_s / (1 - INSTANT) if wall_s == self._steps.over_s else wall_s
        if wall_s < last_s:
            self._accounts.cut(wall_s, instant_s)
        else:
            self._accounts.settle(last_s)
        finals, leader, steps = self._steps.finals(instant_s)
        return Outcome(
            wall_s=wall_s,
            breakdowns=self._accounts.breakdowns(steps, self._now_s, instant_s),
            finals=finals,
            leader=leader,
            events=self._accounts.events(),
            status="completed",
        )

    # --- operations that take time --------------------------------------------------------------

    @override
    def complete(self, task: StackedTask, operation: ops.Operation[Any]) -> Any:
        reply = super().complete(task, operation)
        if isinstance(operation, ops.Gradient):
            end_s = self._now_s + self._durations.next_s()
            self._enter("gradient", self._now_s, end_s, self._now_s, self._now_s, blocks=False)
        elif isinstance(operation, ops.Sleep):
            end_s = self._now_s + operation.duration_s
            self._enter("sleep", self._now_s, end_s, end_s, end_s)
        else:
            end_s = self._exchange(operation, handle=-1).end_s
        self._now_s = end_s
        return reply

    @override
    def issue(self, task: StackedTask, operation: ops.Operation[Any], handle: ops.Handle | None) -> InFlight:
        if isinstance(operation, ops.Gradient):
            raise NotInLockstep(_BEGUN_APART)
        if self._begun:
            raise NotInLockstep("several exchanges are under way at once on each worker")
        pending = super().issue(task, operation, handle)
        assert handle is not None
        if isinstance(operation, ops.Mix):
            self._begun[handle.number] = self._exchange(operation, handle.number)
            return pending
        raise NotInLockstep(f"{pending.name} goes on beside something else")

    @override
    def wait(self, task: StackedTask, operation: ops.Wait) -> Any:
        reply = super().wait(task, operation)
        begun = self._begun.pop(operation.handle.number)
        end_s = np.maximum(self._now_s, begun.end_s)
        self._enter(
            "wait", self._now_s, end_s, begun.peer_s, begun.known_s, peer=begun.peer, handle=begun.handle
        )
        self._now_s = end_s
        return reply

    @override
    def next_segment(self, task: StackedTask, operation: ops.NextSegment) -> ops.Segment | None:
        raise NotInLockstep(_BEGUN_APART)

    def _exchange(self, operation: Any, handle: int) -> StackedOperation:
        """Begin a mix or a collective on every worker now."""
        name, begin_s = ops.name_of(type(operation)), self._now_s
        blocks = handle < 0
        if isinstance(operation, ops.Mix):
            if self._begun:
                raise NotInLockstep("several exchanges are under way at once on each worker")
            self._collectives.check_idle(begin_s)
            mixed = self._mixes.times(operation.pattern, begin_s, self.job.num_bytes(_row(operation.value)))
            self.messages += mixed.messages
            self._sent = self._sent + mixed.num_bytes
            return self._enter(
                name, begin_s, mixed.end_s, mixed.peer_s, mixed.known_s, blocks, mixed.num_bytes, mixed.peer,
                handle,
            )  # fmt: skip
        collected = self._collectives.times(operation, begin_s)
        self.messages += collected.messages
        self._sent = self._sent + collected.num_bytes
        return self._enter(
            name, begin_s, collected.end_s, collected.last_s, None, blocks, collected.num_bytes
        )

    def _enter(
        self,
        name: str,
        start_s: Floats,
        end_s: Floats,
        peer_s: Floats,
        known_s: Floats | None,
        blocks: bool = True,
        num_bytes: int | Integers = 0,
        peer: int | Integers = -1,
        handle: int = -1,
    ) -> StackedOperation:
        entry = StackedOperation(
            name, self._done, start_s, end_s, peer_s, known_s, blocks, num_bytes, peer, handle
        )
        self._accounts.add(entry)
        return entry

    # --- steps ----------------------------------------------------------------------------------

    @override
    def next_step(self, task: StackedTask, operation: ops.NextStep) -> bool:
        goes_on = super().next_step(task, operation)
        if not goes_on:
            now_s = self._now_s
            self._accounts.add(
                StackedOperation("next_step", operation.step, now_s, now_s, now_s, now_s, blocks=False)
            )
        return goes_on and self._steps.over_s == math.inf and float(self._now_s.min()) <= self._limit_s

    @override
    def publish(self, task: StackedTask, operation: ops.Publish) -> None:
        if self._begun:
            raise NotInLockstep("an exchange is under way from one step to the next")
        super().publish(task, operation)
        self._done = operation.step + 1
        self._steps.add(self._now_s, self._sent, operation)
        if self._progress is not None:
            self._progress(self._done * self.job.workers)
        earliest_s = float(self._now_s.min())
        if not self._steps.hand_over(min(earliest_s, self._limit_s), earliest_s):
            self._accounts.settle(min(earliest_s, self._limit_s))


def _row(value: Any) -> Any:
    """What one worker sends, of what all of them send."""
    return value[0] if isinstance(value, Tensor) else value.row(0)
