"""Who is first, and how sure that is.

Schemes race on the same seeds, so one rule decides everywhere: a scheme is beaten by another if the median of
their paired ratio (``intervals.of_ratio``) says so. First is who is beaten by nobody. Where that is several
(they tie), or nobody (a beats b, b beats c and c beats a), the smallest median time among them, or among all,
decides, and then how often they arrive. Who does not in most of its repeats takes no part.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import combinations

import numpy as np

from ..seeds import Floats
from .intervals import median_ratio, of_median


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


def chance_to_win(wins: float, races: int) -> float:
    """Estimate a scheme's chance to be first on one more seed: Jeffreys' (wins + 1/2) / (races + 1).

    It is never 0 or 1: few races do not make certain. Each scheme is set against all others together, so that
    the chances of two add up to 1, and those of more to more than 1.

    Args:
        wins: how many races it has won; a tie counts in part.
        races: how many there were.

    Source:
        Brown, Cai and DasGupta, Interval estimation for a binomial proportion, Statistical Science 16 (2001).
    """
    return (wins + 0.5) / (races + 1)


def find_winners(columns: Floats) -> Floats:
    """Mark who is first, in times [schemes, races], with 1: shared among several, 0 where none arrives."""
    first = (columns == columns.min(axis=0)) & np.isfinite(columns)
    shares: Floats = first / np.maximum(first.sum(axis=0), 1)
    return shares
