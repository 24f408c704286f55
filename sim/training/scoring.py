"""Scoring of a run, off its clock, the same way for simulated and real runs.

Workers publish (time, step, value). Of the values only those at every ``every``-th step of a worker
are kept. A synchronous scheme is scored on its iterates: the values of all workers after the same
number of steps, at the moment when the last worker got there, so that the scores do not depend on the
network. An asynchronous scheme has no common step: whenever the workers have done ``every`` steps
on average once more, the latest kept values are scored.

Four things are scored each time: the *mean* of the workers' models; the *workers* on average; the
*worst* of them, metric by metric; and the *leader*, which is the model that the scheme says stands for
all, else that of the worker with the lowest training loss (never chosen by what is tested).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from ..errors import SchemeError
from ..program.averaging import mean_model
from ..records.run import EVERY_ON, NO_METRICS, Evaluation, On, metric_name
from ..workloads.workload import Task, Workload

Scores = dict[str, float | None]
"""Metric -> value, None where it is not finite."""


@dataclass(frozen=True)
class Target:
    """A score that ends the run: ``metric`` of what ``on`` names, at or beyond ``value``."""

    metric: str
    value: float
    falling: bool
    on: On = "mean"

    def reached(self, metrics: Mapping[str, float | None]) -> bool:
        """Whether these scores meet it."""
        score = metrics.get(self.metric)
        if score is None:
            return False
        return score <= self.value if self.falling else score >= self.value


def consensus_distance(values: Sequence[Tensor], mean: Tensor) -> float:
    """Root mean square distance of the workers' models from their mean."""
    squared = torch.stack([(value - mean).double().square().sum() for value in values])
    return math.sqrt(sum(squared.tolist()) / len(values))


def score_models(
    workload: Workload, task: Task, values: Sequence[Tensor], leader: Tensor | None = None
) -> dict[On, Scores]:
    """Scores of the workers' models [d] each, as the module describes.

    Args:
        workload, task: what was trained.
        values: one model per worker.
        leader: the model that the scheme says stands for all, if any.
    """
    mean = mean_model(values)
    distance = consensus_distance(values, mean)
    of_mean = workload.score(mean)
    each = [of_mean] if distance == 0.0 else [workload.score(value) for value in values]
    of_leader = min(each, key=_loss) if leader is None else workload.score(leader)
    columns = {name: [scores[name] for scores in each] for name in of_mean}
    scores_on: dict[On, Mapping[str, float]] = {
        "mean": of_mean,
        "workers": {name: math.fsum(column) / len(column) for name, column in columns.items()},
        "worst": {name: _worst(column, name in task.falling) for name, column in columns.items()},
        "leader": of_leader,
    }
    return {
        on: {
            name: value if math.isfinite(value) else None
            for name, value in {**scores, "consensus_distance": distance}.items()
        }
        for on, scores in scores_on.items()
    }


def recorded(scores: Mapping[On, Scores], on: On) -> Scores:
    """All scores as one row: those of ``on`` under the metrics' names, the others as ``METRIC_on_worst``."""
    row = dict(scores[on])
    for other in EVERY_ON:
        if other != on:
            own = {name: value for name, value in scores[other].items() if name != "consensus_distance"}
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


NO_NOTES: Final[Mapping[str, float]] = {}

_Published = tuple[Tensor, int, Tensor | None]
"""A worker's model, the bytes that it has sent, and the model that it says stands for all."""


@dataclass
class Scorer:
    """Turns what workers publish, fed in order of time, into evaluations.

    Attributes:
        workload, task: None for a run that trains nothing: then nothing is scored.
        workers: how many there are.
        every: steps between evaluations.
        on: whose scores go under the metrics' own names.
        synchronous: see the module.
        target: what ends the run, if anything.
    """

    workload: Workload | None
    task: Task | None
    workers: int
    every: int
    on: On
    synchronous: bool
    target: Target | None
    evaluations: list[Evaluation] = field(default_factory=list)
    reached_s: float | None = None
    diverged: bool = False
    _steps: int = 0
    _latest: dict[int, Tensor] = field(default_factory=dict)
    _leader: Tensor | None = None
    _sent: dict[int, int] = field(default_factory=dict)
    _rounds: dict[int, dict[int, _Published]] = field(default_factory=dict)
    _notes: dict[int, dict[str, list[float]]] = field(default_factory=dict)

    def begin(self, start: Sequence[Tensor]) -> None:
        """Score the initial models at time 0."""
        self._latest = dict(enumerate(start))
        self._score(0, 0.0, 0, list(start), None)

    def lose(self, worker: int) -> None:
        """A worker is gone, and its model with it: from now on the others are scored."""
        if len(self._latest) > 1:
            self._latest.pop(worker, None)

    def keeps(self, step: int) -> bool:
        """Whether the value published at this step (0-based) is needed."""
        return (step + 1) % self.every == 0

    def publish(
        self,
        worker: int,
        step: int,
        time_s: float,
        value: Tensor,
        bytes_sent: int = 0,
        leader: Tensor | None = None,
        notes: Mapping[str, float] = NO_NOTES,
    ) -> bool:
        """Take note of what a worker published; returns whether the run is over (target, or diverged).

        Args:
            worker, step, time_s: who, which step (0-based), when.
            value: its model [d].
            bytes_sent: what it has sent since the run began.
            leader: the model [d] that it says stands for all, if any.
            notes: numbers about the step.

        Raises:
            SchemeError: a note has the name of a metric, or of what stands beside them.
        """
        if self.workload is None:
            return False
        self._steps += 1
        # Of a synchronous scheme an early worker's notes wait for the evaluation that they belong to.
        window = self._notes.setdefault(step // self.every if self.synchronous else 0, {})
        for name, number in notes.items():
            if name in NO_METRICS or name in self.evaluations[0].metrics:
                raise SchemeError(
                    f"a scheme cannot note '{name}': a column of that name is there; call it otherwise"
                )
            window.setdefault(name, []).append(number)
        if self.synchronous:
            return self.keeps(step) and self._complete(step, time_s, worker, (value, bytes_sent, leader))
        self._sent[worker] = bytes_sent
        if self.keeps(step):
            self._latest[worker] = value
            self._leader = self._leader if leader is None else leader
        if self._steps % (self.every * self.workers) == 0:
            values = list(self._latest.values())
            sent = sum(self._sent.values())
            return self._score(self._steps // self.workers, time_s, sent, values, self._leader)
        return False

    def finish(
        self, step: int, time_s: float, bytes_sent: int, values: Sequence[Tensor], leader: Tensor | None
    ) -> None:
        """Score the models at the end of the run, unless this step has been scored.

        A run that its target has ended keeps the score that met it: workers that are ahead of the others at
        that instant do not make a later one.
        """
        if self.workload is None or step <= self.evaluations[-1].step:
            return
        if self.reached_s is None or time_s > self.evaluations[-1].time_s:
            self._score(step, time_s, bytes_sent, list(values), leader)

    def _complete(self, step: int, time_s: float, worker: int, published: _Published) -> bool:
        """Score a step of a synchronous scheme when all workers have done it."""
        of_step = self._rounds.setdefault(step, {})
        of_step[worker] = published
        if len(of_step) < self.workers:
            return False
        del self._rounds[step]
        values, sent, leaders = zip(*(of_step[w] for w in range(self.workers)), strict=True)
        leader = next((model for model in leaders if model is not None), None)
        return self._score(step + 1, time_s, sum(sent), list(values), leader)

    def _score(
        self, step: int, time_s: float, bytes_sent: int, values: list[Tensor], leader: Tensor | None
    ) -> bool:
        if self.workload is None or self.task is None:
            return False
        scores = score_models(self.workload, self.task, values, leader)
        noted = self._notes.pop((step - 1) // self.every if self.synchronous else 0, {})
        row = recorded(scores, self.on)
        for name, numbers in noted.items():
            row |= {name: math.fsum(numbers) / len(numbers), f"{name}_max": max(numbers)}
        self.evaluations.append(Evaluation(step, time_s, bytes_sent, row))
        if scores[self.on]["train_loss"] is None:
            self.diverged = True
        elif (
            self.target is not None and self.reached_s is None and self.target.reached(scores[self.target.on])
        ):
            self.reached_s = time_s
        return self.diverged or self.reached_s is not None
