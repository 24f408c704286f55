"""Ratios of moments of gradients (``sim.training.gradient_noise``) along a run."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from typing_extensions import TypedDict

from ..intervals import LEVEL


class NoisePoint(TypedDict):
    """Moments of the gradients at one point of a run.

    Attributes:
        step, time_s: steps that the point's model has seen, and when it was measured on the run's clock.
        loss: training loss scored then.
        lr: learning rate of the step.
        noise, heterogeneity, norm2: S2, H2 and G2; the last two are None where workers had no common point,
            H2 also for a single worker.
    """

    step: int
    time_s: float
    loss: float | None
    lr: float
    noise: float
    heterogeneity: float | None
    norm2: float | None


class MeanRatio(TypedDict):
    """A ratio of means with its 95 % interval; all None: not resolved."""

    value: float | None
    low: float | None
    high: float | None


NOT_RESOLVED = MeanRatio(value=None, low=None, high=None)


def ratio_of_means(above: Sequence[float], below: Sequence[float]) -> MeanRatio:
    """mean(above) / mean(below) of K pairs from neighbouring points, with Fieller's interval.

    Not resolved where fewer than two pairs, or their spread, do not tell the lower mean from 0. Pairs are
    independent; where their means drift along a run, the interval is too wide rather than too narrow.
    """
    from scipy.special import stdtrit  # slow to import

    count = len(above)
    if count < 2:
        return NOT_RESOLVED
    top, bottom = float(np.mean(above)), float(np.mean(below))
    (v_top, v_both), (_, v_bottom) = (np.cov(above, below) / count).tolist()
    t2 = float(stdtrit(count - 1, (1 + LEVEL) / 2)) ** 2
    a, b, c = bottom**2 - t2 * v_bottom, top * bottom - t2 * v_both, top**2 - t2 * v_top
    if not (bottom > 0 and a > 0):
        return NOT_RESOLVED
    root = math.sqrt(max(b * b - a * c, 0.0))
    return MeanRatio(value=top / bottom, low=(b - root) / a, high=(b + root) / a)
