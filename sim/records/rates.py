"""Orders of schemes at three learning rates: those of ``tune``, or of more the best one and its neighbours.

How many steps a scheme needs over another's depends on the rate by a factor of 1.5 and more, and what is the
best rate of a small model says little of a large one's. So an order counts as settled only where it is the
same at all three, with all-reduce held at its own best rate. Times are those of the trials of ``tune`` on the
seed that all points have: to the target, or to another level of the score.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from typing_extensions import TypedDict

from ..config.units import format_plain
from ..seeds import Floats
from .intervals import finite

RATE: Final = "optimizer.lr"
"""Key of the learning rate in ``tune``."""
_RATES: Final = 3
"""Learning rates at which an order has to be the same."""


class RateOrders(TypedDict):
    """Who is first at each of at most three learning rates, in ascending order.

    Attributes:
        text: sentences, shown with the verdict.
        settled: there are three, and the first of the repeats is alone first at each.
        held: label of the scheme that is held at its best rate; None: there is no all-reduce.
        rates: of the optimiser, at most three.
        first: label of the first at each; None where several arrive together, or none.
        behind: label -> its time over that of the first of the repeats at each rate; None where it does not
            arrive, 0 where it does and the first of the repeats does not.
    """

    text: str
    settled: bool
    held: str | None
    rates: list[float]
    first: list[str | None]
    behind: dict[str, list[float | None]]


def find_orders(
    times: Mapping[str, Mapping[float, float]], first: str, best: float, held: str | None
) -> RateOrders:
    """The orders at three rates, around ``best`` where there are more.

    Args:
        times: label -> learning rate -> seconds to the target, infinite where a trial did not arrive. All
            have the same rates.
        first: label of the first of the repeats.
        held: label of the scheme whose time at ``best`` counts at every rate, if any.
    """
    grid = sorted(times[first])
    at = grid.index(best)
    rates = grid if len(grid) == _RATES else grid[max(0, at - 1) : at + 2]
    columns = [{x: own[best if x == held else rate] for x, own in times.items()} for rate in rates]
    firsts = [_first_of(column) for column in columns]
    behind = {
        x: [finite(column[x] / column[first]) if column[first] else None for column in columns]
        for x in times
        if x != first
    }
    settled = len(rates) == _RATES and set(firsts) == {first}
    under = f" ({held} held at its best, {format_plain(best)})" if held else ""
    if settled:
        text = f"{first} is first at learning rates of {_listed(rates)} alike"
    elif len(rates) < _RATES:
        text = f"Open by learning rate: the best, {format_plain(best)}, is at the end of the list"
    else:
        at_rates = {x: [rate for rate, each in zip(rates, firsts, strict=True) if each == x] for x in firsts}
        text = "Open by learning rate: " + ", ".join(
            f"{x or 'nobody'} first at {_listed(own)}" for x, own in at_rates.items()
        )
    return RateOrders(
        text=f"{text}{under}.", settled=settled, held=held, rates=rates, first=firsts, behind=behind
    )


def _first_of(column: Mapping[str, float]) -> str | None:
    """Label of the least time; None where several share it, or none arrives."""
    least, next_least = sorted([*column.values(), math.inf])[:2]
    return min(column, key=column.__getitem__) if least < next_least else None


def _listed(rates: Sequence[float]) -> str:
    return " and ".join(map(format_plain, rates))


def seconds_to_levels(times_s: Floats, scores: Floats, levels: Floats) -> Floats:
    """Seconds to each level of a rising score, interpolated between scores; infinite without one."""
    best = np.maximum.accumulate(scores)
    after = np.searchsorted(best, levels)
    after[after == 0] = 1  # met by the first score
    reached = after < len(best)
    seconds = np.full(len(levels), np.inf)
    to, start = after[reached], after[reached] - 1
    part = np.clip((levels[reached] - best[start]) / np.maximum(best[to] - best[start], 1e-300), 0.0, 1.0)
    seconds[reached] = times_s[start] + part * (times_s[to] - times_s[start])
    return seconds
