"""Noise, heterogeneity and size of the workers' gradients at one point.

Worker i draws b_i of its N_i examples without replacement, and takes the gradients g_i1 and g_i2 of the two
halves of this batch. With g_i their mean, and g the mean of the g_i over the n workers:

- ``S2``, the mean of ``S2_i = b_i |g_i1 - g_i2|^2 / 4``: trace of the covariance of one example's gradient
  within a worker (divisor N_i - 1; tr(Sigma) in McCandlish et al., arXiv 1812.06162). The difference of the
  halves cancels the finite shard.
- ``H2 = sum_i |g_i - g|^2 / (n - 1) - mean_i e_i``: variance between the gradients of whole shards.
- ``G2 = |g|^2 - sum_i e_i / n^2``: squared norm of the *workers'* mean gradient. Workers count equally, as in
  every average; where shards differ in size this is not the gradient of the whole data set.

``e_i = S2_i / b_i (1 - b_i / N_i)`` is the variance of g_i. All three are unbiased, also where a batch is a
large part of its shard; so single values of H2 and G2 may be negative.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from typing_extensions import override

from .. import seeds
from ..records.gradients.noise import NoisePoint
from ..workloads.partition import Batches, Indices
from .gradients import TrainingProblem
from .snapshots import Snapshot, V


class Moments(NamedTuple):
    """S2, H2 (None for one worker) and G2."""

    noise: float
    heterogeneity: float | None
    norm2: float


def moments_of_halves(halves: Iterable[Tensor], batches: ArrayLike, shards: ArrayLike) -> Moments:
    """Moments from each worker's half-batch gradients [2, d], b_i [n] (at most N_i counts) and N_i [n]."""
    gaps2, norms2, total = [], [], torch.zeros(())
    for first, second in (each.double() for each in halves):
        own = (first + second) / 2
        gaps2.append((first - second).square().sum().item())
        norms2.append(own.square().sum().item())
        total = own + total.to(own.device)
    n, sizes = len(gaps2), np.minimum(batches, shards)
    mean_norm2 = (total / n).square().sum().item()
    noise = sizes * gaps2 / 4
    error = noise / sizes * (1 - sizes / np.asarray(shards))
    between = (sum(norms2) - n * mean_norm2) / (n - 1) - float(error.mean()) if n > 1 else None
    return Moments(float(noise.mean()), between, mean_norm2 - float(error.sum()) / n**2)


def half_batch(batch_size: int, shard: int) -> int:
    """Examples in each half of a batch from a shard."""
    return max(1, min(batch_size, shard) // 2)


class HalfBatches(Batches):
    """Batches drawn for measuring alone: numbers 2 k and 2 k + 1 are halves of one, without replacement."""

    @override
    def examples(self, worker: int, index: int) -> Indices:
        shard, (number, half) = self.shards[worker], divmod(index, 2)
        size = half_batch(self.batch_size, len(shard))
        rng = seeds.generator(self.seed, worker, "gradient noise", number)
        drawn = rng.choice(shard, min(2 * size, len(shard)), replace=False)
        picked: Indices = np.resize(drawn, 2 * size)[half * size :][:size]  # of one example: the same halves
        return picked

    @override
    def of_workers(self, workers: Sequence[int], indices: Sequence[int]) -> Indices:
        return np.stack([self.examples(w, i) for w, i in zip(workers, indices, strict=True)])


class NoiseMeter:
    """Measures moments at the first score after every ``every`` steps, off the run's clock.

    At the latest average of all workers, if there has been a new one; else noise alone, each worker at its
    own model. ``points``: so far; ``known``: moments along the trajectory, also under other clocks.
    """

    def __init__(self, problem: TrainingProblem, every: int, lr_at: Callable[[int], float]) -> None:
        own = problem.batches
        self._batches = HalfBatches(own.shards, own.batch_size, own.seed)
        self._problem = replace(problem, batches=self._batches, sampler=None)
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
        step, average = snapshot.averaged
        workers = list(snapshot.models)
        common = step > self._averaged
        if common:
            self._averaged = step
        else:
            step = snapshot.step
        key = step if common else snapshot.steps
        if key not in self.known:
            models = fetch([average] * len(workers) if common else list(snapshot.models.values()))
            shards = [len(self._batches.shards[worker]) for worker in workers]
            sizes = [2 * half_batch(self._batches.batch_size, each) for each in shards]
            self.known[key] = moments_of_halves(self._halves(workers, sizes, models, step), sizes, shards)
        noise, between, norm2 = self.known[key]
        if math.isfinite(noise):
            lr, h2, g2 = self._lr_at(step), between if common else None, norm2 if common else None
            examples = len(self._batches.shards) * self._batches.batch_size
            self.points.append(
                NoisePoint(
                    step=step, examples=examples, loss=loss, lr=lr, noise=noise, heterogeneity=h2, norm2=g2
                )
            )

    def _halves(
        self, workers: Sequence[int], sizes: Sequence[int], models: Sequence[Tensor], step: int
    ) -> Iterator[Tensor]:
        workload = self._problem.workload
        kept = workload.start.numel() - workload.num_buffers  # running buffers have no gradients
        for _, group in groupby(range(len(workers)), sizes.__getitem__):
            twice = [place for place in group for _ in range(2)]
            ranks, points = [workers[place] for place in twice], [models[place] for place in twice]
            numbers = [2 * step + half for half in (0, 1)] * (len(twice) // 2)
            found = [each.value[:kept] for each in self._problem.gradients(ranks, numbers, points)]
            yield from map(torch.stack, zip(found[::2], found[1::2], strict=True))
