"""Scoring of a run, off its clock, the same way for simulated and real runs.

Workers publish (time, step, value). Of the values only those at every ``every``-th step of a worker
are kept. A synchronous scheme is scored on its iterates: the values of all workers after the same
number of steps, at the moment when the last worker got there, so that the scores do not depend on the
network. An asynchronous scheme has no common step: whenever the workers have done ``every`` steps
on average once more, the latest kept values are scored.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch

from sim.records import Evaluation
from sim.workloads.workload import Task, Workload

Tensor = torch.Tensor
On = Literal["mean", "workers", "worst"]


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


def mean_model(values: Sequence[Tensor]) -> Tensor:
    """Mean of the workers' models, added up in rank order and in double precision."""
    total = values[0].to(torch.float64, copy=True)
    for value in values[1:]:
        total += value
    return (total / len(values)).to(values[0].dtype)


def consensus_distance(values: Sequence[Tensor], mean: Tensor) -> float:
    """Root mean square distance of the workers' models from their mean."""
    total = sum((value - mean).double().square().sum().item() for value in values)
    return math.sqrt(total / len(values))


def score_models(workload: Workload, task: Task, values: Sequence[Tensor], on: On) -> dict[str, float | None]:
    """Scores of the workers' models [d] each: of their mean, their average score, or their worst."""
    mean = mean_model(values)
    if on == "mean":
        scores = dict(workload.score(mean))
    else:
        each = [workload.score(value) for value in values]
        scores = {}
        for name in each[0]:
            column = [s[name] for s in each]
            worst = max if name in task.falling else min
            scores[name] = worst(column) if on == "worst" else sum(column) / len(column)
    scores["consensus_distance"] = consensus_distance(values, mean)
    return {name: value if math.isfinite(value) else None for name, value in scores.items()}


def digest(values: Sequence[Tensor]) -> str:
    """SHA-256 over the workers' parameters in rank order."""
    found = hashlib.sha256()
    for value in values:
        found.update(value.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


@dataclass
class Scorer:
    """Turns what workers publish, fed in order of time, into evaluations.

    Attributes:
        workload, task: None for a run that trains nothing: then nothing is scored.
        workers: how many there are.
        every: steps between evaluations.
        on: which model is scored.
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
    _rounds: dict[int, dict[int, Tensor]] = field(default_factory=dict)

    def begin(self, start: Sequence[Tensor]) -> None:
        """Score the initial models at time 0."""
        self._latest = dict(enumerate(start))
        self._score(0, 0.0, list(start))

    def keeps(self, step: int) -> bool:
        """Whether the value published at this step (0-based) is needed."""
        return (step + 1) % self.every == 0

    def publish(self, worker: int, step: int, time_s: float, value: Tensor) -> bool:
        """Take note of a published value; returns whether the run is over (target, or diverged)."""
        if self.workload is None:
            return False
        self._steps += 1
        if self.keeps(step):
            if self.synchronous:
                values = self._rounds.setdefault(step, {})
                values[worker] = value
                if len(values) == self.workers:
                    del self._rounds[step]
                    return self._score(step + 1, time_s, [values[w] for w in range(self.workers)])
            else:
                self._latest[worker] = value
        if not self.synchronous and self._steps % (self.every * self.workers) == 0:
            values_now = [self._latest[w] for w in range(self.workers)]
            return self._score(self._steps // self.workers, time_s, values_now)
        return False

    def finish(self, step: int, time_s: float, values: Sequence[Tensor]) -> None:
        """Score the models at the end of the run, unless this step has been scored."""
        if self.workload is not None and step > self.evaluations[-1].step:
            self._score(step, time_s, list(values))

    def _score(self, step: int, time_s: float, values: list[Tensor]) -> bool:
        if self.workload is None or self.task is None:
            return False
        metrics = score_models(self.workload, self.task, values, self.on)
        self.evaluations.append(Evaluation(step, time_s, metrics))
        if metrics["train_loss"] is None:
            self.diverged = True
        elif self.target is not None and self.reached_s is None:
            counts = metrics
            if self.target.on != self.on:
                counts = score_models(self.workload, self.task, values, self.target.on)
            if self.target.reached(counts):
                self.reached_s = time_s
        return self.diverged or self.reached_s is not None
