"""What all workers publish, step by step, brought into the order of time for the scorer.

Workers that do not wait for each other are at different steps at the same time. A publication is handed over
as soon as no earlier one can come, that is when all workers have come to its time.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from torch import Tensor

from ...program import operations as ops
from ...records.run import On
from ...seeds import Floats, Integers
from ...training.scoring import Scorer
from ...training.snapshots import Published
from ..job import Job
from .accounts import BytesSent


class PublishedRows:
    """What all workers publish with one step, of which each job takes what its own clock needs.

    Args:
        operation: with the values of all workers.
    """

    def __init__(self, operation: ops.Publish) -> None:
        self.operation = operation

    @cached_property
    def of_workers(self) -> list[ops.Publish]:
        """What each worker published."""
        operation = self.operation
        values = operation.value.unbind()
        leaders, averages = (
            (None,) * len(values) if stack is None else stack.unbind()
            for stack in (operation.leader, operation.averaged)
        )
        return [
            ops.Publish(operation.step, value, leader, averaged, operation.notes)
            for value, leader, averaged in zip(values, leaders, averages, strict=True)
        ]

    def kept_for(self, job: Job) -> list[tuple[Tensor | None, ...]]:
        """``Job.kept`` of each worker: the same for all jobs that keep and score alike."""
        key = job.keep, job.scored_on
        if key not in self._kept:
            self._kept[key] = [job.kept(each) for each in self.of_workers]
        return self._kept[key]

    @cached_property
    def _kept(self) -> dict[tuple[int, tuple[On, ...]], list[tuple[Tensor | None, ...]]]:
        return {}


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """One step of all workers: when each published it, what it had sent by then, and what it published."""

    number: int
    times_s: Floats
    bytes_sent: BytesSent
    published: PublishedRows


class PublishedSteps:
    """The steps that have been published, and which of them the scorer knows.

    Args:
        job: whose they are.
        scorer: gets what is published, in the order of time, if it scores.
        may_be_cut: whether the run may end before its last step does; if not, and if nothing is scored, only
            the last step is kept.

    Attributes:
        over_s: the instant whose score has ended the run; infinite before.
    """

    def __init__(self, job: Job, scorer: Scorer[Tensor], may_be_cut: bool) -> None:
        self._job = job
        self._scorer = scorer
        self._may_be_cut = may_be_cut
        self._steps: deque[_Step] = deque()
        self._known = np.zeros(job.workers, np.int64)  # steps of each worker that the scorer knows
        self.over_s = math.inf

    def add(self, times_s: Floats, bytes_sent: BytesSent, published: PublishedRows) -> None:
        """All workers have done the next step, each at its time [n], having sent so many bytes."""
        number = self._steps[-1].number + 1 if self._steps else 0
        self._steps.append(_Step(number, times_s, bytes_sent, published))
        if not self._may_be_cut and len(self._steps) > 1:
            self._steps.popleft()

    def hand_over(self, until_s: float, now_s: float) -> bool:
        """Hand over what was published by ``until_s``; whether a score has ended the run, at ``over_s``.

        Args:
            until_s: nothing earlier can come any more.
            now_s: something happens at this time, which is not before ``until_s``.
        """
        if not self._may_be_cut:
            return False
        scorer = self._scorer
        if scorer.scores:
            due = self._due(until_s)
            taken = 0
            while taken < len(due):
                if self._settled(due[taken].time_s):
                    return True
                taken = scorer.publish_until_due(due, taken)
            if self._settled(now_s):
                return True
        else:
            for step in self._steps:
                self._known[step.times_s <= until_s] = step.number + 1
        while self._steps and self._steps[0].number + 1 < self._known.min():
            self._steps.popleft()
        return False

    def _due(self, until_s: float) -> list[Published[Tensor]]:
        """What has been published by ``until_s`` and is not known, in order: known from now on."""
        due: list[Published[Tensor]] = []
        for step in self._steps:
            ranks = np.flatnonzero((step.times_s <= until_s) & (self._known <= step.number))
            if len(ranks):
                kept, times_s = step.published.kept_for(self._job), step.times_s.tolist()
                number, notes = step.number, step.published.operation.notes
                sent = step.bytes_sent.of_all(len(times_s)).tolist()
                for rank in ranks.tolist():
                    value, leader, averaged = kept[rank]
                    due.append(
                        Published(rank, number, times_s[rank], value, sent[rank], leader, averaged, notes)
                    )
                self._known[ranks] = number + 1
        due.sort(key=lambda each: (each.time_s, each.step, each.worker))
        return due

    def _settled(self, time_s: float) -> bool:
        """Whether an instant was due to be scored before ``time_s``, and its score ends the run."""
        due_s = self._scorer.due_s
        if due_s is None or not self._scorer.has_passed(time_s) or not self._scorer.settle():
            return False
        self.over_s = due_s
        return True

    def finals(self, until_s: float) -> tuple[list[Tensor], Tensor | None, Integers]:
        """What each worker published last by ``until_s``: models, the leader's, and numbers of steps."""
        finals = [self._job.start] * self._job.workers
        leaders: dict[int, Tensor] = {}
        done = np.zeros(self._job.workers, np.int64)
        for step in self._steps:
            happened = step.times_s <= until_s
            ranks = np.flatnonzero(happened).tolist()
            published = step.published.operation
            values = published.value.unbind()
            for rank in ranks:
                finals[rank] = values[rank]
            if published.leader is not None:
                leaders |= {rank: published.leader[rank] for rank in ranks}
            done[happened] = step.number + 1
        return finals, leaders[min(leaders)] if leaders else None, done
