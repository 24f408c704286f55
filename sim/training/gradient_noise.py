"""Noise, heterogeneity and size of the workers' gradients at one point.

Worker i draws b_i of its N_i examples without replacement; g_i1 and g_i2 are the gradients of the halves of
this batch, g_i is their mean, and g the mean of the g_i over the n workers. These are unbiased, also where a
batch is a large part of its shard; e_i = S2_i / b_i (1 - b_i / N_i) is the variance of g_i:

- S2, the mean of S2_i = b_i |g_i1 - g_i2|^2 / 4: trace of the covariance of one example's gradient within a
  worker (divisor N_i - 1; tr(Sigma) in McCandlish et al., arXiv 1812.06162).
- H2 = sum_i |g_i - g|^2 / (n - 1) - mean_i e_i: variance between the gradients of whole shards.
- G2 = |g|^2 - sum_i e_i / n^2: squared norm of the *workers'* mean gradient. Workers count equally, as in
  every average; where shards differ in size this is not the gradient of the whole data set.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from typing_extensions import override

from .. import seeds
from ..records.carry.noise import NoisePoint
from ..seeds import Floats
from ..workloads.partition import Batches, Indices
from .gradients import TrainingProblem
from .snapshots import Snapshot, V


class Moments(NamedTuple):
    """S2, H2 (None for one worker) and G2."""

    noise: float
    heterogeneity: float | None
    norm2: float


def moments(noise: Floats, norms2: Floats, mean_norm2: float, batches: Floats, shards: ArrayLike) -> Moments:
    """Moments from each worker's S2_i, |g_i|^2, b_i and N_i, [n], and |g|^2."""
    n, error = len(noise), noise / batches * (1 - batches / np.asarray(shards))
    between = float((norms2.sum() - n * mean_norm2) / (n - 1) - error.mean()) if n > 1 else None
    return Moments(float(noise.mean()), between, float(mean_norm2 - error.sum() / n**2))


def moments_of_halves(halves: Tensor, batches: ArrayLike, shards: ArrayLike) -> Moments:
    """Moments from the half batches' gradients [n, 2, d], b_i [n] (at most N_i counts) and N_i [n]."""
    own, sizes = halves.mean(dim=1), np.minimum(batches, shards).astype(float)
    gaps2, norms2 = (norm2(each, dim=1).cpu().numpy() for each in (halves[:, 0] - halves[:, 1], own))
    mean_norm2 = float(norm2(own.mean(dim=0, dtype=torch.float64)))
    return moments(sizes * gaps2 / 4, norms2, mean_norm2, sizes, shards)


def norm2(value: Tensor, dim: int | None = None) -> Tensor:
    """Squared norm, added up in double precision."""
    square: Tensor = torch.linalg.vector_norm(value, dim=dim, dtype=torch.float64).square()
    return square


def half_batch(batch_size: int, shard: int) -> int:
    """Examples in each half of a batch from a shard."""
    return max(1, min(batch_size, shard) // 2)


class HalfBatches(Batches):
    """Batches drawn for measuring alone: numbers 2 k and 2 k + 1 are halves of one, without replacement."""

    @override
    def examples(self, worker: int, index: int) -> Indices:
        picked: Indices = self.of_workers([worker], [index])[0]
        return picked

    @override
    def of_workers(self, workers: Sequence[int], indices: Sequence[int]) -> Indices:
        wanted = [(worker, *divmod(index, 2)) for worker, index in zip(workers, indices, strict=True)]
        drawn = {key: self._draw(*key) for key in {each[:2] for each in wanted}}
        return np.stack([drawn[worker, number][half] for worker, number, half in wanted])

    def _draw(self, worker: int, number: int) -> Indices:
        shard = self.shards[worker]
        size = 2 * half_batch(self.batch_size, len(shard))
        rng = seeds.generator(self.seed, worker, "gradient noise", number)
        drawn = rng.choice(shard, min(size, len(shard)), replace=False)
        return np.resize(drawn, (2, size // 2))  # of a single example, without noise, the same


class NoiseMeter:
    """Measures moments at the first score after every ``every`` steps, off the run's clock.

    At the latest average of all workers, if there has been a new one; else noise alone, each worker at its
    own model. ``points``: so far; ``known``: moments along the trajectory, also under other clocks.
    """

    def __init__(self, problem: TrainingProblem, every: int, lr_at: Callable[[int], float]) -> None:
        self._batches = HalfBatches(problem.batches.shards, problem.batches.batch_size, problem.batches.seed)
        self._examples = problem.batches.step_examples
        self._problem = replace(
            problem, batches=self._batches, sampler=None, accumulate=1, gradient_weights=()
        )
        self._every, self._next, self._averaged, self._lr_at = every, every, 0, lr_at
        self.points: list[NoisePoint] = []
        self.known: dict[object, Moments] = {}

    def measure(
        self, snapshot: Snapshot[V], fetch: Callable[[Sequence[V]], Sequence[Tensor]], loss: float | None
    ) -> None:
        """Measure at a scored snapshot, whose training loss is ``loss``, if it is time to."""
        if snapshot.step < self._next:
            return
        self._next = (snapshot.step // self._every + 1) * self._every
        (step, average), workers = snapshot.averaged, list(snapshot.models)
        common = step > self._averaged
        models = [average] * len(workers) if common else list(snapshot.models.values())
        self._averaged, step = max(step, self._averaged), step if common else snapshot.step
        key = step if common else snapshot.steps
        if key not in self.known:
            shards = [len(self._batches.shards[worker]) for worker in workers]
            sizes = [2 * half_batch(self._batches.batch_size, each) for each in shards]
            halves = self._halves(workers, sizes, fetch(models), step)
            self.known[key] = moments_of_halves(halves, sizes, shards)
        noise, between, mean_norm2 = self.known[key]
        if math.isfinite(noise):
            point = NoisePoint(
                step=step, examples=self._examples, loss=loss,
                lr=self._lr_at(step), noise=noise, heterogeneity=between if common else None,
                norm2=mean_norm2 if common else None,
            )  # fmt: skip
            self.points.append(point)

    def _halves(
        self, workers: Sequence[int], sizes: Sequence[int], models: Sequence[Tensor], step: int
    ) -> Tensor:
        values: list[Tensor] = []
        for _, group in groupby(range(len(workers)), sizes.__getitem__):
            twice = [place for place in group for _ in range(2)]
            ranks, points = [workers[place] for place in twice], [models[place] for place in twice]
            numbers = [2 * step, 2 * step + 1] * (len(twice) // 2)
            values += (each.value for each in self._problem.gradients(ranks, numbers, points))
        kept = self._problem.workload.start.numel() - self._problem.workload.num_buffers
        return torch.stack(values)[:, :kept].reshape(len(workers), 2, kept)
