"""The stacked driver: all workers as one value [n, d], without a clock.

A synchronous scheme is one coroutine here, for everybody. It is what a lockstep clock grows on, and its
agreement with the event driver is what shows that a scheme is stackable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..errors import SchemeError
from ..program import operations as ops
from ..program.averaging import COLLECTIVES, combined, part, root_of, weighted_sum_vectorised
from ..program.encoding import decoded
from ..program.groups import partition
from ..training.gradients import loss_given
from ..training.scoring import Scorer
from .job import Job

_BY_SIZE = (ops.ReduceScatter, ops.AllGather)
"""Operations whose reply's shape depends on the size of the group."""

_ELSEWHERE = "run on the event driver"


def run_lockstep(job: Job, scorer: Scorer | None = None) -> Tensor:
    """Run a synchronous scheme to its end and return the last published values [n, d].

    Raises:
        SchemeError: the scheme uses an operation that has no stacked meaning.
    """
    return _Lockstep(job, scorer).run()


class _Lockstep:
    def __init__(self, job: Job, scorer: Scorer | None) -> None:
        self._job = job
        self._scorer = scorer
        self._worker = job.vectorised_worker()
        self._published = self._worker.start
        self._gradients = 0
        self._over = False
        self._loss: Tensor | None = None
        self._started: dict[int, tuple[Any, Tensor | None]] = {}
        self._shown: dict[int, int] = {}
        self._handles = 0
        self._handlers: dict[type, Callable[[Any], Any]] = {
            ops.NextStep: self._next_step,
            ops.Publish: self._publish,
            ops.Gradient: self._gradient,
            ops.BatchLoss: lambda op: loss_given(self._loss, 0),
            ops.Mix: lambda op: weighted_sum_vectorised(op.pattern, decoded(op.value)),
            **dict.fromkeys(COLLECTIVES, self._collective),
            ops.Sleep: lambda op: None,
            ops.Start: self._start,
            ops.Wait: self._wait,
            ops.NextSegment: self._next_segment,
        }

    def run(self) -> Tensor:
        program = self._job.scheme.start(self._worker, self._job.options)
        if program.services:
            for coroutine in (program.main, *program.services):
                coroutine.close()
            raise SchemeError(f"{self._job.scheme.name} has services: it runs on the event driver only")
        coroutine = program.main
        reply: Any = None
        try:
            while True:
                operation = coroutine.send(reply)
                reply = self._do(operation)
        except StopIteration:
            return self._published
        finally:
            coroutine.close()

    def _do(self, operation: ops.Operation[Any]) -> Any:
        handler = self._handlers.get(type(operation))
        if handler is None:
            raise SchemeError(f"{type(operation).__name__} has no stacked meaning: {_ELSEWHERE}")
        return handler(operation)

    def _collective(self, operation: Any) -> Tensor | None:
        """Everybody's reply, [n, ...]; of an all-gather among all workers one for all."""
        groups = partition(operation.groups, self._job.workers)
        if isinstance(operation, ops.Barrier):
            return None
        if isinstance(operation, ops.AllGather) and operation.groups is None:
            return operation.value
        if len({len(group) for group in groups}) > 1 and isinstance(operation, _BY_SIZE):
            name = ops.name_of(type(operation))
            raise SchemeError(f"{name} in groups of different sizes has no stacked meaning: {_ELSEWHERE}")
        value = decoded(operation.value)
        rows: list[Tensor] = [torch.empty(0)] * self._job.workers
        for group in groups:
            if isinstance(operation, ops.Broadcast):
                result = value[root_of(operation, group[0], group)]
            else:
                result = combined(operation, [value[rank] for rank in group], group)
            for position, rank in enumerate(group):
                rows[rank] = part(operation, result, position, len(group))
        if operation.groups is None and not isinstance(operation, ops.ReduceScatter):
            return rows[0].expand(self._job.workers, *rows[0].shape)
        return torch.stack(rows)

    def _next_step(self, operation: ops.NextStep) -> bool:
        limit = self._job.max_iterations
        return not self._over and (limit is None or operation.step < limit)

    def _publish(self, operation: ops.Publish) -> None:
        self._published = operation.value
        if self._scorer is not None:
            leaders = [None] * self._job.workers if operation.leader is None else operation.leader.unbind()
            for worker, (value, leader) in enumerate(zip(operation.value.unbind(), leaders, strict=True)):
                self._over |= self._scorer.publish(
                    worker, operation.step, 0.0, value, leader=leader, notes=operation.notes
                )

    def _gradient(self, operation: ops.Gradient) -> Tensor:
        problem, n = self._job.problem, self._job.workers
        index = self._gradients
        self._gradients += 1
        if problem is None:
            self._loss = torch.zeros(n, 1)
            return operation.point
        found = problem.gradients(list(range(n)), [index] * n, list(operation.point.unbind()))
        self._loss = torch.stack([each.loss for each in found])
        return torch.stack([each.value for each in found])

    def _start(self, operation: ops.Start) -> ops.Handle:
        handle = ops.Handle(self._handles, operation.operation)
        self._handles += 1
        before = self._loss
        self._started[handle.number] = (self._do(operation.operation), self._loss)
        self._loss = before
        return handle

    def _wait(self, operation: ops.Wait) -> Any:
        reply, loss = self._started.pop(operation.handle.number)
        if isinstance(operation.handle.operation, ops.Gradient):
            self._loss = loss
        return reply

    def _next_segment(self, operation: ops.NextSegment) -> ops.Segment | None:
        number = operation.handle.number
        shown = self._shown.get(number, 0)
        if shown == len(self._job.segments):
            del self._shown[number], self._started[number]
            return None
        self._shown[number] = shown + 1
        name, start, stop = self._job.segments[shown]
        value: Tensor
        value, self._loss = self._started[number]
        return ops.Segment(name, start, stop, value[..., start:stop])
