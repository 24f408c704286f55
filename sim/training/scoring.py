"""Scoring of a run, off its clock, in the same way for simulated and real runs.

``snapshots`` decides *when*, by one rule for all schemes. ``evaluate.on`` and ``stop.target.on`` decide
*what*: the model that the scheme has *published* for all, so that somebody can use it; the *mean* of the
workers' models; the *workers* on average; the *worst* of them, metric by metric; the *leader*, which is the
scheme's own model for all, else that of the worker with the lowest training loss (never chosen by test
scores); or the average that the scheme itself publishes (*averaged*), which depends on the number of the
averaging alone.

``Scheme.publishes`` says what *published* is: the average or the leader's model, from when a worker has it. A
scheme without either has the mean model, which nobody holds: its scores come later by an all-reduce
(``HandOver``), with its bytes.

Where the target is met, the crossing lies between two scorings. Models kept in between are scored by
bisection until that bracket is at most ``BRACKET`` of the time. The one model that meets it is then scored on
slices of the examples, which say how well its score is known (``records.carry.score_error``).
"""

from __future__ import annotations

import hashlib
import math
from array import array
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic

import torch
from torch import Tensor

from ..errors import SchemeError
from ..program.averaging import mean_model
from ..records.carry.score_error import ScoreSlices, worth_of_score
from ..records.run import BRACKET, NO_METRICS, Evaluation, On, metric_name
from ..workloads.workload import Task, Workload
from .gradient_noise import NoiseMeter
from .snapshots import Published, ScoringInterval, Snapshot, Snapshots, V, WorkerLost

Scores = dict[str, float | None]
"""Metric -> value, None where it is not finite."""


@dataclass(frozen=True)
class Target:
    """A score that ends the run: ``metric`` of the models of ``on``, at or beyond ``value``."""

    metric: str
    value: float
    falling: bool
    on: On

    def reached(self, score: float | None) -> bool:
        """Whether a score of ``metric`` meets it."""
        if score is None:
            return False
        return score <= self.value if self.falling else score >= self.value


@dataclass(frozen=True)
class HandOver:
    """What it takes until somebody holds the mean model: one all-reduce among all workers."""

    time_s: float = 0.0
    num_bytes: int = 0


def consensus_distance(values: Sequence[Tensor], mean: Tensor) -> float:
    """Root mean square distance of the workers' models from their mean."""
    squared = torch.stack([(value - mean).double().square().sum() for value in values])
    return math.sqrt(sum(squared.tolist()) / len(values))


def score_models(
    workload: Workload,
    task: Task,
    values: Sequence[Tensor],
    ons: Collection[On],
    leader: Tensor | None = None,
    averaged: Mapping[str, float] | None = None,
) -> dict[On, Scores]:
    """Score the workers' models [d] each, as the module describes.

    ``leader`` is the scheme's own model for all, ``averaged`` the scores of its average, if in ``ons``.
    """
    mean = mean_model(values)
    distance = consensus_distance(values, mean)
    scores_on: dict[On, Mapping[str, float]] = {}
    each: list[Mapping[str, float]] = []
    needs_each = not {"workers", "worst"}.isdisjoint(ons) or ("leader" in ons and leader is None)
    if "mean" in ons or (needs_each and distance == 0.0):
        scores_on["mean"] = workload.score(mean)
    if needs_each:
        each = [scores_on["mean"]] if distance == 0.0 else [workload.score(value) for value in values]
    columns = {name: [scores[name] for scores in each] for name in each[0]} if each else {}
    if "workers" in ons:
        scores_on["workers"] = {name: math.fsum(column) / len(column) for name, column in columns.items()}
    if "worst" in ons:
        scores_on["worst"] = {name: _worst(column, name in task.falling) for name, column in columns.items()}
    if "leader" in ons:
        scores_on["leader"] = min(each, key=_loss) if leader is None else workload.score(leader)
    if "averaged" in ons:
        scores_on["averaged"] = averaged or {}
    return {
        on: {
            name: value if math.isfinite(value) else None
            for name, value in {**scores_on[on], "consensus_distance": distance}.items()
        }
        for on in ons
    }


def as_row(scores: Mapping[On, Scores], on: On) -> Scores:
    """All scores as one row: those of ``on`` under the metrics' names, the others as ``METRIC_on_worst``."""
    row = dict(scores[on])
    for other, of_other in scores.items():
        if other != on:
            own = {name: value for name, value in of_other.items() if name != "consensus_distance"}
            row |= {metric_name(name, other, on): value for name, value in own.items()}
    return row


def _loss(scores: Mapping[str, float]) -> float:
    loss = scores["train_loss"]
    return math.inf if math.isnan(loss) else loss


def _worst(column: Sequence[float], falling: bool) -> float:
    if any(math.isnan(value) for value in column):
        return math.nan
    return max(column) if falling else min(column)


def digest(values: Sequence[Tensor]) -> str:
    """SHA-256 over the workers' parameters in rank order."""
    sha256 = hashlib.sha256()
    for value in values:
        sha256.update(value.detach().cpu().contiguous().numpy().tobytes())
    return sha256.hexdigest()


def iterate_digest(model: Tensor) -> str:
    """A short digest of one worker's model [d]; equal digests are equal bits, but for accidents."""
    return digest([model])[:16]


Fetch = Callable[[Sequence[V]], Sequence[Tensor]]
"""Turns the published values of workers into tensors [d]."""


def as_they_are(models: Sequence[Tensor]) -> Sequence[Tensor]:
    """The ``Fetch`` of a driver whose workers publish tensors in its own process."""
    return models


@dataclass(frozen=True, eq=False)
class KnownScores:
    """Scores of one trajectory under several clocks: by a model's digest, and by steps; slices likewise."""

    of_models: dict[str, Mapping[str, float]] = field(default_factory=dict)
    of_steps: dict[str, Mapping[On, Scores]] = field(default_factory=dict)
    of_slices: dict[str, tuple[int, list[float]]] = field(default_factory=dict)

    def remembering(self, workload: Workload) -> Workload:
        """``workload``, which scores no model twice."""

        def score(model: Tensor) -> Mapping[str, float]:
            key = digest([model])
            if key not in self.of_models:
                self.of_models[key] = workload.score(model)
            return self.of_models[key]

        return replace(workload, score=score)


@dataclass
class Scorer(Generic[V]):
    """Turns publications of workers, fed in order of time, into evaluations, once it has begun.

    Attributes:
        workload, task: None for a run that trains nothing: then nothing is scored.
        on: the kind of scores under the metrics' own names.
        published: the kind of model that *published* stands for; None: what has been published by then, an
            average, a leader's model, or else the mean.
        hand_over: of that mean.
        known: scores of the trajectory under other clocks; None: there are none. A worker's model after n
            steps is then the same under all of them.
        evaluations: in order of time; the first is that of the initial models.
        reached_s: when the target was met: the end of its bracket; None: not so far.
        bracket_s: the two scored moments between which the target was met.
        slices: of the examples of the score that met it; None: of none, or of more than one model.
        diverged: a training loss was not finite.
        noise: measures the gradients' noise at the scored moments, if wanted.
    """

    workload: Workload | None
    task: Task | None
    every: int
    on: On
    target: Target | None
    fetch: Fetch[V]
    evaluations: list[Evaluation] = field(default_factory=list)
    reached_s: float | None = None
    bracket_s: tuple[float, float] | None = None
    slices: ScoreSlices | None = None
    diverged: bool = False
    noise: NoiseMeter | None = None
    known: KnownScores | None = None
    published: On | None = None
    hand_over: HandOver = HandOver()
    _snapshots: Snapshots[V] | None = field(default=None, init=False)
    _averaged: tuple[int, Mapping[str, float]] | None = None
    _scored: list[Evaluation] = field(default_factory=list, init=False)
    _notes: dict[tuple[str, int], array[float]] = field(default_factory=dict, init=False)

    @property
    def scored_on(self) -> tuple[On, ...]:
        """The kinds of scores in use."""
        return scored_on(self.on, self.target.on if self.target else None)

    def begin(self, start: Sequence[V]) -> None:
        """Score the initial models, one of each worker, at time 0."""
        if self.workload is not None:
            self._snapshots = Snapshots(start, self.every, remember=self.target is not None)
            models = dict(enumerate(start))
            self._judge(self._evaluate(self._snapshots.latest.ended(0.0, models, None)))

    def lose(self, worker: int, time_s: float) -> None:
        """Note that a worker is lost, and its model with it: from now on the others are scored."""
        self._take(WorkerLost(worker, time_s))

    def publish(self, published: Published[V]) -> bool:
        """Note a worker's publication; returns whether the run is over (target, or diverged).

        Raises ``SchemeError`` for a note with the name of a metric, or of a column beside them.
        """
        if self._snapshots is None:
            return False
        for name, value in published.notes.items():
            if name in NO_METRICS or name.partition("_on_")[0] in self.evaluations[0].metrics:
                raise SchemeError(
                    f"a scheme cannot note '{name}': a column of that name is there; call it otherwise"
                )
            self._notes.setdefault((name, published.step + 1), array("d")).append(value)
        return self._take(published)

    @property
    def scores(self) -> bool:
        """Whether it has begun and there is something to score."""
        return self._snapshots is not None

    @property
    def due_s(self) -> float | None:
        """The instant to score as soon as it has passed, if there is one."""
        return None if self._snapshots is None else self._snapshots.due_s

    def has_passed(self, time_s: float) -> bool:
        """Whether an instant is to be scored, and is over at ``time_s``."""
        return self._snapshots is not None and self._snapshots.has_passed(time_s)

    def without_average(self) -> str:
        """Reason for the lack of an average to score, where one is asked for; else empty."""
        if self._averaged is None or self._averaged[0] > 0 or self.evaluations[-1].step == 0:
            return ""
        where = f"in {self.evaluations[-1].step:,} steps (worker.publish(averaged=...))"
        return f"the scheme published no average {where}"

    def settle(self) -> bool:
        """Score the instant that is due, if any; returns whether the run is over."""
        if self._snapshots is not None and self._snapshots.due_s is not None:
            self._score(self._snapshots.close())
        return self.over

    def finish(self, time_s: float, finals: Mapping[int, V], leader: V | None) -> None:
        """Score the last models (``leader``: of all) at the end of the run, unless this step has been scored.

        A run that its target has ended keeps the score that met it.
        """
        if self._snapshots is None:
            return
        self.settle()
        end = self._snapshots.latest.ended(time_s, finals, leader)
        last = self.evaluations[-1]
        if end.step > last.step and (
            self.reached_s is None or time_s + self._later(end).time_s > last.time_s
        ):
            self._score(self._snapshots.close(end))

    def put_notes(self) -> None:
        """Complete each score by the notes of all workers on the steps since the one before, late ones too.

        Steps have the same numbers on every clock, so that a measured run and its prediction mean the same
        ones. Those beyond the last scored number count nowhere.
        """
        ends = [each.step for each in self._scored]
        joined: dict[tuple[int, str], array[float]] = {}
        for (name, step), values in self._notes.items():
            if (place := bisect_left(ends, step)) < len(ends):
                joined.setdefault((place, name), array("d")).extend(values)
        for (place, name), values in joined.items():
            self._scored[place].metrics[name] = math.fsum(values) / len(values)
            self._scored[place].metrics[f"{name}_max"] = max(values)

    @property
    def over(self) -> bool:
        """Whether the target is met (even by the first models), or the loss is not finite."""
        return self.diverged or self.reached_s is not None

    def _take(self, change: Published[V] | WorkerLost) -> bool:
        if self._snapshots is not None and (complete := self._snapshots.take(change)) is not None:
            self._score(complete)
        return self.over

    def _score(self, interval: ScoringInterval[V]) -> None:
        reached = self.reached_s
        earlier_s = self.evaluations[-1].time_s
        self._judge(self._evaluate(interval.end))
        self._scored.append(self.evaluations[-1])
        if self.noise is not None and not self.diverged:
            self.noise.measure(interval.end, self.fetch, self.evaluations[-1].metrics["train_loss"])
        if reached is None and self.reached_s is not None:
            self.slices = self._in_slices(self._narrow(earlier_s, interval))

    def _scores(self, snapshot: Snapshot[V]) -> Mapping[On, Scores]:
        assert self.workload is not None
        assert self.task is not None
        kinds = {on: self._kind(on, snapshot) for on in self.scored_on}
        averaged = self._scores_of_average(snapshot) if "averaged" in kinds.values() else None
        key = "" if self.known is None else self._key(snapshot)
        if self.known is not None and key in self.known.of_steps:
            return self.known.of_steps[key]
        leaders = [snapshot.leader] if "leader" in kinds.values() and snapshot.leader is not None else []
        models = list(self.fetch([*snapshot.models.values(), *leaders]))
        leader = models.pop() if leaders else None
        of_kinds = score_models(self.workload, self.task, models, set(kinds.values()), leader, averaged)
        scores = {on: of_kinds[kind] for on, kind in kinds.items()}
        if self.known is not None:
            self.known.of_steps[key] = scores
        return scores

    def _kind(self, on: On, snapshot: Snapshot[V]) -> On:
        """What ``on`` stands for at a moment."""
        if on != "published":
            return on
        return self.published or snapshot.published

    def _later(self, snapshot: Snapshot[V]) -> HandOver:
        """By how much its scores come later than a moment: first models are everybody's."""
        is_late = any(on == "published" and self._kind(on, snapshot) == "mean" for on in self.scored_on)
        return self.hand_over if is_late and snapshot.total else HandOver()

    def _key(self, snapshot: Snapshot[V]) -> str:
        """Key of a snapshot's score: steps, kinds, leader and average: '3 4; mean; -; -'."""
        kinds = [self._kind(on, snapshot) for on in self.scored_on]
        leader = snapshot.leader if "leader" in kinds else None
        averaged = snapshot.averaged[1] if "averaged" in kinds else None
        models = ["-" if model is None else digest(self.fetch([model])) for model in (leader, averaged)]
        return "; ".join([" ".join(map(str, snapshot.steps)), " ".join(kinds), *models])

    def _evaluate(self, snapshot: Snapshot[V]) -> Evaluation:
        return self._evaluation(snapshot, as_row(self._scores(snapshot), self.on))

    def _evaluation(self, snapshot: Snapshot[V], row: Scores) -> Evaluation:
        """A moment's scores, at the time and with the bytes at which somebody has them."""
        later = self._later(snapshot)
        time_s, num_bytes = snapshot.time_s + later.time_s, snapshot.bytes_sent + later.num_bytes
        return Evaluation(snapshot.step, time_s, num_bytes, row, snapshot.steps)

    def _scores_of_average(self, snapshot: Snapshot[V]) -> Mapping[str, float]:
        number, model = snapshot.averaged
        if self._averaged is None or self._averaged[0] != number:
            (value,) = self.fetch([model])
            self._averaged = number, self.workload.score(value)  # type: ignore[union-attr]
        return self._averaged[1]

    def _judge(self, evaluation: Evaluation) -> None:
        self.evaluations.append(evaluation)
        if evaluation.metrics["train_loss"] is None:
            self.diverged = True
        elif self.reached_s is None and self._meets(evaluation):
            self.reached_s = evaluation.time_s
            self.bracket_s = (evaluation.time_s, evaluation.time_s)
            if self._snapshots is not None:
                self._snapshots.forget()

    def _meets(self, evaluation: Evaluation) -> bool:
        if self.target is None:
            return False
        name = metric_name(self.target.metric, self.target.on, self.on)
        return self.target.reached(evaluation.metrics.get(name))

    def _narrow(self, earlier_s: float, interval: ScoringInterval[V]) -> Snapshot[V]:
        """Bisect between a scoring that missed the target and one that met it; the first that meets it."""
        moments = interval.moments
        low, low_s, high, high_s = -1, earlier_s, len(moments), self.evaluations[-1].time_s
        tried: list[Evaluation] = []
        while high - low > 1 and high_s - low_s > BRACKET * high_s:
            middle = (low + high) // 2
            tried.append(self._evaluate(interval.at(moments[middle])))
            if self._meets(tried[-1]):
                high, high_s = middle, tried[-1].time_s
            else:
                low, low_s = middle, tried[-1].time_s
        self.evaluations[-1:-1] = sorted(tried, key=lambda each: each.time_s)
        self.reached_s, self.bracket_s = high_s, (low_s, high_s)
        return interval.end if high == len(moments) else interval.at(moments[high])

    def _in_slices(self, met: Snapshot[V]) -> ScoreSlices | None:
        """The target's score of the one model that met it, by slices of its examples."""
        kind = self._kind(self.scored_on[-1], met)
        slices = None if self.workload is None else self.workload.slices
        one = {"averaged": met.averaged[1], "leader": met.leader}.get(kind)
        if self.target is None or slices is None or (one is None and kind != "mean"):
            return None
        known, key = self.known or KnownScores(), self._key(met)
        if key not in known.of_slices:
            models = self.fetch([*met.models.values()] if one is None else [one])
            known.of_slices[key] = slices(mean_model(models), self.target.metric)
        examples, means = known.of_slices[key]
        name = metric_name(self.target.metric, self.target.on, self.on)
        way = [(each.time_s, each.metrics.get(name)) for each in self.evaluations]
        worth = worth_of_score(way, self.target.value, self.reached_s or math.inf)
        return ScoreSlices(examples=examples, means=means, worth=worth)


def scored_on(on: On, target_on: On | None) -> tuple[On, ...]:
    """The kinds of scores: ``evaluate.on`` first, then that of the target, if another."""
    return (on,) if target_on is None or target_on == on else (on, target_on)
