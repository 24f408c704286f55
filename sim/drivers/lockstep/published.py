"""Publications of all workers, step by step, sorted by time for the scorer.

Workers that do not wait for each other are at different steps at the same time. A publication is handed over
as soon as no earlier one can come: when all workers have reached its time.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
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
        key = job.scoring.keeps, job.scoring.scored_on, job.scoring.gradient_noise
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
        self._known = np.zeros((len(jobs), self._workers), np.int64)  # steps known to a scorer, by worker,
        self._num_known = np.zeros(len(jobs), np.int64)  # and in all
        self._to_go = np.array([scorer.steps_to_go for scorer in scorers])
        self.ends_s: list[Floats] = []  # of jobs with faults: when all were through with each step
        self.over_s = np.array([0.0 if scorer.over else math.inf for scorer in scorers])

    def add(self, times_s: Floats, bytes_sent: Counts, published: PublishedRows) -> None:
        """Add a step of all workers, with each one's time [jobs, n] and bytes sent so far."""
        if self._churns:
            self.ends_s.append(times_s.max(axis=1))
        number, before, averages = 0, Counts(), Counts()
        if self._steps:
            last = self._steps[-1]
            number, before, averages = last.number + 1, last.bytes_sent, last.averages
        averages = averages.plus(bytes_sent.grown_from(before))
        self._steps.append(_Step(number, times_s, bytes_sent, averages, published))
        if not self._may_be_cut and len(self._steps) > 1:
            self._steps.popleft()
        self.__dict__.pop("_held", None)

    def waiting(self, rows: Integers) -> Integers:
        """Those of the jobs in ``rows`` whose publications the scorer must have now.

        Of the others no instant to score can be complete yet, and few steps are held.
        """
        publications = self._workers * (self._steps[-1].number + 1) - self._num_known[rows]
        return rows if self._are_many() else rows[publications >= self._to_go[rows]]

    def _are_many(self) -> bool:
        """Whether the scorers must have them, even if they complete no instant to score."""
        steps = self._steps
        return (
            not self._scorers[0].scores
            or len(steps) >= MOST_STEPS_HELD
            or len(steps) * steps[-1].published.operation.value.nbytes >= MOST_BYTES_HELD
        )

    def forget(self, rows: Integers) -> None:
        """Keep no more steps for jobs that have ended, nor any that all others' scorers know."""
        self._known[rows] = np.iinfo(np.int64).max
        while self._steps and self._steps[0].number + 1 < self._known.min():
            self._steps.popleft()
        self.__dict__.pop("_held", None)

    def hand_over(self, row: int, until_s: float, now_s: float, *, is_last: bool = False) -> None:
        """Emit a job's publications up to ``until_s``; a score may end its run, at ``over_s``.

        Nothing earlier than ``until_s`` can come; ``now_s``, not before it, is the time of some event. Unless
        this ``is_last``, publications that complete no instant to score may wait.
        """
        if not self._may_be_cut:
            return
        scorer = self._scorers[row]
        if not scorer.scores:
            for step in self._steps:
                self._known[row, step.times_s[row] <= until_s] = step.number + 1
            return
        must = is_last or self._are_many()
        due = self._due(row, until_s, must)
        taken = 0
        while taken < len(due):
            if self._settled(row, due.times_s[taken]):
                return
            if not must and len(due) - taken < scorer.steps_to_go:
                break
            taken = scorer.publish_until_due(due, taken)
        if taken:
            self._known[row] += np.bincount(due.workers[:taken], minlength=self._workers)
            self._num_known[row] += taken
        self._settled(row, now_s)
        self._to_go[row] = scorer.steps_to_go

    def _due(self, row: int, until_s: float, must: bool) -> PublishedInOrder[Tensor]:
        """Publications up to ``until_s`` that the scorer does not know, in order; none if they may wait."""
        numbers, all_times_s, sent = self._held
        times_s = all_times_s[:, row]
        places, ranks = np.nonzero((times_s <= until_s) & (self._known[row] <= numbers[:, np.newaxis]))
        if not must and len(places) < self._scorers[row].steps_to_go:
            return PublishedInOrder((), (), (), (), {})
        # A stable sort: at equal times by step, then by rank.
        order = np.argsort(times_s[places, ranks], kind="stable")
        places, ranks = places[order], ranks[order]
        return PublishedInOrder(
            ranks.tolist(),
            numbers[places].tolist(),
            times_s[places, ranks].tolist(),
            sent[places, ranks].tolist(),
            {step.number: step.published.kept_for(self._jobs[row]) for step in self._steps},
        )

    @cached_property
    def _held(self) -> tuple[Integers, Floats, Integers]:
        """Of the held steps: numbers, times [steps, jobs, n], and bytes sent so far [steps, n]."""
        return (
            np.array([step.number for step in self._steps]),
            np.stack([step.times_s for step in self._steps]),
            np.stack([step.bytes_sent.of_all(self._workers) for step in self._steps]),
        )

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
            averages[happened] = step.averages.of_all(len(averages))[happened]
            last_s = max(last_s, float(times_s[happened].max(initial=0.0)))
        pace = Pace(last_s, tuple(done.astype(float).tolist()), tuple(averages.tolist()))
        return finals, leaders[min(leaders)] if leaders else None, done, pace
