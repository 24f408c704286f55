"""Duration of a gradient at batch sizes without a measurement.

A device has a *floor*: a small batch takes as long as the successive launches of its kernels. Above it the
time grows with the batch. So the law is ``t(b) = max(floor, fixed + per_example b)``; a factor for other
effects (caches, partly filled tiles of a matrix product) is interpolated between the measured sizes, so that
the law is exact at them.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..seeds import Floats


@dataclass(frozen=True)
class BatchLaw:
    """``max(floor_s, fixed_s + per_example_s * batch_size)``."""

    floor_s: float
    fixed_s: float
    per_example_s: float

    def seconds(self, batch_sizes: Floats) -> Floats:
        """Durations [m] at batch sizes [m]."""
        return np.maximum(self.floor_s, self.fixed_s + self.per_example_s * batch_sizes)


def fit_batch_law(batch_sizes: Sequence[int], times_s: Sequence[float]) -> BatchLaw:
    """Fit the law to positive seconds [m] at ascending batch sizes [m], m >= 1, robust to one disturbed time.

    Least sum of relative errors (differences of logarithms) over every line through two of the measurements,
    with every floor through one; times neither fall with the batch nor are negative.
    """
    sizes, times = np.array(batch_sizes, dtype=np.float64), np.array(times_s)
    rising = [
        (times[i] - slope * sizes[i], slope)
        for i, j in itertools.combinations(range(len(sizes)), 2)
        if (slope := (times[j] - times[i]) / (sizes[j] - sizes[i])) > 0
    ]
    lines = [(time, 0.0) for time in times] + rising
    laws = [
        BatchLaw(float(floor), float(fixed), float(slope))
        for floor, (fixed, slope) in itertools.product([0.0, *times], lines)
        if floor > 0 or fixed >= 0
    ]
    errors = [np.abs(np.log(law.seconds(sizes) / times)).sum() for law in laws]
    return laws[int(np.argmin(errors))]


def seconds_at(batch_size: int, batch_sizes: Sequence[int], times_s: Sequence[float]) -> float:
    """Seconds of a gradient at ``batch_size``, by measured ones, extrapolated beyond them."""
    law = fit_batch_law(batch_sizes, times_s)
    sizes = np.array([*batch_sizes, batch_size], dtype=np.float64)
    *known, here = law.seconds(sizes)
    factors = np.log(np.array(times_s) / np.array(known))
    factor = np.interp(np.log(batch_size), np.log(sizes[:-1]), factors)
    return float(here * np.exp(factor))
