"""Max-min fair sharing among many flows of few kinds, as in an all-to-all exchange.

Flows that begin together and need no other are coloured as in ``classes``, without their ranks: all flows of
one colour have the same rate at every instant, so that one stands for all of them.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np

from ..seeds import Floats, Integers
from .classes import numbered, split

TIE: Final = 1e-12
"""Relative difference below which shares, rates and times count as equal."""

Crossings: TypeAlias = tuple[Integers, Integers, Floats]
"""Flow and link of each crossing, [crossings] each, and the number of flows of that kind on the link."""


def time_alike(
    begin_s: Floats, num_bytes: Floats, peak: Floats, links: Integers, bandwidths: Floats
) -> Floats:
    """Time at which the last byte of each flow [flows] has left.

    Args:
        begin_s, num_bytes, peak: [flows] earliest begin, bytes, and largest bytes per second.
        links: [flows, most links of one] crossed links; -1 for none.
        bandwidths: [links] bytes per second.
    """
    colour = numbered(np.stack([begin_s, num_bytes, peak]))
    used, link = np.unique(links[links >= 0], return_inverse=True)
    flow = np.nonzero(links >= 0)[0]
    shade = np.unique(bandwidths[used], return_inverse=True)[1]
    while True:
        before = colour.max(initial=-1), shade.max(initial=-1)
        shade = split(shade, (link, colour[flow]))
        colour = split(colour, (flow, shade[link]))
        if (colour.max(initial=-1), shade.max(initial=-1)) == before:
            break
    one = np.unique(colour, return_index=True)[1]
    capacity = np.empty(before[1] + 1)
    capacity[shade] = bandwidths[used]
    met, number = np.unique(colour[flow] * len(capacity) + shade[link], return_counts=True)
    of, on = np.divmod(met, len(capacity))
    crossings = of, on, number / np.bincount(shade)[on]
    return _followed(begin_s[one], num_bytes[one], peak[one], crossings, capacity)[colour]


def _followed(
    begin_s: Floats, num_bytes: Floats, peak: Floats, crossings: Crossings, capacity: Floats
) -> Floats:
    of, on, load = crossings
    ended_s, rest, now_s = np.full(len(begin_s), np.inf), num_bytes.copy(), float(begin_s.min())
    while np.isinf(ended_s).any():
        here = (begin_s <= now_s) & np.isinf(ended_s)
        flows, met = np.flatnonzero(here), here[of]
        places = (np.cumsum(here) - 1)[of[met]]
        rates = _fair(peak[flows], (places, on[met], load[met]), capacity)
        ends_s = now_s + rest[flows] / rates
        next_s = min(ends_s.min(initial=np.inf), begin_s[begin_s > now_s].min(initial=np.inf))
        over = ends_s <= next_s + TIE * abs(next_s)
        ended_s[flows[over]] = ends_s[over]
        flows, rates = flows[~over], rates[~over]
        rest[flows] = np.maximum(rest[flows] - rates * (next_s - now_s), 0.0)
        now_s = next_s
    return ended_s


def _fair(peak: Floats, crossings: Crossings, capacity: Floats) -> Floats:
    of, on, load = crossings
    rates, free, rising = np.empty(len(peak)), capacity.copy(), np.ones(len(peak), bool)
    while rising.any():
        number = np.bincount(on, load, len(capacity))
        share = np.divide(free, number, out=np.full(len(free), np.inf), where=number > 0)
        level = min(peak[rising].min(), share.min(initial=np.inf))
        stop = peak <= level * (1 + TIE)
        stop[of[(share <= level * (1 + TIE))[on]]] = True
        stop &= rising
        rates[stop] = level
        stopped, rising = stop[of], rising & ~stop
        used = np.bincount(on[stopped], load[stopped], len(capacity))
        busy = used > 0  # the level may be infinite
        free[busy] = np.maximum(free[busy] - level * used[busy], 0.0)
        of, on, load = of[~stopped], on[~stopped], load[~stopped]
    return rates
