"""One run in lockstep with a record of its operations, step by step."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from typing_extensions import override

from ...drivers.job import Job
from ...drivers.lockstep.driver import LockstepDriver
from ...drivers.lockstep.stacked import StackedTask
from ...drivers.outcome import run_record
from ...drivers.tasks.runner import InFlight
from ...program import operations as ops
from ...records.run import Run
from ...training.scoring import Scorer
from .tables import Row, Tables


class RecordingDriver(LockstepDriver):
    """A lockstep driver that keeps each step's operations in ``tables``; ``steps``: their numbers there."""

    def __init__(self, job: Job, scorer: Scorer[Tensor], tables: Tables) -> None:
        super().__init__(job, scorer)
        self._tables, self._now, self.steps = tables, list[Row](), list[int]()

    @override
    def complete(self, task: StackedTask, operation: ops.Operation[Any]) -> Any:
        self._now.append(self._tables.row_of(self.job, operation))
        return super().complete(task, operation)

    @override
    def issue(self, task: StackedTask, operation: ops.Operation[Any], handle: ops.Handle | None) -> InFlight:
        pending = super().issue(task, operation, handle)
        self._now.append(("start", self._tables.row_of(self.job, operation)[1]))
        return pending

    @override
    def wait(self, task: StackedTask, operation: ops.Wait) -> Any:
        self._now.append(("wait", 0))
        return super().wait(task, operation)

    @override
    def publish(self, task: StackedTask, operation: ops.Publish) -> None:
        super().publish(task, operation)
        self.steps.append(self._tables.number_of("steps", tuple(self._now)))
        self._now.clear()


def record(job: Job, tables: Tables) -> tuple[Run, list[int]]:
    """Run a job; return the run, and each step's number in ``tables``. Raises ``RunError``."""
    scorer = job.scorer()
    scorer.begin([job.start] * job.workers)
    driver = RecordingDriver(job, scorer, tables)
    return run_record(job, driver.run(), scorer, "simulated"), driver.steps
