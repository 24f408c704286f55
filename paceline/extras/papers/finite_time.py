"""Sequences that average exactly after finitely many steps; builders as in ``sim/topology/graphs/named.py``.

A step consists of pairs with weights of their own, symmetric and not negative; each worker keeps the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from paceline.sim.config.settings import Settings
from paceline.sim.errors import InputError
from paceline.sim.topology.entry import Graphs, NoOptions, Topology
from paceline.sim.topology.graphs.named import nearest_workers, power_of_two
from paceline.sim.topology.matrix import pairwise

Ranks = NDArray[np.int64]
WeightedPairs = tuple[Ranks, Ranks, NDArray[np.float64]]
"""Of each pair: u, v, and the weight that u and v give each other."""

_NOBODY: Final[WeightedPairs] = np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)
_MAX_DIGITS: Final = 64
"""More digits than any number of workers has, in any base."""


class MaxPeers(Settings):
    """Options of the sequences with a given number of peers."""

    peers: int = Field(default=1, ge=1, description="most neighbours k in a step")


def base(workers: int, options: MaxPeers, seed: int) -> Graphs:
    """The Base-(k+1) graph: k peers a step at most, and exact after O(log n) steps for any n.

    The shorter of two ways: ``simple_base``, or that on n / p workers, p times side by side, followed by
    cliques that join the p copies (p: the part of n with no prime factor above k + 1). Source: Takezawa et
    al., NeurIPS 2023 (arXiv 2305.11420).
    """
    k, ranks = options.peers, np.arange(workers)
    smooth = _smooth_part(workers, k)
    each = workers // smooth
    copies = [_simple(ranks[c * each : (c + 1) * each], k) for c in range(smooth)]
    split = _beside(copies) + _beside([_hyper_hypercube(ranks[r::each], k) for r in range(each)])
    simple = _simple(ranks, k)
    return _sequence(workers, min(simple, split, key=len))


def simple_base(workers: int, options: MaxPeers, seed: int) -> Graphs:
    """The Simple Base-(k+1) graph: exact for any n, from n written in base k + 1. Source: Takezawa et al.,
    NeurIPS 2023 (arXiv 2305.11420).
    """
    return _sequence(workers, _simple(np.arange(workers), options.peers))


def hyper_hypercube(workers: int, options: MaxPeers, seed: int) -> Graphs:
    """n as a product of factors of at most k + 1; step l averages over cliques along the l-th factor.

    With one peer: the hypercube, one dimension a step. Source: Takezawa et al., NeurIPS 2023 (arXiv
    2305.11420).

    Raises: ``InputError`` where n has a prime factor above k + 1.
    """
    k = options.peers
    if _smooth_part(workers, k) != workers:
        primes = (p for p in range(k + 2, workers + 1) if workers % p == 0 and _smooth_part(p, p - 2) == 1)
        needed = max(primes) - 1
        near = nearest_workers(workers, lambda n: _smooth_part(n, k) == n)
        raise InputError(
            f"hyper_hypercube with {k} peers needs workers without a prime factor above {k + 1}, not "
            f"{workers}; {near}, or {needed} peers"
        )
    return _sequence(workers, _hyper_hypercube(np.arange(workers), k))


class Base(Settings):
    """Options of ``de_bruijn``."""

    base: int = Field(default=2, ge=2, description="b; n must be a power of it")


def de_bruijn(workers: int, options: Base, seed: int) -> Graphs:
    """One directed graph whose every step is the same and whose log_b n-th power is exact.

    Worker i hears (b i + r) mod n, r = 0 ... b - 1, all with weight 1 / b. Source: de Bruijn 1946; as an
    averaging matrix in Delvenne, Carli and Zampieri, Systems & Control Letters 2009.

    Raises: ``InputError`` where n is no power of b.
    """
    from scipy.sparse import csr_array

    b = options.base
    below = 1
    while below * b <= workers:
        below *= b
    if below != workers:
        choices = " or ".join(str(n) for n in (below, below * b) if n > 1)
        raise InputError(f"de_bruijn needs a power of {b} of workers, not {workers}; use {choices}")
    rows = np.repeat(np.arange(workers), b)
    columns = (b * rows + np.tile(np.arange(b), workers)) % workers
    w = csr_array((np.full(rows.size, 1.0 / b), (rows, columns)), shape=(workers, workers))
    return Graphs(lambda step: w, weighted=True)


def one_peer_hypercube(workers: int, options: Settings, seed: int) -> Graphs:
    """At step k the workers whose ranks differ in binary digit k mod log2 n average.

    Source: Shi, Li, Johansson and Johansson, IEEE/ACM Trans. Networking 2016.

    Raises: ``InputError`` where n is no power of two.
    """
    power_of_two("one_peer_hypercube", workers)
    return _sequence(workers, _hyper_hypercube(np.arange(workers), 1))


def _sequence(workers: int, steps: Sequence[WeightedPairs]) -> Graphs:
    matrices = [pairwise(workers, *pairs) for pairs in steps]
    return Graphs(lambda step: matrices[step % len(matrices)], len(matrices), weighted=True)


def _beside(sequences: Sequence[list[WeightedPairs]]) -> list[WeightedPairs]:
    """Run sequences on disjoint workers at the same time; idle where theirs has ended."""
    together = []
    for step in range(max(len(steps) for steps in sequences)):
        u, v, share = zip(*(steps[step] for steps in sequences if step < len(steps)), strict=True)
        together.append((np.concatenate(u), np.concatenate(v), np.concatenate(share)))
    return together


def _hyper_hypercube(ranks: Ranks, peers: int) -> list[WeightedPairs]:
    """Exact averages over ``ranks``, whose number is a product of factors up to ``peers`` + 1."""
    steps: list[WeightedPairs] = []
    stride = 1
    place = np.arange(len(ranks))
    for factor in _factors(len(ranks), peers + 1):
        digit = place // stride % factor
        first = [place[digit < factor - more] for more in range(1, factor)]
        second = [each + more * stride for more, each in enumerate(first, 1)]
        u, v = ranks[np.concatenate(first)], ranks[np.concatenate(second)]
        steps.append((u, v, np.full(u.size, 1.0 / factor)))
        stride *= factor
    return steps


def _simple(ranks: Ranks, peers: int) -> list[WeightedPairs]:
    """Exact averages over any number of ranks.

    With n = a_1 b^p_1 + ... + a_L b^p_L, b = peers + 1, p_1 > p_2 > ..., the ranks fall into blocks of a_l
    b^p_l, and these into a_l parts of b^p_l:

    1. each block averages;
    2. in step l, each rank in a later block averages with one partner in each part of block l, with weight
       b^p_l / (ranks in blocks l, l + 1, ...), after which the parts of block l have the mean of all;
    3. each part averages. A block begins this as soon as its turn in 2 is over.
    """
    n, b = len(ranks), peers + 1
    if _smooth_part(n, peers) == n:
        return _hyper_hypercube(ranks, peers)
    sizes = [b**p for p in reversed(range(_MAX_DIGITS)) if b**p <= n and n // b**p % b]
    ends = np.cumsum([n // size % b * size for size in sizes])
    blocks = np.split(ranks, ends[:-1])
    first = _beside([_hyper_hypercube(block, peers) for block in blocks])
    tracks = [first]
    for number, (block, size, end) in enumerate(zip(blocks, sizes, ends, strict=True)):
        parts, later = block.reshape(-1, size), ranks[end:]
        track = [_NOBODY] * (len(first) + number)
        if later.size:
            partners = parts[:, : later.size].ravel()
            share = np.full(partners.size, size / (block.size + later.size))
            track.append((np.tile(later, len(parts)), partners, share))
        tracks.append([*track, *_beside([_hyper_hypercube(part, peers) for part in parts])])
    return _beside(tracks)


def _smooth_part(number: int, peers: int) -> int:
    """The largest divisor of ``number`` without a prime factor above ``peers`` + 1."""
    rough = number
    for divisor in range(2, min(peers + 1, number) + 1):
        while rough % divisor == 0:
            rough //= divisor
    return number // rough


def _factors(number: int, largest: int) -> list[int]:
    """Few factors of at most ``largest``, found greedily, the largest first."""
    factors = []
    while number > 1:
        factors.append(next(f for f in range(min(largest, number), 1, -1) if number % f == 0))
        number //= factors[-1]
    return factors


BASE: Final = Topology("base", base, MaxPeers, "any", "up to `peers`")
SIMPLE_BASE: Final = Topology("simple_base", simple_base, MaxPeers, "any", "up to `peers`")
HYPER_HYPERCUBE: Final = Topology(
    "hyper_hypercube", hyper_hypercube, MaxPeers, "no prime factor above `peers` + 1", "up to `peers`"
)
ONE_PEER_HYPERCUBE: Final = Topology("one_peer_hypercube", one_peer_hypercube, NoOptions, "powers of 2", "1")
DE_BRUIJN: Final = Topology("de_bruijn", de_bruijn, Base, "powers of `base`", "up to `base`", directed=True)
