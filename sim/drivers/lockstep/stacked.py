"""All workers as one value [n, d], without a clock.

A synchronous scheme is one coroutine for all workers: the mathematics alone, vectorised. It agrees with the
event driver wherever a scheme makes no difference between one worker and all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from ...errors import NotInLockstep
from ...program import operations as ops
from ...program.averaging import COLLECTIVES, combined, mean_of_rows, part, root_of, weighted_sum_vectorised
from ...program.encoding import decoded
from ...program.groups import partition
from ...training.gradients import loss_given
from ..job import Job
from ..tasks.runner import CoroutineTask, InFlight, Runner

_BY_SIZE = (ops.ReduceScatter, ops.AllGather)
"""Operations whose reply's shape depends on the size of the group."""
_MEANS = (ops.AllReduce, ops.ReduceScatter)
"""Operations that average all values of a group."""

_ELSEWHERE = "run on the event driver"

StackedTask = CoroutineTask[InFlight]


class StackedRunner(Runner[InFlight]):
    """Runs a job's scheme once, on the values of all workers; ``published``: their last ones [n, d].

    Raises ``NotInLockstep`` where the scheme has services.
    """

    def __init__(self, job: Job) -> None:
        worker = job.vectorised_worker()
        super().__init__(job, {0: job.scheme.start(worker, job.options)})
        self.published = worker.start
        self._gradients = 0
        # Of the latest gradient, or its number where nothing is trained.
        self._loss: Tensor | int | None = None
        self._replies: dict[type, Callable[[Any], Any]] = {
            ops.Gradient: self._gradient,
            ops.Mix: self._mix,
            **dict.fromkeys(COLLECTIVES, self._collective),
            ops.Sleep: lambda sleep: None,
            ops.Encode: lambda encode: None,
            ops.Evaluate: lambda evaluate: None,
            ops.SpendRound: lambda of_round: None,
        }
        self.handlers |= {
            **dict.fromkeys(self._replies, self.complete),
            ops.NextStep: self.next_step,
            ops.Publish: self.publish,
            ops.BatchLoss: self._batch_loss,
            ops.Wait: self.wait,
            ops.NextSegment: self.next_segment,
        }
        if len(self.tasks[0]) > 1:
            self.close(0)
            raise NotInLockstep(f"{job.scheme.name} has services: {_ELSEWHERE}")

    def complete(self, task: StackedTask, operation: ops.Operation[Any]) -> Any:
        """All workers' reply to an awaited operation."""
        value = getattr(operation, "value", None)
        if isinstance(value, Tensor) and (value.dim() == 0 or len(value) != self.job.workers):
            name = ops.name_of(type(operation))
            raise NotInLockstep(f"{name} takes a value that is not of all workers: {_ELSEWHERE}")
        return self._replies[type(operation)](operation)

    @override
    def issue(self, task: StackedTask, operation: ops.Operation[Any], handle: ops.Handle | None) -> InFlight:
        answer = self._replies.get(type(operation))
        if answer is None or handle is None:
            raise NotInLockstep(f"{ops.name_of(type(operation))} does not run in lockstep: {_ELSEWHERE}")
        pending = InFlight(task, ops.name_of(type(operation)), operation, 0.0, handle)
        value = getattr(operation, "value", None)
        if value is not None:
            pending.version = value._version
        before = self._loss
        pending.reply = answer(operation)
        pending.loss, self._loss = self._loss, before
        task.outstanding[handle.number] = pending
        return pending

    def next_step(self, task: StackedTask, operation: ops.NextStep) -> bool:
        """Whether to do another step."""
        limit = self.job.max_iterations
        return limit is None or operation.step < limit

    def publish(self, task: StackedTask, operation: ops.Publish) -> None:
        """Take a publication of all workers."""
        self.published = operation.value

    def wait(self, task: StackedTask, operation: ops.Wait) -> Any:
        """All workers' reply to a started operation."""
        pending = self.started(task, operation.handle)
        del task.outstanding[operation.handle.number]
        if isinstance(pending.operation, ops.Gradient):
            self._loss = pending.loss
        pending.check_sent()
        return pending.reply

    def next_segment(self, task: StackedTask, operation: ops.NextSegment) -> ops.Segment | None:
        """All workers' next segment of a started gradient."""
        pending = self.started(task, operation.handle)
        if pending.shown == len(self.job.layers.segments):
            del task.outstanding[operation.handle.number]
            return None
        name, start, stop = self.job.layers.segments[pending.shown]
        pending.shown += 1
        value: Tensor = pending.reply
        self._loss = pending.loss
        return ops.Segment(name, start, stop, value[..., start:stop])

    def _mix(self, mix: ops.Mix) -> Tensor:
        value = decoded(mix.value)
        if self.job.problem is None:  # nothing to average: only the messages count
            return value
        return weighted_sum_vectorised(mix.pattern, value)

    def _collective(self, operation: Any) -> Tensor | None:
        """All workers' reply, [n, ...]; of an all-gather among all workers one reply for all."""
        if isinstance(operation, ops.Barrier):
            return None
        if isinstance(operation, ops.AllReduce) and self.job.problem is None:
            everybody = decoded(operation.value)
            return everybody[:1].expand_as(everybody)
        groups = partition(operation.groups, self.job.workers)
        if isinstance(operation, ops.AllGather) and operation.groups is None:
            return operation.value
        if len({len(group) for group in groups}) > 1 and isinstance(operation, _BY_SIZE):
            name = ops.name_of(type(operation))
            raise NotInLockstep(f"{name} in groups of different sizes does not run in lockstep: {_ELSEWHERE}")
        half = ops.adds_in_half(operation)
        value: Any = operation.value if half else decoded(operation.value)
        rows: list[Tensor] = [torch.empty(0)] * self.job.workers
        for group in groups:
            if isinstance(operation, ops.Broadcast):
                result = value[root_of(operation, group[0], group)]
            elif isinstance(operation, _MEANS) and not half and len(group) == self.job.workers:
                result = mean_of_rows(value)
            else:
                one = value.row if half else value.__getitem__
                result = combined(operation, [one(rank) for rank in group], group)
            for position, rank in enumerate(group):
                rows[rank] = part(operation, result, position, len(group))
        if operation.groups is None and not isinstance(operation, ops.ReduceScatter):
            return rows[0].expand(self.job.workers, *rows[0].shape)
        return torch.stack(rows)

    def _batch_loss(self, task: StackedTask, operation: ops.BatchLoss) -> Tensor:
        if isinstance(self._loss, int):
            return torch.stack([self.job.drawn_loss(rank, self._loss) for rank in range(self.job.workers)])
        return loss_given(self._loss, 0)

    def _gradient(self, operation: ops.Gradient) -> Tensor:
        if operation.part is not None:
            raise NotInLockstep(f"gradients of parts of a batch do not run in lockstep: {_ELSEWHERE}")
        index = self._gradients
        self._gradients += 1
        if self.job.problem is None:
            self._loss = index
            return operation.point
        evaluated = self.job.problem.gradients_of_all(index, operation.point)
        self._loss = evaluated.loss
        return evaluated.value
