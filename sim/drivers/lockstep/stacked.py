"""All workers as one value [n, d], and what they publish, in the order of time.

A synchronous scheme is one coroutine for all workers: the mathematics alone, vectorised. It agrees with the
event driver wherever a scheme makes no difference between one worker and all of them.

Workers that do not wait for each other are at different steps at the same time. So publications are sorted by
time: one is handed to the scorer as soon as no earlier one can come, when all workers have reached its time.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from ...errors import NotInLockstep
from ...program import operations as ops
from ...program.averaging import COLLECTIVES, combined, mean_of_rows, part, root_of, weighted_sum_vectorised
from ...program.encoding import decoded
from ...program.groups import partition
from ...records.run import On, Pace
from ...seeds import Floats, Integers
from ...training.gradients import loss_given
from ...training.scoring import Scorer
from ...training.snapshots import Keep, Published
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


KeptRows = Sequence[Tensor | None]
"""A value of each worker [d]; None: nothing is kept."""


class PublishedRows:
    """One publication of all workers; each job takes what its own clock needs."""

    def __init__(self, operation: ops.Publish) -> None:
        self.operation = operation
        self._kept: dict[tuple[Keep, tuple[On, ...], int | None], tuple[KeptRows, ...]] = {}

    def kept_for(self, job: Job) -> tuple[KeptRows, ...]:
        """Models, leaders and averages that a job keeps: shared by all jobs that keep and score alike."""
        key = job.scoring.keeps, job.scoring.scored_on, job.scoring.gradient_noise
        if key not in self._kept:
            nothing = [None] * job.workers
            kept = job.kept(self.operation)
            self._kept[key] = tuple(nothing if each is None else each.unbind() for each in kept)
        return self._kept[key]


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """One step of all workers: publication times, bytes sent and averages done by then, and values."""

    number: int
    times_s: Floats
    bytes_sent: Integers
    averages: Integers
    published: PublishedRows


class PublishedSteps:
    """The published steps of jobs that do the same, and which of them each one's scorer knows.

    Unless the runs may be cut off, or something is scored, only the last step is kept. ``over_s``: the
    instant whose score has ended each run; infinite before.
    """

    def __init__(self, jobs: Sequence[Job], scorers: Sequence[Scorer[Tensor]], may_be_cut: bool) -> None:
        self._jobs, self._scorers = jobs, scorers
        self._workers = jobs[0].workers
        self._may_be_cut = may_be_cut
        self._churns = any(job.churn is not None for job in jobs)
        self._steps: deque[_Step] = deque()
        self._known = np.zeros((len(jobs), self._workers), np.int64)  # steps known to a scorer
        self.ends_s: list[Floats] = []  # of jobs with faults: when all were through with each step
        self.over_s = np.array([0.0 if scorer.over else math.inf for scorer in scorers])

    def add(self, times_s: Floats, bytes_sent: Integers, published: PublishedRows) -> None:
        """Add a step of all workers, with each one's time [jobs, n] and bytes sent so far."""
        if self._churns:
            self.ends_s.append(times_s.max(axis=1))
        last = self._steps[-1] if self._steps else None
        averages = (bytes_sent > (last.bytes_sent if last else 0)) + (last.averages if last else 0)
        self._steps.append(_Step(last.number + 1 if last else 0, times_s, bytes_sent, averages, published))
        if not self._may_be_cut and len(self._steps) > 1:
            self._steps.popleft()

    def forget(self, rows: Integers) -> None:
        """Keep no more steps for jobs that have ended, nor any that all others' scorers know."""
        self._known[rows] = np.iinfo(np.int64).max
        while self._steps and self._steps[0].number + 1 < self._known.min():
            self._steps.popleft()

    def hand_over(self, row: int, until_s: float, now_s: float) -> None:
        """Emit a job's publications up to ``until_s``; a score may end its run, at ``over_s``.

        Nothing earlier than ``until_s`` can come; ``now_s``, not before it, is the time of some event.
        """
        if not self._may_be_cut:
            return
        scorer = self._scorers[row]
        if not scorer.scores:
            for step in self._steps:
                self._known[row, step.times_s[row] <= until_s] = step.number + 1
            return
        for published in self._due(row, until_s):
            if self._settled(row, published.time_s):
                return
            scorer.publish(published)
            self._known[row, published.worker] += 1
        self._settled(row, now_s)

    def _due(self, row: int, until_s: float) -> list[Published[Tensor]]:
        """Publications up to ``until_s`` that the scorer does not know, by time, then by step and rank."""
        due: list[Published[Tensor]] = []
        for step in self._steps:
            times_s, operation = step.times_s[row], step.published.operation
            ranks = np.flatnonzero((times_s <= until_s) & (self._known[row] <= step.number))
            values, leaders, averages = step.published.kept_for(self._jobs[row])
            columns = ranks.tolist(), times_s[ranks].tolist(), step.bytes_sent[ranks].tolist()
            due += (
                Published(
                    rank, step.number, time_s, values[rank], sent, leaders[rank], averages[rank],
                    operation.notes,
                )
                for rank, time_s, sent in zip(*columns, strict=True)
            )  # fmt: skip
        return sorted(due, key=lambda published: published.time_s)

    def _settled(self, row: int, time_s: float) -> bool:
        """Whether an instant was due to be scored before ``time_s``, and its score ends the run."""
        scorer = self._scorers[row]
        due_s = scorer.due_s
        if due_s is None or not scorer.has_passed(time_s) or not scorer.settle():
            return False
        self.over_s[row] = due_s
        return True

    def finals(self, row: int, until_s: float) -> tuple[list[Tensor], Tensor | None, Integers, Pace]:
        """A job's last models published by ``until_s``, its leader's model, numbers of steps, and pace."""
        finals = [self._jobs[row].start] * self._workers
        leaders: dict[int, Tensor] = {}
        done, averages, last_s = np.zeros(self._workers, np.int64), np.zeros(self._workers), 0.0
        for step in self._steps:
            times_s = step.times_s[row]
            happened = times_s <= until_s
            ranks = np.flatnonzero(happened).tolist()
            published = step.published.operation
            values = published.value.unbind()
            for rank in ranks:
                finals[rank] = values[rank]
            if published.leader is not None:
                leaders |= {rank: published.leader[rank] for rank in ranks}
            done[happened] = step.number + 1
            averages[happened] = step.averages[happened]
            last_s = max(last_s, float(times_s[happened].max(initial=0.0)))
        pace = Pace(last_s, tuple(done.astype(float).tolist()), tuple(averages.tolist()))
        return finals, leaders[min(leaders)] if leaders else None, done, pace
