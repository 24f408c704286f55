"""Classes of blocks that cannot be told apart: one block stands for all of its class.

Blocks, ranks and links are *coloured*: first by their own numbers, then repeatedly by the colours of what
they need, join and cross, until no colour splits. All blocks of one colour leave and arrive at the same time
and have the same max-min fair rate at every instant, so that a class is one flow with the weight of all its
blocks, over classes of links with the bandwidth of all their links (colour refinement, which finds the
coarsest equitable partition).

Source:
    Grohe, Kersting, Mladenov, Selman, Dimension reduction via colour refinement, ESA 2014.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import numpy as np

from ..seeds import Floats, Integers
from .collective import Collective, Lists, posted_ahead


@dataclass(frozen=True, eq=False)
class Classes:
    """The classes of a collective whose receives are posted ahead.

    Attributes:
        collective: one block of each class, among classes of ranks.
        one: [classes] the block that stands for each.
        weight: [classes] number of blocks.
        rank: [ranks] class of each rank.
        links: [classes] classes of links that a block crosses.
        of_link: [links] class of each link of the network; -1: not used.
        bandwidths: [classes of links] bytes per second of all their links, divided by the links of the class
            that a block crosses.
    """

    collective: Collective
    one: Integers
    weight: list[int]
    rank: Integers
    links: list[tuple[int, ...]]
    of_link: Integers
    bandwidths: list[float]


def find_classes(
    c: Collective, ready: Integers, numbers: Floats, links: Integers, bandwidths: Floats
) -> Classes | None:
    """Find the classes; None if there are none by which a collective becomes half as long.

    Args:
        c: without posts but the joinings.
        ready: [ranks] equal numbers for ranks that join together.
        numbers: [any, blocks] costs of the blocks, beside their bytes and pieces.
        links: [blocks, most links of one] crossed links; -1: none.
        bandwidths: [links] bytes per second.
    """
    block = numbered(np.stack([c.num_bytes, c.pieces, *numbers]))
    row, column = np.nonzero(links >= 0)
    used, crossed = np.unique(links[row, column], return_inverse=True)
    rank, link = ready, np.unique(bandwidths[used], return_inverse=True)[1]
    needs = [each for each in (c.after, c.behind) if len(each.flat)]
    every, before = np.arange(c.messages), -1
    while (colours := sum(int(each.max(initial=-1)) for each in (block, rank, link))) > before:
        if block.max(initial=0) * 2 > c.messages:
            return None
        before = colours
        rank = split(rank, (c.source, block), (c.destination, block))
        link = split(link, (crossed, block[row] * links.shape[1] + column))
        ends = (every, rank[c.source]), (every, rank[c.destination])
        needed = [(each.owner, block[each.flat]) for each in needs]
        block = split(block, (row, link[crossed]), *ends, *needed)
    one, count = np.unique(block, return_index=True)[1], int(link.max(initial=-1)) + 1
    place = np.full(c.messages, -1)
    place[one] = np.arange(len(one))
    of_one = place[row] >= 0
    met, times = np.unique(place[row[of_one]] * count + link[crossed[of_one]], return_counts=True)
    of, on = np.divmod(met, max(count, 1))
    most = np.ones(count, np.int64)
    np.maximum.at(most, on, times)
    if (times < most[on]).any():
        return None
    of_link = np.full(len(bandwidths), -1)
    of_link[used] = link
    return Classes(
        _merged(c, block, rank, one),
        one,
        np.bincount(block).tolist(),
        rank,
        [tuple(each) for each in Lists.grouped(of, on, len(one)).tolist()],
        of_link,
        (np.bincount(link, bandwidths[used]) / most).tolist(),
    )


def _merged(c: Collective, block: Integers, rank: Integers, one: Integers) -> Collective:
    def lists(of: Lists) -> Lists:
        flat, lengths = of.of(one)
        pairs = np.unique(np.repeat(np.arange(len(one)), lengths) * len(one) + block[flat])
        return Lists.grouped(*np.divmod(pairs, len(one)), len(one))

    ahead = posted_ahead(int(rank.max()) + 1, rank[c.source[one]], rank[c.destination[one]], c.num_bytes[one])
    return replace(
        ahead,
        pieces=c.pieces[one],
        tail=c.tail,
        after=lists(c.after),
        behind=lists(c.behind),
    )


def numbered(columns: Floats) -> Integers:
    """Colour columns [any, n] by their numbers."""
    colour = np.zeros(columns.shape[1], np.int64)
    for row in columns:
        values, number = np.unique(row, return_inverse=True)
        colour = np.unique(colour * len(values) + number, return_inverse=True)[1]
    return colour


def split(colour: Integers, *meetings: tuple[Integers, Integers]) -> Integers:
    """Split colours by the colours that they meet: ``of[i]`` meets colour ``met[i]`` in each (of, met).

    Colours are numbered in the order in which they first occur.
    """
    draws = np.random.default_rng(0)
    sums = draws.integers(2**63, size=1 + colour.max(initial=0), dtype=np.uint64)[colour]
    for of, met in meetings:
        np.add.at(sums, of, draws.integers(2**63, size=1 + met.max(initial=0), dtype=np.uint64)[met])
    _, first, number = np.unique(sums, return_index=True, return_inverse=True)
    place = np.empty(len(first), np.int64)
    place[np.argsort(first)] = np.arange(len(first))
    return place[number]


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
