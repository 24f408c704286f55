"""Medians over repeats and their intervals.

Repeats are paired: seed s saw the same data and the same stragglers under every scheme. So two schemes are
compared by the median of their ratio on each seed, which cancels what they have in common. Ratios
are averaged and interpolated as logarithms, so that a over b says what b over a says.

Intervals lie between order statistics. The r-th smallest and the r-th largest of n values hold the true
median in ``1 - 2 P(Bin(n, 1/2) < r)`` of all cases, whatever the distribution; between the two r on either
side of 95 % the bounds are interpolated (Hettmansperger and Sheather 1986; exact for a Laplace distribution,
within a per cent for the others in ``tests/sim/records/test_intervals.py``). A percentile bootstrap
of a median approximates this, coarsely for few repeats: its resamples have hardly more
medians than there are values. Over seven repeats it holds the truth in 87 % of all cases, or in 98 %,
depending on how a quantile is read off so few steps.

Values may be infinite (a run that never reached the target), so that nothing is dropped.

An interval needs ``FEWEST`` repeats. The range of n values misses the true median with probability
``2 ** (1 - n)``: with three repeats a "95 %" interval could hold it in 75 % of all cases at best.

References:
    Hettmansperger and Sheather, Confidence intervals based on interpolated order statistics, Statistics and
    Probability Letters 4, 1986.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

import numpy as np
from typing_extensions import TypedDict

LEVEL: Final = 0.95
FEWEST: Final = 5
"""Repeats needed for an interval; with five, the range holds the median in 93.75 %."""


ENOUGH_DRAWS: Final = 10
"""Repeats needed to say in which time 9 of 10 get there."""

DRAWN_RUNS: Final = 30
"""Number of predictions whose range a measurement is compared with where chance decides."""


class Interval(TypedDict):
    """A median over repeats with its 95 % interval.

    ``median`` is None if most repeats never reached the target. ``low`` and ``high`` are None with fewer than
    ``FEWEST`` repeats; otherwise a bound is None where it is infinite.
    """

    median: float | None
    low: float | None
    high: float | None


UNKNOWN: Final = Interval(median=None, low=None, high=None)


def of_median(values: Sequence[float]) -> Interval:
    """Median of at least one value, with its interval."""
    return _interval(sorted(values), ratios=False)


def of_ratio(above: Mapping[int, float], below: Mapping[int, float]) -> Interval:
    """Median ratio over shared seeds, with its interval; values are not negative, and inf / inf is 1."""
    ratios = paired_ratios(above, below)
    return _interval(ratios, ratios=True) if ratios else UNKNOWN


def of_runs(values: Sequence[float], level: float = 1.0) -> list[float]:
    """Range that holds another such run in at most ``level`` of cases; level 1, of n runs: (n - 1) / (n + 1).
    Run k of n, in order, is above another one with probability k / (n + 1).
    """
    ends = np.quantile(values, [(1 - level) / 2, (1 + level) / 2], method="weibull")
    return [float(end) for end in ends]


def median_ratio(above: Mapping[int, float], below: Mapping[int, float]) -> float | None:
    """Median of ``of_ratio``, infinite where it is; None where no seed is shared."""
    ratios = paired_ratios(above, below)
    return _median(ratios, ratios=True) if ratios else None


def paired_ratios(above: Mapping[int, float], below: Mapping[int, float]) -> list[float]:
    """Ratios on the shared seeds, ascending; see ``of_ratio``."""
    shared = [(above[seed], below[seed]) for seed in above if seed in below]
    return sorted(1.0 if a == b else a / b if b else math.inf for a, b in shared)


def _interval(ordered: Sequence[float], ratios: bool) -> Interval:
    n = len(ordered)
    median = finite(_median(ordered, ratios))
    if n < FEWEST:
        return Interval(median=median, low=None, high=None)
    rank, weight = bound_place(n)
    low = _between(ordered[rank - 1], ordered[rank], weight, ratios)
    high = _between(ordered[n - rank], ordered[n - rank - 1], weight, ratios)
    return Interval(median=median, low=finite(low), high=finite(high))


def _median(ordered: Sequence[float], ratios: bool) -> float:
    """Median, of an even number halfway between the middle two; for ratios their geometric mean."""
    left, right = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    if left == right:
        return left
    if not ratios:
        return (left + right) / 2
    if left == 0:
        return 1.0 if math.isinf(right) else 0.0
    return left * math.sqrt(right / left)


def _between(outer: float, inner: float, weight: float, ratios: bool) -> float:
    """Interpolate between two neighbours by ``weight`` from the outer one; never towards infinity."""
    whole = all(math.isfinite(value) and (value or not ratios) for value in (outer, inner))
    if not weight or outer == inner or not whole:
        return outer
    return outer * math.pow(inner / outer, weight) if ratios else outer + weight * (inner - outer)


@lru_cache
def bound_place(n: int) -> tuple[int, float]:
    """Rank of an interval's bound among n values, and the weight towards the next value."""
    rank, fewer, some = 1, 1, n  # of n coins: ways of fewer than ``rank`` heads, and of ``rank``
    while rank < n // 2 and _coverage(n, fewer + some) >= LEVEL:
        rank, fewer, some = rank + 1, fewer + some, some * (n - rank) // (rank + 1)
    known = _coverage(n, fewer)
    if known <= LEVEL:  # even the range of all values holds the median less often
        return rank, 0.0
    off = (known - LEVEL) / (known - _coverage(n, fewer + some))
    return rank, (n - rank) * off / (rank + (n - 2 * rank) * off)


def _coverage(n: int, fewer: int) -> float:
    """Probability that the median of n values lies between two of the same rank from both ends."""
    return 1 - fewer / (1 << (n - 1))


def finite(value: float | None) -> float | None:
    """``value`` as a float, counts too; None where it is not finite."""
    return float(value) if value is not None and math.isfinite(value) else None


def or_inf(value: float | None) -> float:
    """``value``, infinite where it is None."""
    return math.inf if value is None else value
