"""All-reduces that follow a cluster's hierarchy: GPUs in hosts, hosts in sites.

Source: reduce-scatters from the inside out, and all-gathers the same way back: BlueConnect of Cho et al., IBM
J. Res. Dev. 63(6), 2019.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise, permutations
from typing import Final, NamedTuple

import numpy as np

from ..seeds import Integers
from .collective import Round, Schedule, refuse_many, split_evenly

MAX_COLUMNS: Final = 16
"""Most owners in a site of single hosts: messages grow with them, and this many fill any pipe."""

Site = int | tuple[int, ...]
"""The ranks of a site: their number, or the number in each of its hosts."""

Sites = tuple[Site, ...]
"""Ranks of each site, or of its hosts, in order."""

_Part = tuple[int, int]
"""Begin and end of a part of the payload."""


def count_ranks(sites: Sites) -> int:
    """Number of ranks of all sites: ((8, 8), (8, 8), 3) has 35."""
    return sum(site if isinstance(site, int) else sum(site) for site in sites)


def host_sizes(sites: Sites) -> tuple[int, ...]:
    """Ranks per host, in the order of the ranks: (8, 8, 1, 1, 1) of ((8, 8), 3)."""
    return tuple(gpus for site in sites for gpus in ((1,) * site if isinstance(site, int) else site))


def place_ranks(sites: Sites) -> tuple[Integers, Integers]:
    """The site and the host of each rank, as numbers [ranks]."""
    sizes, hosts = np.array([count_ranks((site,)) for site in sites]), np.array(host_sizes(sites))
    return np.repeat(np.arange(len(sizes)), sizes), np.repeat(np.arange(len(hosts)), hosts)


def tiers(sites: Sites) -> tuple[tuple[int, ...], ...]:
    """Sizes of all groups from the inside out; a group is represented by one of its members further out.

    >>> tiers(((8, 8), (8, 8, 8)))
    ((8, 8, 8, 8, 8), (2, 3))
    >>> tiers((4, 4))
    ((4, 4),)
    """
    inside = host_sizes(sites)
    outside = tuple(site if isinstance(site, int) else len(site) for site in sites)
    return (outside,) if max(inside, default=1) == 1 else (inside, outside)


def crosses(sites: Sites) -> bool:
    """Whether there are groups to go between: several sites, or hosts with several GPUs."""
    return len(sites) > 1 or len(tiers(sites)[0]) > 1


class PayloadPart(NamedTuple):
    """A part of the payload in one message: who sends or gets it, and where it begins and ends."""

    peer: int
    start: int
    stop: int


@dataclass(frozen=True)
class PieceRound:
    """One round of a rank: all its receives are posted, then all its sends.

    Attributes:
        receives, sends: of parts of the payload.
        adds: whether received parts are added to the present ones; else they replace them.
    """

    receives: tuple[PayloadPart, ...]
    sends: tuple[PayloadPart, ...]
    adds: bool


@lru_cache(maxsize=64)
def hierarchical_pieces(sites: Sites, length: int) -> tuple[tuple[PieceRound, ...], ...]:
    """A hierarchical all-reduce of a payload [length], by rank and round: reduce from inside, gather back.

    In a group (a host, then the hosts of a site) the payload is cut into as many columns as the smallest
    group has members, and so many members of each own one. (1) Everybody sends each column to its owner in
    the group. (2) The owners of a column in different groups are members of the groups further out, where the
    same is done with the column; the owners in different sites cut it into one part per site, send each part
    to the site's owner, who sends the sum back. (3) Owners send their column to everybody in their group.
    Where every host is one GPU, a site has ``MAX_COLUMNS`` columns at most. ``length`` is in bytes or
    elements.
    """
    sizes = tiers(sites)
    n, last = count_ranks(sites), 2 * len(sizes) + 1
    most = _columns(sizes)
    refuse_many("a hierarchical all-reduce", n, 2 * n * (sum(most) + len(sites)))
    receives: list[list[list[PayloadPart]]] = [[[] for _ in range(last + 1)] for _ in range(n)]
    sends: list[list[list[PayloadPart]]] = [[[] for _ in range(last + 1)] for _ in range(n)]

    for phase, source, destination, (start, stop) in _up_and_down(range(n), 0, (0, length), sizes, most):
        if stop > start:
            sends[source][phase].append(PayloadPart(destination, start, stop))
            receives[destination][phase].append(PayloadPart(source, start, stop))
    return tuple(
        tuple(
            PieceRound(tuple(receives[rank][k]), tuple(sends[rank][k]), adds=k <= len(sizes))
            for k in range(last + 1)
        )
        for rank in range(n)
    )


def _columns(sizes: Sequence[Sequence[int]]) -> list[int]:
    return [min(groups) if len(sizes) > 1 else min(*groups, MAX_COLUMNS) for groups in sizes]


def even_length(sites: Sites) -> int:
    """Length of the shortest payload of which all parts are equal in ``hierarchical_pieces``."""
    return math.prod(_columns(tiers(sites))) * len(sites)


def _up_and_down(
    ranks: Sequence[int], phase: int, part: _Part, sizes: Sequence[Sequence[int]], most: Sequence[int]
) -> Iterator[tuple[int, int, int, _Part]]:
    """(phase, source, destination, part) of each message from one tier on outwards, and back to it."""
    if phase == len(sizes):  # between sites
        parts = _cut(part, len(ranks))
        for (position, owner), (other, peer) in permutations(enumerate(ranks), 2):
            yield phase, owner, peer, parts[other]
            yield phase + 1, owner, peer, parts[position]
        return
    groups = sizes[phase]
    firsts = list(accumulate(groups[:-1], initial=0))
    for column, piece in enumerate(_cut(part, most[phase])):
        owners = [ranks[first + column] for first in firsts]
        for owner, first, members in zip(owners, firsts, groups, strict=True):
            for rank in ranks[first : first + members]:
                if rank != owner:
                    yield phase, rank, owner, piece
                    yield 2 * len(sizes) + 1 - phase, owner, rank, piece
        yield from _up_and_down(owners, phase + 1, piece, sizes, most)


def _cut(part: _Part, number: int) -> list[_Part]:
    """So many parts of a part, as equal as can be."""
    ends = accumulate(split_evenly(part[1] - part[0], number), initial=part[0])
    return list(pairwise(ends))


@lru_cache(maxsize=64)
def hierarchical_all_reduce(sites: Sites, num_bytes: int) -> Schedule:
    """The messages of ``hierarchical_pieces``, all of a round at once: two latencies of each tier."""

    def messages(pieces: Sequence[PayloadPart]) -> tuple[tuple[int, int], ...]:
        return tuple((piece.peer, piece.stop - piece.start) for piece in pieces)

    return Schedule(
        tuple(
            tuple(Round(messages(each.receives), messages(each.sends)) for each in rounds)
            for rounds in hierarchical_pieces(sites, num_bytes)
        ),
        1,
    )
