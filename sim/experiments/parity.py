"""Check that a measured run of a synchronous scheme went through the models that its code computes here."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, islice
from operator import itemgetter

from torch import Tensor
from typing_extensions import override

from ..drivers.event import EventDriver
from ..drivers.job import UNRECORDED, Job
from ..drivers.views import Views
from ..records.comparison import Trajectory
from ..records.run import LOST, Evaluation, Run, exact_exchanges, score_difference, sum_tolerance
from ..training.scoring import Scorer, as_they_are, iterate_digest, score_models
from ..training.snapshots import Keep, Published

Combination = tuple[int, int]
"""A worker, and the number of steps of its model."""


def compare_iterates(job: Job, measured: Run) -> Trajectory:
    """Compute the models of a measured run again, and compare them step by step by digest.

    Where workers only mixed and sent messages all bits must be equal. Where a library's collective added up,
    in an order of its own, the scores of the measured run's scored combinations of models must agree within
    ``sum_tolerance``. ``job`` computes gradients one by one, as real workers do.
    """
    models = Models(combinations(measured.evaluations))
    recorder = Recorder(None, None, job.scoring.every, job.scoring.on, None, as_they_are, models=models)
    steps = max((steps[-1] for steps in _kept_steps(job, measured) if steps), default=0)
    free = replace(
        job, max_iterations=steps, max_time_s=math.inf, recording=UNRECORDED,
        scoring=replace(job.scoring, target=None),
    )  # fmt: skip
    recorder.begin([job.start] * job.workers)
    views = Views(free, recorder) if free.shrinks else None
    (views or EventDriver(free, [free.program(rank) for rank in range(job.workers)], recorder)).run()
    says, same = _judge(job, measured, recorder)
    return Trajectory(label=measured.label, seed=measured.seed, same=same, says=says)


def _kept_steps(job: Job, measured: Run) -> list[list[int]]:
    """Steps after which each of a worker's ``iterates`` was kept, by worker."""
    return [list(islice(filter(job.scoring.keeps.at, count(1)), len(each))) for each in measured.iterates]


def combinations(evaluations: Sequence[Evaluation]) -> frozenset[Combination]:
    """Scored models by worker and step, without the initial ones."""
    return frozenset(
        (worker, step) for each in evaluations for worker, step in enumerate(each.steps) if step > 0
    )


@dataclass
class Models:
    """The ``wanted`` ones of a run's published models, by worker and steps, without the initial ones.

    ``averages``: the last average that the worker had published by then, with its step.
    """

    wanted: Collection[Combination] = ()
    published: dict[Combination, Tensor] = field(default_factory=dict)
    averages: dict[Combination, tuple[int, Tensor]] = field(default_factory=dict)
    _last: dict[int, tuple[int, Tensor]] = field(default_factory=dict)

    def take(self, worker: int, steps: int, value: Tensor, averaged: Tensor | None) -> None:
        """Note what a worker publishes after ``steps``."""
        if averaged is not None:
            self._last[worker] = steps, averaged
        if (worker, steps) in self.wanted:
            self.published[worker, steps] = value
            if worker in self._last:
                self.averages[worker, steps] = self._last[worker]


def score_again(job: Job, evaluation: Evaluation, models: Models) -> Mapping[str, float | None] | None:
    """Score the models of an evaluation again; None where its step vector does not name them all.

    An average is known where every model was kept: else a later one may have been scored.
    """
    kind = job.scored_kind
    if job.problem is None or job.task is None or not evaluation.steps or kind in ("leader", None):
        return None
    there = [(worker, step) for worker, step in enumerate(evaluation.steps) if step != LOST]
    if any(step > 0 and (worker, step) not in models.published for worker, step in there):
        return None
    values, averaged = [models.published[each] if each[1] else job.start for each in there], None
    if kind == "averaged":
        if job.scoring.keeps != Keep(job.scoring.every) or LOST in evaluation.steps:
            return None
        averages = [models.averages[each] for each in there if each in models.averages]
        _, average = max(averages, key=itemgetter(0), default=(0, job.start))
        averaged = job.problem.workload.score(average)
    return score_models(job.problem.workload, job.task, values, (kind,), averaged=averaged)[kind]


def worst_difference(job: Job, evaluations: Sequence[Evaluation], models: Models) -> tuple[int, float]:
    """Number of evaluations that could be scored again, and their largest ``score_difference``."""
    pairs = [(each, again) for each in evaluations if (again := score_again(job, each, models)) is not None]
    return len(pairs), max((score_difference(again, each.metrics) for each, again in pairs), default=0.0)


@dataclass
class Recorder(Scorer[Tensor]):
    """Scorer without scores: it notes the digests of all published models, and keeps those wanted."""

    models: Models = field(default_factory=Models)
    digests: dict[Combination, str] = field(default_factory=dict)

    @property
    @override
    def scores(self) -> bool:
        return True

    @override
    def publish(self, published: Published[Tensor]) -> bool:
        if published.value is not None:
            at = published.worker, published.step + 1
            self.digests[at] = iterate_digest(published.value)
            self.models.take(*at, published.value, published.averaged)
        return False


def _judge(job: Job, measured: Run, recorder: Recorder) -> tuple[str, bool | None]:
    compared = sorted(
        (step, worker, digest)
        for worker, (steps, digests) in enumerate(
            zip(_kept_steps(job, measured), measured.iterates, strict=True)
        )
        for step, digest in zip(steps, digests, strict=True)
        if digest  # "": the worker was away
    )
    differing = [
        (step, worker) for step, worker, own in compared if recorder.digests.get((worker, step)) != own
    ]
    if compared and not differing:
        return f"the same bits in all {len(compared):,} models that the workers published", True
    if not compared:
        return "no model was kept", False
    step, worker = differing[0]
    if exact_exchanges(measured.exchanges):
        where = f"worker {worker}'s model differs after step {step}"
        return f"{where}, which it should not: workers only mixed and sent messages", False
    number, worst = worst_difference(job, measured.evaluations, recorder.models)
    if number == 0:
        return f"the bits differ, and what is scored ({job.scoring.on}) cannot be scored again", None
    says = f"scores of the same {number} combinations of models agree to {worst:.1e}"
    return says, worst <= sum_tolerance(measured.exchanges)
