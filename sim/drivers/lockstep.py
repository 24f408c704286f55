"""The lockstep driver: all workers as one value [n, d], without a clock.

A synchronous scheme is one coroutine here, for everybody: the mathematics alone, vectorised over workers. It
agrees with the event driver wherever a scheme makes no difference between one worker and all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from ..errors import SchemeError
from ..program import operations as ops
from ..program.averaging import COLLECTIVES, combined, part, root_of, weighted_sum_vectorised
from ..program.encoding import decoded
from ..program.groups import partition
from ..training.gradients import loss_given
from ..training.scoring import Scorer
from .job import Job
from .tasks import CoroutineTask, InFlight, Runner

_BY_SIZE = (ops.ReduceScatter, ops.AllGather)
"""Operations whose reply's shape depends on the size of the group."""

_ELSEWHERE = "run on the event driver"

_Task = CoroutineTask[InFlight]


def run_lockstep(job: Job, scorer: Scorer[Tensor] | None = None) -> Tensor:
    """Run a synchronous scheme to its end and return the last published values [n, d].

    Raises:
        SchemeError: the scheme uses an operation that cannot be done for all workers at once.
    """
    return _Lockstep(job, scorer).run()


class _Lockstep(Runner[InFlight]):
    def __init__(self, job: Job, scorer: Scorer[Tensor] | None) -> None:
        worker = job.vectorised_worker()
        super().__init__(job, {0: job.scheme.start(worker, job.options)})
        self._scorer = scorer
        self._published = worker.start
        self._gradients = 0
        self._over = False
        self._loss: Tensor | None = None
        self._answers: dict[type, Callable[[Any, Any], Any]] = {
            ops.Gradient: self._gradient,
            ops.Mix: lambda _, mix: weighted_sum_vectorised(mix.pattern, decoded(mix.value)),
            **dict.fromkeys(COLLECTIVES, self._collective),
            ops.Sleep: lambda task, sleep: None,
        }
        self.handlers |= self._answers | {
            ops.NextStep: self._next_step,
            ops.Publish: self._publish,
            ops.BatchLoss: lambda task, _: loss_given(self._loss, 0),
            ops.Wait: self._wait,
            ops.NextSegment: self._next_segment,
        }

    def run(self) -> Tensor:
        try:
            if len(self.tasks[0]) > 1:
                raise SchemeError(f"{self.job.scheme.name} has services: it runs on the event driver only")
            self.begin(0)
            return self._published
        finally:
            self.close(0)

    @override
    def issue(self, task: _Task, operation: ops.Operation[Any], handle: ops.Handle | None) -> InFlight:
        answer = self._answers.get(type(operation))
        if answer is None or handle is None:
            raise SchemeError(f"{type(operation).__name__} does not run in lockstep: {_ELSEWHERE}")
        pending = InFlight(task, ops.name_of(type(operation)), operation, 0.0, handle)
        before = self._loss
        pending.reply = answer(task, operation)
        pending.loss, self._loss = self._loss, before
        task.outstanding[handle.number] = pending
        return pending

    def _collective(self, task: _Task, operation: Any) -> Tensor | None:
        """Everybody's reply, [n, ...]; of an all-gather among all workers one for all."""
        groups = partition(operation.groups, self.job.workers)
        if isinstance(operation, ops.Barrier):
            return None
        if isinstance(operation, ops.AllGather) and operation.groups is None:
            return operation.value
        if len({len(group) for group in groups}) > 1 and isinstance(operation, _BY_SIZE):
            name = ops.name_of(type(operation))
            raise SchemeError(f"{name} in groups of different sizes does not run in lockstep: {_ELSEWHERE}")
        value = decoded(operation.value)
        rows: list[Tensor] = [torch.empty(0)] * self.job.workers
        for group in groups:
            if isinstance(operation, ops.Broadcast):
                result = value[root_of(operation, group[0], group)]
            else:
                result = combined(operation, [value[rank] for rank in group], group)
            for position, rank in enumerate(group):
                rows[rank] = part(operation, result, position, len(group))
        if operation.groups is None and not isinstance(operation, ops.ReduceScatter):
            return rows[0].expand(self.job.workers, *rows[0].shape)
        return torch.stack(rows)

    def _next_step(self, task: _Task, operation: ops.NextStep) -> bool:
        limit = self.job.max_iterations
        return not self._over and (limit is None or operation.step < limit)

    def _publish(self, task: _Task, operation: ops.Publish) -> None:
        self._published = operation.value
        if self._scorer is not None:
            for worker in range(self.job.workers):
                own = replace(
                    operation,
                    value=operation.value[worker],
                    leader=None if operation.leader is None else operation.leader[worker],
                    averaged=None if operation.averaged is None else operation.averaged[worker],
                )
                self._scorer.publish(self.job.published(worker, 0.0, 0, own))
            self._over |= self._scorer.settle()

    def _gradient(self, task: _Task, operation: ops.Gradient) -> Tensor:
        problem, n = self.job.problem, self.job.workers
        index = self._gradients
        self._gradients += 1
        if problem is None:
            self._loss = torch.zeros(n, 1)
            return operation.point
        evaluated = problem.gradients(list(range(n)), [index] * n, list(operation.point.unbind()))
        self._loss = torch.stack([each.loss for each in evaluated])
        return torch.stack([each.value for each in evaluated])

    def _wait(self, task: _Task, operation: ops.Wait) -> Any:
        pending = self.started(task, operation.handle)
        del task.outstanding[operation.handle.number]
        if isinstance(pending.operation, ops.Gradient):
            self._loss = pending.loss
        return pending.reply

    def _next_segment(self, task: _Task, operation: ops.NextSegment) -> ops.Segment | None:
        pending = self.started(task, operation.handle)
        if pending.shown == len(self.job.segments):
            del task.outstanding[operation.handle.number]
            return None
        name, start, stop = self.job.segments[pending.shown]
        pending.shown += 1
        value: Tensor = pending.reply
        self._loss = pending.loss
        return ops.Segment(name, start, stop, value[..., start:stop])
