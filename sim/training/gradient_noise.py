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

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from ..seeds import Floats


@dataclass(frozen=True)
class GradientMoments:
    """S2, H2 and G2 at one point; H2 is None for one worker, H2 and G2 where workers had no common point."""

    noise: float
    heterogeneity: float | None = None
    norm2: float | None = None


def half_batch(batch_size: int, shard: int) -> int:
    """Examples in each half of a batch that is drawn without replacement from ``shard`` >= 2 of them."""
    return max(1, min(batch_size, shard) // 2)


def noise_of(gaps2: Floats, batches: ArrayLike) -> Floats:
    """S2_i [n] from |g_i1 - g_i2|^2 [n] and b_i [n]."""
    noise: Floats = np.asarray(batches) * gaps2 / 4
    return noise


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
    of_worker = noise_of(gaps2, sizes)
    error = of_worker / sizes * (1 - sizes / np.asarray(shards))
    between = None
    if n > 1:
        between = float((norms2.sum() - n * mean_norm2) / (n - 1) - error.mean())
    return GradientMoments(float(of_worker.mean()), between, float(mean_norm2 - error.sum() / n**2))


def moments_of_halves(halves: Tensor, batches: ArrayLike, shards: ArrayLike) -> GradientMoments:
    """Moments from the half batches' gradients [n, 2, d] at a common point; b_i and N_i [n] as there."""
    halves = halves.double()
    own = halves.mean(dim=1)
    gaps2, norms2 = (halves[:, 0] - halves[:, 1]).square().sum(dim=1), own.square().sum(dim=1)
    return moments(
        gaps2.cpu().numpy(), norms2.cpu().numpy(), own.mean(dim=0).square().sum().item(), batches, shards
    )
