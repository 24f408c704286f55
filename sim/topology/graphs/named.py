"""Graphs by a rule: the same at every step, or sequences that change from step to step.

A builder takes the number of workers, its options and the run's seed, and returns ``Graphs``. Its
docstring is its row in ``docs/topologies.md``: the graph, then the source.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Final

import numpy as np
from pydantic import Field

from ... import seeds
from ...config.settings import Settings
from ...errors import InputError
from ..entry import Graphs, NoOptions, Topology, static
from ..matrix import (
    Matrix,
    adjacency,
    circulant,
    exponential_offsets,
    from_networkx,
    refuse_too_many,
    undirected,
)


class Rows(Settings):
    """Options of ``grid`` and ``torus``."""

    rows: int | None = Field(
        default=None, ge=1, description="workers in a column (default: the most nearly square)"
    )


class Degree(Settings):
    """Options of graphs in which every worker has the same number of neighbours."""

    degree: int = Field(default=4, ge=1, description="neighbours of every worker")


_MAX_SUGGESTED_WORKERS: Final = 1 << 24
"""Largest number of workers that is suggested."""


def nearest_workers(workers: int, possible: Callable[[int], bool]) -> str:
    """A hint that names the possible numbers of workers next to ``workers``."""
    below = next((n for n in range(workers - 1, 1, -1) if possible(n)), None)
    above = next(
        (n for n in range(workers + 1, min(2 * workers + 17, _MAX_SUGGESTED_WORKERS)) if possible(n)), None
    )
    return "use " + " or ".join(str(n) for n in (below, above) if n is not None)


def ring(workers: int, options: NoOptions, seed: int) -> Graphs:
    """Each worker and its two neighbours on a cycle (one neighbour where n = 2). Source: Lian et al., NeurIPS
    2017.
    """
    return static(circulant(workers, (1, -1)))


def path(workers: int, options: NoOptions, seed: int) -> Graphs:
    """A ring with one edge missing. Source: Xiao and Boyd, Systems & Control Letters 2004."""
    return static(undirected(workers, ((i, i + 1) for i in range(workers - 1))))


def star(workers: int, options: NoOptions, seed: int) -> Graphs:
    """Worker 0 in the centre, joined to all others. Source: Ying et al., NeurIPS 2021."""
    return static(undirected(workers, ((0, i) for i in range(1, workers))))


def complete(workers: int, options: NoOptions, seed: int) -> Graphs:
    """The complete graph: one step averages exactly. Source: Ying et al., NeurIPS 2021."""
    refuse_too_many(workers * (workers - 1))
    return static(circulant(workers, range(1, workers)))


def _rows(name: str, workers: int, rows: int | None, least: int) -> tuple[int, int]:
    """Rows and columns, both at least ``least``; ``InputError`` names the nearest possible choice."""

    def fits(n: int, r: int) -> bool:
        return n % r == 0 and r >= least and n // r >= least

    def possible(n: int) -> list[int]:
        return [r for r in range(least, math.isqrt(n) + 1) if fits(n, r)]

    known = possible(workers)
    if rows is not None and not fits(workers, rows):
        every = sorted({r for divisor in known for r in (divisor, workers // divisor)})
        if every:
            choice = min(every, key=lambda r: abs(r - rows))
            raise InputError(f"{name} of {workers} workers cannot have {rows} rows; use {choice}")
    if not known:
        raise InputError(
            f"{name} needs rows and columns of at least {least}, which {workers} workers do not make; "
            + nearest_workers(workers, lambda n: bool(possible(n)))
        )
    chosen = rows or known[-1]
    return chosen, workers // chosen


def grid(workers: int, options: Rows, seed: int) -> Graphs:
    """Rows and columns; each worker and its up to four neighbours. Source: Ying et al., NeurIPS 2021."""
    import networkx as nx

    return static(from_networkx(nx.grid_2d_graph(*_rows("grid", workers, options.rows, 2))))


def torus(workers: int, options: Rows, seed: int) -> Graphs:
    """A grid whose rows and columns are rings: four neighbours each. Source: Koloskova et al., ICML 2019."""
    import networkx as nx

    return static(from_networkx(nx.grid_2d_graph(*_rows("torus", workers, options.rows, 3), periodic=True)))


def hypercube(workers: int, options: NoOptions, seed: int) -> Graphs:
    """Workers whose ranks differ in one binary digit.

    Source: Ying et al., NeurIPS 2021.

    Raises: ``InputError`` where n is no power of two.
    """
    digits = power_of_two("hypercube", workers)
    ranks = np.repeat(np.arange(workers), digits)
    return static(adjacency(workers, ranks, ranks ^ np.tile(1 << np.arange(digits), workers)))


def power_of_two(name: str, workers: int) -> int:
    """The exponent of a power of two; else ``InputError``, which names the nearest ones."""
    if workers & (workers - 1):
        below = 1 << (workers.bit_length() - 1)
        raise InputError(f"{name} needs a power of two of workers, not {workers}; use {below} or {2 * below}")
    return workers.bit_length() - 1


def ring_lattice(workers: int, options: Degree, seed: int) -> Graphs:
    """Each worker and its nearest ``degree`` neighbours on a ring, half on each side.

    An odd degree adds the worker opposite. Source: Jameel et al., PAKDD 2020.

    Raises: ``InputError`` where the degree is too large, or odd for an odd n.
    """
    refuse_degree("ring_lattice", workers, options.degree, least=2)
    half, odd = divmod(options.degree, 2)
    offsets = [s * o for o in range(1, half + 1) for s in (1, -1)]
    return static(circulant(workers, [*offsets, workers // 2] if odd else offsets))


def refuse_degree(name: str, workers: int, degree: int, least: int = 1) -> None:
    """Raise ``InputError`` where no graph of n workers has that degree everywhere; names the nearest."""

    def possible(k: int) -> bool:
        return least <= k < workers and k * workers % 2 == 0

    if possible(degree):
        return
    choices = sorted(
        (k for k in range(least, min(workers, degree + 3)) if possible(k)), key=lambda k: abs(k - degree)
    )
    hint = " or ".join(str(k) for k in sorted(choices[:2])) if choices else ""
    why = "the degree must be less than the workers" if degree >= workers else "degree x workers must be even"
    if degree < least:
        why = f"the degree must be at least {least}"
    raise InputError(
        f"{name} of degree {degree} is not possible with {workers} workers ({why}); "
        + (f"use degree {hint}" if hint else "use more workers")
    )


def static_exponential(workers: int, options: NoOptions, seed: int) -> Graphs:
    """Worker i sends to i + 1, i + 2, i + 4, ... (mod n). Source: Ying et al., NeurIPS 2021 (arXiv
    2110.13363).
    """
    return static(circulant(workers, exponential_offsets(workers)))


class Hierarchy(Settings):
    """Options of ``hierarchical``."""

    sites: tuple[int, ...] | None = Field(
        default=None, description="workers of each site, in rank order (default: the most nearly square)"
    )


def hierarchical(workers: int, options: Hierarchy, seed: int) -> Graphs:
    """Sites: complete graphs, whose first workers form a ring.

    Source: after the hierarchical averaging of BlueFog (Ying et al., arXiv 2111.04287).

    Raises: ``InputError`` where the sites do not hold that many workers.
    """
    import networkx as nx

    sites = options.sites
    if sites is None:
        rows, columns = _rows("hierarchical without 'sites'", workers, None, 2)
        sites = (columns,) * rows
    if any(size < 1 for size in sites) or sum(sites) != workers:
        raise InputError(f"the sites hold {sum(sites)} workers, not {workers}; make them agree")
    heads = np.cumsum([0, *sites[:-1]])
    refuse_too_many(sum(size * (size - 1) for size in sites))
    edges: list[tuple[int, int]] = []
    for head, size in zip(heads, sites, strict=True):
        edges += itertools.combinations(range(int(head), int(head) + size), 2)
    between = nx.cycle_graph([int(h) for h in heads]) if len(sites) > 1 else nx.Graph()
    return static(undirected(workers, [*edges, *((u, v) for u, v in between.edges() if u != v)]))


RING: Final = Topology("ring", ring, NoOptions, "any", "2")
PATH: Final = Topology("path", path, NoOptions, "any", "1 or 2")
STAR: Final = Topology("star", star, NoOptions, "any", "1, centre n - 1")
COMPLETE: Final = Topology("complete", complete, NoOptions, "any", "n - 1")
GRID: Final = Topology("grid", grid, Rows, "rows x columns, both at least 2", "2 to 4")
TORUS: Final = Topology("torus", torus, Rows, "rows x columns, both at least 3", "4")
HYPERCUBE: Final = Topology("hypercube", hypercube, NoOptions, "powers of 2", "log2 n")
RING_LATTICE: Final = Topology(
    "ring_lattice", ring_lattice, Degree, "more than the degree; even for an odd one", "`degree`"
)
STATIC_EXPONENTIAL: Final = Topology(
    "static_exponential", static_exponential, NoOptions, "any", "ceil(log2 n)", directed=True
)
HIERARCHICAL: Final = Topology(
    "hierarchical", hierarchical, Hierarchy, "the sum of the sites", "site - 1, first of a site up to 2 more"
)


def one_peer_exponential(workers: int, options: NoOptions, seed: int) -> Graphs:
    """At step k worker i sends to i + 2^(k mod ceil(log2 n)) alone. For n a power of two, ceil(log2 n) steps
    average exactly. Source: Ying et al., NeurIPS 2021.
    """
    offsets = exponential_offsets(workers)
    return Graphs(lambda step: circulant(workers, [offsets[step % len(offsets)]]), len(offsets))


class NumPeers(Settings):
    """Options of ``p_peer_exponential``."""

    peers: int = Field(default=2, ge=1, description="peers p of every worker in a step")


def p_peer_exponential(workers: int, options: NumPeers, seed: int) -> Graphs:
    """At step k worker i sends to i + j (p + 1)^(k mod ceil(log_(p+1) n)), j = 1 ... p.

    For n a power of p + 1 one period averages exactly. Source: Ying et al., NeurIPS 2021 (p = 1), and
    its direct extension.

    Raises: ``InputError`` where there are not that many others.
    """
    base = options.peers + 1
    if base > workers:
        raise InputError(
            f"p_peer_exponential with {options.peers} peers needs more than {workers} workers; "
            f"use peers {workers - 1}"
        )
    strides = [1]
    while strides[-1] * base < workers:
        strides.append(strides[-1] * base)

    def at(step: int) -> Matrix:
        stride = strides[step % len(strides)]
        return circulant(workers, [j * stride for j in range(1, base) if j * stride < workers])

    return Graphs(at, len(strides))


def random_matching(workers: int, options: NoOptions, seed: int) -> Graphs:
    """Pairs drawn anew at every step; with an odd n one worker stays alone.

    Source: Boyd et al., IEEE Trans. Inf. Theory 2006 (randomised gossip), in matchings.
    """

    def at(step: int) -> Matrix:
        order = seeds.generator(seed, seeds.SHARED, "topology random_matching", step).permutation(workers)
        pairs = order[: workers // 2 * 2].reshape(-1, 2)
        return undirected(workers, pairs)

    # Two given workers are matched with probability 1 / (n - 1), or 1 / n where one stays alone, and W'W = W.
    return Graphs(at, None, rate=math.sqrt(1.0 - 0.5 * workers / (workers - 1 + workers % 2)))


ONE_PEER_EXPONENTIAL: Final = Topology(
    "one_peer_exponential", one_peer_exponential, NoOptions, "any", "1", directed=True
)
P_PEER_EXPONENTIAL: Final = Topology(
    "p_peer_exponential", p_peer_exponential, NumPeers, "more than `peers`", "up to `peers`", directed=True
)
RANDOM_MATCHING: Final = Topology(
    "random_matching", random_matching, NoOptions, "any", "1 (or 0)", drawn=True
)
