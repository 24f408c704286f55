"""Noise, heterogeneity and size of the workers' gradients at one point.

At one point worker i draws b_i of its N_i examples without replacement, and takes the gradients g_i1 and g_i2
of the two halves of this batch. With g_i their mean, and g the mean of the g_i over the n workers:

- ``S2 = mean_i S2_i``, with ``S2_i = b_i |g_i1 - g_i2|^2 / 4``: the trace of the covariance of one example's
  gradient, within a worker (divisor N_i - 1; McCandlish et al., arXiv 1812.06162, call it tr(Sigma)). The
  difference of the halves cancels the finite shard.
- ``H2 = sum_i |g_i - g|^2 / (n - 1) - mean_i e_i``: variance between the gradients of whole shards.
- ``G2 = |g|^2 - sum_i e_i / n^2``: squared norm of the *workers'* mean gradient. Workers count equally, as in
  every average of a scheme; where shards differ in size this is not the gradient of the whole data set.

``e_i = S2_i / b_i (1 - b_i / N_i)`` is the part of g_i that is noise. All three are unbiased, also where a
batch is a large part of its shard; so single values of H2 and G2 may be negative, and only ratios of means
over several points are meant to be read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from typing_extensions import override

from .. import seeds
from ..records.gradients.noise import NoisePoint
from ..seeds import Floats
from ..workloads.partition import Batches, Indices
from .gradients import TrainingProblem, chunk_bytes
from .snapshots import Snapshot, V


@dataclass(frozen=True)
class GradientMoments:
    """S2, H2 and G2 at one point; H2 is None for one worker, H2 and G2 where workers had no common point."""

    noise: float
    heterogeneity: float | None = None
    norm2: float | None = None


def half_batch(batch_size: int, shard: int) -> int:
    """Examples in each half of a batch that is drawn without replacement from ``shard`` >= 2 of them."""
    return max(1, min(batch_size, shard) // 2)


def moments(
    gaps2: Floats, norms2: Floats, mean_norm2: float, batches: ArrayLike, shards: ArrayLike
) -> GradientMoments:
    """Moments at a common point.

    Args:
        gaps2, norms2: |g_i1 - g_i2|^2 and |g_i|^2, [n].
        mean_norm2: |g|^2.
        batches, shards: b_i <= N_i and N_i, [n]; a b_i above N_i counts as N_i.
    """
    n = len(gaps2)
    sizes = np.minimum(batches, shards)
    of_worker = sizes * gaps2 / 4
    error = of_worker / sizes * (1 - sizes / np.asarray(shards))
    between = None
    if n > 1:
        between = float((norms2.sum() - n * mean_norm2) / (n - 1) - error.mean())
    return GradientMoments(float(of_worker.mean()), between, float(mean_norm2 - error.sum() / n**2))


def moments_of_halves(halves: Iterable[Tensor], batches: ArrayLike, shards: ArrayLike) -> GradientMoments:
    """Moments at a common point from the half batches' gradients of each worker in order, [2, d]."""
    gaps2, norms2, total = [], [], torch.zeros(())
    for first, second in (each.double() for each in halves):
        own = (first + second) / 2
        gaps2.append((first - second).square().sum().item())
        norms2.append(own.square().sum().item())
        total = own + total.to(own.device)
    mean_norm2 = (total / len(gaps2)).square().sum().item()
    return moments(np.array(gaps2), np.array(norms2), mean_norm2, batches, shards)


class HalfBatches(Batches):
    """Batches drawn for measuring alone: number 2 k and 2 k + 1 are halves of one, without replacement."""

    @override
    def examples(self, worker: int, index: int) -> Indices:
        number, half = divmod(index, 2)
        shard = self.shards[worker]
        size = half_batch(self.batch_size, len(shard))
        rng = seeds.generator(self.seed, worker, "gradient noise", number)
        drawn = rng.choice(shard, min(2 * size, len(shard)), replace=False)
        # The halves of a single example are the same: it has no noise.
        picked: Indices = np.resize(drawn, 2 * size)[half * size :][:size]
        return picked

    @override
    def of_workers(self, workers: Sequence[int], indices: Sequence[int]) -> Indices:
        return np.stack([self.examples(w, i) for w, i in zip(workers, indices, strict=True)])


class NoiseMeter:
    """Measures moments beside a run's scores, off its clock, on batches of its own.

    At the first scoring after every ``every`` steps: at the latest average of all workers if there has been a
    new one, else noise alone, each worker at its own model.

    Attributes:
        points: measured so far.
        known: moments at points of the trajectory, also under other clocks.
    """

    def __init__(self, problem: TrainingProblem, every: int, lr_at: Callable[[int], float]) -> None:
        drawn = problem.batches
        self._batches = HalfBatches(drawn.shards, drawn.batch_size, drawn.seed)
        self._problem = replace(problem, batches=self._batches, sampler=None)
        self._every, self._lr_at = every, lr_at
        self._next = every
        self._averaged = 0
        self.points: list[NoisePoint] = []
        self.known: dict[object, GradientMoments] = {}

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
            models = [*fetch([average])] * len(workers)
        else:
            step, models = snapshot.step, [*fetch(list(snapshot.models.values()))]
        key = step if common else snapshot.steps
        if key not in self.known:
            shards = [len(self._batches.shards[worker]) for worker in workers]
            sizes = [2 * half_batch(self._batches.batch_size, each) for each in shards]
            halves = self._halves(workers, sizes, models, step)
            self.known[key] = moments_of_halves(halves, sizes, shards)
        found = self.known[key]
        if math.isfinite(found.noise):
            self.points.append(
                NoisePoint(
                    step=step, time_s=snapshot.time_s, loss=loss, lr=self._lr_at(step), noise=found.noise,
                    heterogeneity=found.heterogeneity if common else None,
                    norm2=found.norm2 if common else None,
                )
            )  # fmt: skip

    def _halves(
        self, workers: Sequence[int], sizes: Sequence[int], models: Sequence[Tensor], step: int
    ) -> Iterator[Tensor]:
        """Each worker's gradients [2, d] on the halves of its batch, without running buffers."""
        workload = self._problem.workload
        kept = workload.start.numel() - workload.num_buffers
        most = max(1, chunk_bytes(workload.start.device) // (2 * workload.start.nbytes))
        first = 0
        while first < len(workers):
            end = first + 1
            while end < len(workers) and end - first < most and sizes[end] == sizes[first]:
                end += 1
            asked = [each for each in workers[first:end] for _ in range(2)]
            numbers = [2 * step, 2 * step + 1] * (end - first)
            points = list(chain.from_iterable(zip(models[first:end], models[first:end], strict=True)))
            gradients = [each.value[:kept] for each in self._problem.gradients(asked, numbers, points)]
            for k in range(0, len(gradients), 2):
                yield torch.stack(gradients[k : k + 2])
            first = end
