"""Publications of all workers, step by step, sorted by time for the scorer.

Workers that do not wait for each other are at different steps at the same time. A publication is handed over
as soon as no earlier one can come: when all workers have reached its time.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from torch import Tensor

from ...program import operations as ops
from ...records.run import On, Pace
from ...seeds import Floats, Integers
from ...training.scoring import Scorer
from ...training.snapshots import Keep, PublishedInOrder, StepOfAll
from ..job import Job
from .accounts import Counts

MOST_STEPS_HELD: Final = 16
"""Steps held before they are emitted though no instant to score is complete,"""
MOST_BYTES_HELD: Final = 64 * 2**20
"""unless the workers' models of these steps take this many bytes."""


class PublishedRows:
    """One publication of all workers; each job takes what its own clock needs."""

    def __init__(self, operation: ops.Publish) -> None:
        self.operation = operation

    def kept_for(self, job: Job) -> StepOfAll[Tensor]:
        """The part that a job keeps: shared by all jobs that keep and score alike."""
        key = job.keeps, job.scored_on, job.gradient_noise
        if key not in self._kept:
            self._kept[key] = self._keep(job)
        return self._kept[key]

    def _keep(self, job: Job) -> StepOfAll[Tensor]:
        value, leader, averaged = job.kept(self.operation)
        return StepOfAll(
            [None] * job.workers if value is None else value.unbind(),
            None if leader is None else leader.unbind(),
            None if averaged is None else averaged.unbind(),
            self.operation.notes,
        )

    @cached_property
    def _kept(self) -> dict[tuple[Keep, tuple[On, ...], int | None], StepOfAll[Tensor]]:
        return {}


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """One step of all workers: publication times, bytes sent and averages done by then, and values."""

    number: int
    times_s: Floats
    bytes_sent: Counts
    averages: Counts
    published: PublishedRows


class PublishedSteps:
    """The published steps, and which of them the scorer knows.

    Unless the run may be cut off, or something is scored, only the last step is kept. ``over_s``: the
    instant whose score has ended the run; infinite before.
    """

    def __init__(self, job: Job, scorer: Scorer[Tensor], may_be_cut: bool) -> None:
        self._job = job
        self._scorer = scorer
        self._may_be_cut = may_be_cut
        self._steps: deque[_Step] = deque()
        self._known = np.zeros(job.workers, np.int64)  # steps known to the scorer, by worker,
        self._num_known = 0  # and in all
        self.over_s = 0.0 if scorer.over else math.inf
        self.ends_s: list[float] = []  # when all were through with each step

    def add(self, times_s: Floats, bytes_sent: Counts, published: PublishedRows) -> None:
        """Add a step of all workers, with each one's time [n] and bytes sent so far."""
        self.ends_s.append(float(times_s.max()))
        number, before, averages = 0, Counts(), Counts()
        if self._steps:
            last = self._steps[-1]
            number, before, averages = last.number + 1, last.bytes_sent, last.averages
        averages = averages.plus(bytes_sent.grown_from(before))
        self._steps.append(_Step(number, times_s, bytes_sent, averages, published))
        if not self._may_be_cut and len(self._steps) > 1:
            self._steps.popleft()

    @property
    def may_wait(self) -> bool:
        """Whether no instant to score can be complete yet, and few steps are held."""
        return self._may_wait(self._job.workers * (self._steps[-1].number + 1) - self._num_known)

    def _may_wait(self, publications: int) -> bool:
        """Whether this many publications unknown to the scorer need not be emitted now."""
        scorer, steps = self._scorer, self._steps
        return (
            scorer.scores
            and publications < scorer.steps_to_go
            and len(steps) < MOST_STEPS_HELD
            and len(steps) * steps[-1].published.operation.value.nbytes < MOST_BYTES_HELD
        )

    def hand_over(self, until_s: float, now_s: float, *, is_last: bool = False) -> bool:
        """Emit publications up to ``until_s``; whether a score has ended the run, at ``over_s``.

        Nothing earlier than ``until_s`` can come; ``now_s``, not before it, is the time of some event. Unless
        this ``is_last``, publications that complete no instant to score may wait.
        """
        if not self._may_be_cut:
            return False
        scorer = self._scorer
        if scorer.scores:
            due = self._due(until_s, is_last)
            taken = 0
            while taken < len(due):
                if self._settled(due.times_s[taken]):
                    return True
                if not is_last and self._may_wait(len(due) - taken):
                    break
                taken = scorer.publish_until_due(due, taken)
            if taken:
                self._known += np.bincount(due.workers[:taken], minlength=self._job.workers)
                self._num_known += taken
            if self._settled(now_s):
                return True
        else:
            for step in self._steps:
                self._known[step.times_s <= until_s] = step.number + 1
        while self._steps and self._steps[0].number + 1 < self._known.min():
            self._steps.popleft()
        return False

    def _due(self, until_s: float, is_last: bool) -> PublishedInOrder[Tensor]:
        """Publications up to ``until_s`` that the scorer does not know, in order; none if they may wait."""
        steps = list(self._steps)
        times_s = np.stack([step.times_s for step in steps])
        numbers = np.array([step.number for step in steps])
        places, ranks = np.nonzero((times_s <= until_s) & (self._known <= numbers[:, np.newaxis]))
        if not is_last and self._may_wait(len(places)):
            return PublishedInOrder((), (), (), (), {})
        # A stable sort: at equal times by step, then by rank.
        order = np.argsort(times_s[places, ranks], kind="stable")
        places, ranks = places[order], ranks[order]
        sent = np.stack([step.bytes_sent.of_all(self._job.workers) for step in steps])
        return PublishedInOrder(
            ranks.tolist(),
            numbers[places].tolist(),
            times_s[places, ranks].tolist(),
            sent[places, ranks].tolist(),
            {step.number: step.published.kept_for(self._job) for step in steps},
        )

    def _settled(self, time_s: float) -> bool:
        """Whether an instant was due to be scored before ``time_s``, and its score ends the run."""
        due_s = self._scorer.due_s
        if due_s is None or not self._scorer.has_passed(time_s) or not self._scorer.settle():
            return False
        self.over_s = due_s
        return True

    def finals(self, until_s: float) -> tuple[list[Tensor], Tensor | None, Integers, Pace]:
        """The last models published by ``until_s``, the leader's model, numbers of steps, and the pace."""
        finals = [self._job.start] * self._job.workers
        leaders: dict[int, Tensor] = {}
        done, averages, last_s = np.zeros(self._job.workers, np.int64), np.zeros(self._job.workers), 0.0
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
            averages[happened] = step.averages.of_all(len(averages))[happened]
            last_s = max(last_s, float(step.times_s[happened].max(initial=0.0)))
        pace = Pace(last_s, tuple(done.astype(float).tolist()), tuple(averages.tolist()))
        return finals, leaders[min(leaders)] if leaders else None, done, pace
