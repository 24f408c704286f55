"""The lockstep driver: a synchronous scheme for all workers at once, in virtual time.

Every operation of the one coroutine is an operation of all workers, which each begin it at their own time. So
a step costs a few vector operations, whatever the number of workers. The driver does only what it can do
exactly (see ``exact``), and refuses anything else.

The workers' computations do not depend on time, so one coroutine serves any number of jobs that differ in
their clusters, each with a clock of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Final

from torch import Tensor
from typing_extensions import override

from ...errors import NotInLockstep
from ...program import operations as ops
from ...program.averaging import COLLECTIVES
from ...traffic.placing import complete_together
from ...training.scoring import Scorer
from ..job import Job
from ..outcome import Outcome
from ..tasks.runner import InFlight
from .lockstep_clock import LockstepClock, moved_alike
from .stacked import PublishedRows, StackedRunner, StackedTask

ROWS: Final = 64
"""Most jobs of a clock; times of as many stay in a processor's cache."""
_BEGUN_APART: Final = "a gradient and exchanges begun meanwhile are followed by the event driver"


class LockstepDriver(StackedRunner):
    """Runs a job's scheme once, for all workers, and keeps each worker's clock.

    Args:
        job: to run; ``exact.why_not`` has no objection.
        scorer: scores published models, and may end the run.
        others: further jobs, each with its scorer, whose workers compute the same (``same_mathematics``).
        progress: called with the total number of steps published so far.

    Attributes:
        clocks: of ``job`` and ``others``, one for all that are moved alike.
    """

    def __init__(
        self,
        job: Job,
        scorer: Scorer[Tensor],
        *others: tuple[Job, Scorer[Tensor]],
        progress: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__(job)
        self._progress = progress
        alike: dict[Hashable, list[int]] = {}
        for place, each in enumerate(all_jobs := ((job, scorer), *others)):
            alike.setdefault(moved_alike(*each), []).append(place)
        self._places = [own[i : i + ROWS] for own in alike.values() for i in range(0, len(own), ROWS)]
        self.clocks = [LockstepClock(*zip(*(all_jobs[i] for i in own), strict=True)) for own in self._places]
        self._running = [clock for clock in self.clocks if len(clock.running)]
        self._is_ending = False
        self._goes_on_after_end = False

    @property
    def messages(self) -> int:
        """Messages of all jobs."""
        return sum(clock.messages for clock in self.clocks)

    def run(self) -> Outcome:
        """Run ``job`` to its outcome. Raises ``NotInLockstep``, or ``RunError`` if the scheme failed."""
        outcome = self.run_all()[0]
        if outcome is None:
            raise NotInLockstep(self.clocks[0].refusal)
        return outcome

    def run_all(self) -> list[Outcome | None]:
        """Run all jobs; outcomes, None where a job must be run by itself. Raises as ``run``, for all jobs."""
        try:
            if self._running:
                self.begin(0)
        finally:
            self.close(0)
        outcomes: dict[int, Outcome | None] = {}
        for places, clock in zip(self._places, self.clocks, strict=True):
            early = set(clock.outcomes) if self._goes_on_after_end else set()
            if clock in self._running:
                clock.end_others(clock.running[:0])
            for row, place in enumerate(places):
                outcomes[place] = None if clock.refusal or row in early else clock.outcomes[row]
        return [outcomes[place] for place in range(len(outcomes))]

    def _move(self, move: Callable[[LockstepClock], None]) -> None:
        """Move all running clocks; drop inexact ones, and raise without any."""
        self._goes_on_after_end |= self._is_ending
        for clock in tuple(self._running):
            try:
                move(clock)
            except NotInLockstep as error:
                clock.refusal = str(error)
                self._running.remove(clock)
                if all(each.refusal for each in self.clocks):
                    raise

    @override
    def complete(self, task: StackedTask, operation: ops.Operation[Any]) -> Any:
        reply = super().complete(task, operation)
        if isinstance(operation, COLLECTIVES) and len(self._running) > 1:
            complete_together([each for clock in self._running for each in clock.collectives(operation)])
        self._move(lambda clock: clock.complete(operation))
        return reply

    @override
    def issue(self, task: StackedTask, operation: ops.Operation[Any], handle: ops.Handle | None) -> InFlight:
        if isinstance(operation, ops.Gradient):
            raise NotInLockstep(_BEGUN_APART)
        self._move(LockstepClock.check_one_begun)
        pending = super().issue(task, operation, handle)
        assert handle is not None
        if not isinstance(operation, ops.Mix):
            raise NotInLockstep(f"{pending.name} overlaps something else")
        number = handle.number
        self._move(lambda clock: clock.start(operation, number))
        return pending

    @override
    def wait(self, task: StackedTask, operation: ops.Wait) -> Any:
        reply = super().wait(task, operation)
        self._move(lambda clock: clock.wait(operation.handle.number))
        return reply

    @override
    def next_segment(self, task: StackedTask, operation: ops.NextSegment) -> ops.Segment | None:
        raise NotInLockstep(_BEGUN_APART)

    @override
    def next_step(self, task: StackedTask, operation: ops.NextStep) -> bool:
        goes_on = super().next_step(task, operation)
        needing = [(clock, clock.next_step(operation.step, goes_on)) for clock in self._running]
        # If none needs it all running jobs end here, and take part in operations after the last step.
        self._is_ending = not any(len(rows) for _, rows in needing)
        if not self._is_ending:
            for clock, rows in needing:
                clock.end_others(rows)
            self._running = [clock for clock, rows in needing if len(rows)]
        return not self._is_ending

    @override
    def publish(self, task: StackedTask, operation: ops.Publish) -> None:
        super().publish(task, operation)
        published = PublishedRows(operation)
        self._move(lambda clock: clock.publish(published))
        if self._progress is not None:
            self._progress((operation.step + 1) * self.job.workers)


def same_mathematics(a: Job, b: Job) -> bool:
    """Whether the workers of two jobs compute the same in lockstep, whatever their clusters."""
    return a.problem is b.problem and _seen_by_scheme(a) == _seen_by_scheme(b)


def _seen_by_scheme(job: Job) -> tuple[Any, ...]:
    """All parts of a job but the model that a scheme, or the answers to its operations, depend on."""
    return (
        job.scheme, job.options, job.workers, job.seed, job.optimizer, job.bytes_per_parameter,
        job.layers.segments, job.max_iterations, job.transfer.network.site_of, job.transfer.network.node_of,
        len(job.start), job.collectives.sums_inside,
        job.scoring.time_s, job.scoring.time_s and job.scoring.every,
    )  # fmt: skip
