"""Max-min fair sharing of many flows of which few differ, as in an exchange of all with all.

Flows and links are *coloured*: at first by their own numbers, then again and again by the colours of what
they meet, until nothing splits. All flows of one colour have the same rate at every instant, so that one
stands for all of them (colour refinement, which finds the coarsest equitable partition).

Source:
    Grohe, Kersting, Mladenov, Selman, Dimension reduction via colour refinement, ESA 2014.
"""

from __future__ import annotations

import numpy as np

from ..seeds import Floats, Integers
from .symmetric import TIE

MAX_COLOURS = 500
"""Of more colours the flows are followed one by one."""


def time_alike(
    begin_s: Floats, num_bytes: Floats, peak: Floats, links: Integers, bandwidths: Floats
) -> Floats | None:
    """When the last byte of each flow [flows] has left; None where too many of them differ.

    Args:
        begin_s, num_bytes, peak: [flows] when bytes can leave, how many, and bytes per second at most.
        links: [flows, most links of one] those that each crosses; -1: there is none.
        bandwidths: [links] bytes per second.
    """
    numbers = np.stack([begin_s, num_bytes, peak])
    colour = np.unique(numbers, axis=1, return_inverse=True)[1].reshape(-1)
    used, link = np.unique(links[links >= 0], return_inverse=True)
    flow = np.nonzero(links >= 0)[0]
    shade = np.unique(bandwidths[used], return_inverse=True)[1]
    while True:
        before = colour.max(initial=-1), shade.max(initial=-1)
        if before[0] >= MAX_COLOURS:
            return None
        shade = _refined(shade, link, colour[flow])
        colour = _refined(colour, flow, shade[link])
        if (colour.max(initial=-1), shade.max(initial=-1)) == before:
            break
    one = np.unique(colour, return_index=True)[1]
    load = np.zeros((len(one), before[1] + 1))
    np.add.at(load, (colour[flow], shade[link]), 1.0)
    load /= np.bincount(shade)
    capacity = np.empty(load.shape[1])
    capacity[shade] = bandwidths[used]
    return _followed(begin_s[one], num_bytes[one], peak[one], load, capacity)[colour]


def _refined(colour: Integers, of: Integers, met: Integers) -> Integers:
    """Split colours by the colours that are met: ``of[i]`` meets one of colour ``met[i]``."""
    hashed = np.random.default_rng(0).integers(2**63, size=met.max(initial=0) + 1, dtype=np.uint64)
    sums = np.zeros(len(colour), np.uint64)
    np.add.at(sums, of, hashed[met])
    return np.unique(np.stack([colour.astype(np.uint64), sums]), axis=1, return_inverse=True)[1].reshape(-1)


def _followed(begin_s: Floats, num_bytes: Floats, peak: Floats, load: Floats, capacity: Floats) -> Floats:
    """When flows have left, of which there are ``load`` [flows, links] on a link."""
    ended_s, rest, now_s = np.full(len(begin_s), np.inf), num_bytes.copy(), float(begin_s.min())
    while np.isinf(ended_s).any():
        on = np.flatnonzero((begin_s <= now_s) & np.isinf(ended_s))
        rates = _fair(peak[on], load[on], capacity)
        ends_s = now_s + rest[on] / rates
        next_s = min(ends_s.min(initial=np.inf), begin_s[begin_s > now_s].min(initial=np.inf))
        over = ends_s <= next_s + TIE * abs(next_s)
        ended_s[on[over]] = ends_s[over]
        on, rates = on[~over], rates[~over]
        rest[on] = np.maximum(rest[on] - rates * (next_s - now_s), 0.0)
        now_s = next_s
    return ended_s


def _fair(peak: Floats, load: Floats, capacity: Floats) -> Floats:
    """The max-min fair rates of flows: all rise together, each until a link is full or its peak is met."""
    rates, free, rising = np.empty(len(peak)), capacity.copy(), np.ones(len(peak), bool)
    while rising.any():
        number = load[rising].sum(axis=0)
        share = np.divide(free, number, out=np.full(len(free), np.inf), where=number > 0)
        level = min(peak[rising].min(), share.min(initial=np.inf))
        full = share <= level * (1 + TIE)
        stop = rising & ((peak <= level * (1 + TIE)) | (load[:, full] > 0).any(axis=1))
        rates[stop] = level
        used = load[stop].sum(axis=0)
        busy = used > 0  # the level may be infinite
        free[busy] = np.maximum(free[busy] - level * used[busy], 0.0)
        rising &= ~stop
    return rates
