"""Who is first, and how sure that is.

Schemes race on the same seeds, so one rule decides everywhere: a scheme is beaten by another if the median of
their paired ratio (``intervals.of_ratio``) says so. First is who is beaten by nobody. Where that is several
(they tie), or nobody (a beats b, b beats c and c beats a), the smallest median time among them, or among all,
decides, and then how often they arrive. Who does not in most of its repeats takes no part.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from itertools import combinations
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ..seeds import Floats
from .intervals import FEWEST, median_ratio, of_median

_RESAMPLES: Final = 10_000
_SEED: Final = 20_260_101


def find_winner(times: Mapping[str, Mapping[int, float]]) -> str | None:
    """The label of who is first, None where nobody arrives.

    Args:
        times: label -> seed -> time to target, infinite where it was not reached. Two schemes that share no
            seed do not beat each other.
    """
    medians = {label: of_median(list(column.values()))["median"] for label, column in times.items()}
    arrived = {
        label: (median, -sum(map(math.isfinite, times[label].values())))
        for label, median in medians.items()
        if median is not None
    }
    beaten = set()
    for a, b in combinations(arrived, 2):
        ratio = median_ratio(times[a], times[b])
        if ratio is not None and ratio != 1:
            beaten.add(a if ratio > 1 else b)
    unbeaten = [label for label in arrived if label not in beaten]
    return min(unbeaten or arrived, key=arrived.__getitem__, default=None)


def chances(columns: Floats) -> Floats:
    """How often each scheme is first where seeds are drawn anew with replacement: the bootstrap (Efron 1979).

    Args:
        columns: times [schemes, seeds], infinite where the target was not reached; all were run on all seeds.

    Returns:
        Shares [schemes] of 10,000 resamples; several that are first at once share one, and where nobody
        arrives nobody is first. Equal numbers of seeds are always resampled in the same way.

    Raises:
        ValueError: there are fewer than ``FEWEST`` seeds, which say nothing about chance.
    """
    schemes, seeds = columns.shape
    if seeds < FEWEST:
        raise ValueError(f"{seeds} seeds say nothing about chance; at least {FEWEST} are needed")
    medians = np.stack([_resampled_medians(column) for column in columns])
    arrived = np.isfinite(medians)
    unbeaten = arrived.copy()
    for a, b in combinations(range(schemes), 2):
        ahead = _resampled_medians(_log_ratios(columns[b], columns[a]))
        unbeaten[a] &= (ahead >= 0) | ~arrived[b]
        unbeaten[b] &= (ahead <= 0) | ~arrived[a]
    unbeaten |= arrived & ~unbeaten.any(axis=0)
    shares: Floats = find_winners(np.where(unbeaten, medians, np.inf)).mean(axis=1)
    return shares


def find_winners(columns: Floats) -> Floats:
    """Mark who is first, in times [schemes, races], with 1: shared among several, 0 where none arrives."""
    first = (columns == columns.min(axis=0)) & np.isfinite(columns)
    shares: Floats = first / np.maximum(first.sum(axis=0), 1)
    return shares


def _log_ratios(above: Floats, below: Floats) -> Floats:
    """Logarithms of the ratios; 0 where both are equal, infinite ones too."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs: Floats = np.where(above == below, 0.0, np.log(above) - np.log(below))
    return logs


def _resampled_medians(values: Floats) -> Floats:
    """Medians [10,000] of resamples of ``values`` [n]; between minus and plus infinity lies 0."""
    n = len(values)
    order = np.argsort(values)
    ranks = np.empty(n, np.int16)
    ranks[order] = np.arange(n)
    middle = ((n - 1) // 2, n // 2)
    drawn = np.partition(ranks[_drawn(n)], middle, axis=1)
    left, right = (values[order[drawn[:, place]]] for place in middle)
    with np.errstate(invalid="ignore"):
        medians: Floats = np.where(left == right, left, (left + right) / 2)
    return np.nan_to_num(medians, copy=False, nan=0.0, posinf=np.inf, neginf=-np.inf)


@lru_cache(maxsize=8)
def _drawn(n: int) -> NDArray[np.int64]:
    """Which of n values are in each resample."""
    generator = np.random.Generator(np.random.Philox(_SEED))
    return generator.integers(n, size=(_RESAMPLES, n))
