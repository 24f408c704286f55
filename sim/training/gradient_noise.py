"""Gradients of half batches, for the moments of ``sim.records.gradient_noise``."""

from __future__ import annotations

from numpy.typing import ArrayLike
from torch import Tensor

from ..records.gradient_noise import GradientMoments, moments


def moments_of_halves(halves: Tensor, batches: ArrayLike, shards: ArrayLike) -> GradientMoments:
    """Moments from the half batches' gradients [n, 2, d] at a common point; b_i and N_i [n] as there."""
    halves = halves.double()
    own = halves.mean(dim=1)
    gaps2, norms2 = (halves[:, 0] - halves[:, 1]).square().sum(dim=1), own.square().sum(dim=1)
    return moments(
        gaps2.cpu().numpy(), norms2.cpu().numpy(), own.mean(dim=0).square().sum().item(), batches, shards
    )
