"""Static random graphs, drawn from the run's seed until connected, so that all workers agree.

Builders as in ``graphs.named``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ... import seeds
from ...config.limits import MAX_WORKERS
from ...config.settings import Settings
from ...errors import InputError
from ..entry import Graphs, Topology, static
from ..matrix import Matrix, from_networkx, refuse_too_many, undirected
from .named import Degree, refuse_degree

TRIES: Final = 100
"""Number of draws after which a graph without a connected draw is refused."""


def _connected(
    name: str, workers: int, hint: str, seed: int, draw: Callable[[np.random.Generator], Matrix]
) -> Graphs:
    """The first connected graph among draws 0, 1, ... of this seed; else ``InputError`` with the ``hint``."""
    from scipy.sparse.csgraph import connected_components

    if workers > MAX_WORKERS:
        raise InputError(
            f"{name} takes at most {MAX_WORKERS} workers, not {workers}; use exponential, or ring"
        )
    for attempt in range(TRIES):
        graph = draw(seeds.generator(seed, seeds.SHARED, f"topology {name}", attempt))
        parts, _ = connected_components(graph, directed=False)
        if parts == 1:
            return static(graph)
    raise InputError(f"{name} is not connected in any of {TRIES} draws; {hint}")


def random_regular(workers: int, options: Degree, seed: int) -> Graphs:
    """A random graph with ``degree`` neighbours of each worker, by pairing half-edges.

    Source: Steger and Wormald, Combin. Probab. Comput. 1999; asymptotically uniform, Kim and Vu, STOC 2003;
    drawn as in networkx.

    Raises: ``InputError`` where there is no such graph, or no connected one.
    """
    degree = options.degree
    refuse_degree("random_regular", workers, degree, least=2 if workers > 2 else 1)
    refuse_too_many(degree * workers)

    def draw(random: np.random.Generator) -> Matrix:
        return undirected(workers, random_regular_edges(workers, degree, int(random.integers(2**63))))

    more = degree + 1 + workers * (degree + 1) % 2  # half-edges come in pairs
    return _connected("random_regular", workers, f"use degree {more}", seed, draw)


def random_regular_edges(workers: int, degree: int, seed: int) -> NDArray[np.int64]:
    """Edges [n degree / 2, 2], u < v, of a random regular graph, drawn as in networkx; it may have parts."""
    import networkx as nx

    dense = 2 * degree > workers  # then its missing edges are drawn
    graph = nx.random_regular_graph(workers - 1 - degree if dense else degree, workers, seed=seed)
    edges = np.sort(np.array(graph.edges, dtype=np.int64).reshape(-1, 2), axis=1)
    if not dense:
        return edges
    kept = np.triu(np.ones((workers, workers), dtype=bool), 1)
    kept[edges[:, 0], edges[:, 1]] = False
    return np.argwhere(kept)


class Probability(Settings):
    """Options of ``erdos_renyi``."""

    probability: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="probability of every edge (default: 2 ln(n) / n, nearly always connected)",
    )


def erdos_renyi(workers: int, options: Probability, seed: int) -> Graphs:
    """Every pair is joined with the same probability, independently.

    Source: Gilbert, Ann. Math. Stat. 1959; drawn as in Batagelj and Brandes, Phys. Rev. E 71 (2005).

    Raises: ``InputError`` where the probability is too small for a connected graph.
    """
    usual = min(1.0, 2.0 * math.log(workers) / workers)
    chance = options.probability if options.probability is not None else usual
    refuse_too_many(round(chance * workers * (workers - 1)))

    def draw(random: np.random.Generator) -> Matrix:
        return undirected(workers, _draw_pairs(workers, chance, random))

    return _connected("erdos_renyi", workers, f"use a probability of {usual:.3g}", seed, draw)


def _draw_pairs(workers: int, chance: float, random: np.random.Generator) -> NDArray[np.int64]:
    """Pairs [edges, 2], each drawn with the same chance: the numbers of pairs skipped are geometric."""
    pairs = workers * (workers - 1) // 2
    expected = pairs * chance
    several = int(expected + 4.0 * math.sqrt(expected)) + 16
    parts, last = [np.empty(0, np.int64)], -1
    while last < pairs:
        # Cut gaps beyond the last pair, so that their sum fits.
        parts.append(last + np.cumsum(np.minimum(random.geometric(chance, several), pairs + 1)))
        last = int(parts[-1][-1])
    number = np.concatenate(parts)
    number = number[number < pairs]
    # Pair number v (v - 1) / 2 + u joins u < v.
    second = np.floor((1.0 + np.sqrt(1.0 + 8.0 * number)) / 2.0).astype(np.int64)
    second -= second * (second - 1) // 2 > number
    second += second * (second + 1) // 2 <= number
    return np.stack([number - second * (second - 1) // 2, second], axis=1)


class Radius(Settings):
    """Options of ``random_geometric``."""

    radius: float | None = Field(
        default=None, gt=0, le=1.5, description="neighbours are nearer than this (default: sqrt(2 ln(n) / n))"
    )


def random_geometric(workers: int, options: Radius, seed: int) -> Graphs:
    """Places drawn uniformly in the unit square; those nearer than ``radius`` are neighbours.

    Source: Boyd et al., IEEE Trans. Inf. Theory 2006.

    Raises: ``InputError`` where the radius is too small for a connected graph.
    """
    from scipy.spatial import KDTree  # slow to import, seldom used

    usual = min(1.5, math.sqrt(2.0 * math.log(workers) / workers))
    radius = options.radius if options.radius is not None else usual
    refuse_too_many(round(min(1.0, math.pi * radius**2) * workers**2))

    def draw(random: np.random.Generator) -> Matrix:
        pairs = KDTree(random.random((workers, 2))).query_pairs(radius, output_type="ndarray")
        return undirected(workers, pairs)

    return _connected("random_geometric", workers, f"use a radius of {usual:.3g}", seed, draw)


class SmallWorld(Settings):
    """Options of ``small_world``."""

    degree: int = Field(default=4, ge=2, description="even number of neighbours on the ring at first")
    rewiring: float = Field(default=0.1, ge=0, le=1, description="probability that an edge is moved")


def small_world(workers: int, options: SmallWorld, seed: int) -> Graphs:
    """A ring lattice some of whose edges are moved to random workers.

    Source: Watts and Strogatz, Nature 1998; drawn as in networkx.

    Raises: ``InputError`` where the degree is odd or too large.
    """
    import networkx as nx

    degree, chance = options.degree, options.rewiring
    if degree % 2:
        raise InputError(f"small_world needs an even degree, not {degree}; use {degree - 1} or {degree + 1}")
    refuse_degree("small_world", workers, degree, least=2)
    refuse_too_many(degree * workers)

    def draw(random: np.random.Generator) -> Matrix:
        number = int(random.integers(2**63))  # a seed for networkx
        graph: nx.Graph[Any] = nx.watts_strogatz_graph(workers, degree, chance, seed=number)
        return from_networkx(graph)

    return _connected("small_world", workers, "use less rewiring", seed, draw)


RANDOM_REGULAR: Final = Topology(
    "random_regular",
    random_regular,
    Degree,
    "more than the degree; even for an odd one",
    "`degree`",
    drawn=True,
)
ERDOS_RENYI: Final = Topology("erdos_renyi", erdos_renyi, Probability, "any", "varies", drawn=True)
RANDOM_GEOMETRIC: Final = Topology("random_geometric", random_geometric, Radius, "any", "varies", drawn=True)
SMALL_WORLD: Final = Topology(
    "small_world", small_world, SmallWorld, "more than the degree", "`degree` on average", drawn=True
)
