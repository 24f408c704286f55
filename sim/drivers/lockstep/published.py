"""Publications of all workers, step by step, sorted by time for the scorer.

Workers that do not wait for each other are at different steps at the same time. A publication is handed over
as soon as no earlier one can come: when all workers have reached its time.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from ...program import operations as ops
from ...records.run import On, Pace
from ...seeds import Floats, Integers
from ...training.scoring import Scorer
from ...training.snapshots import Keep, Published
from ..job import Job

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
