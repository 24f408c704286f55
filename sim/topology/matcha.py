"""MATCHA: a graph's edges in matchings, each active in a random share of the steps.

Source: Wang, Sahu, Yang, Joshi and Kar, arXiv 1905.09435.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Final

import numpy as np
from pydantic import Field, WithJsonSchema

from .. import seeds
from ..config.settings import Settings
from ..errors import InputError
from ..seeds import Floats
from .entry import Graphs, Topology, TopologyEntry, topology_named
from .matrix import (
    DENSE,
    Matrix,
    edges_of,
    in_degrees,
    is_symmetric,
    laplacian,
    laplacian_ends,
    undirected,
    with_diagonal,
)

_DEFAULT_GRAPH: Final = "ring_lattice"
_MAX_ROUNDS: Final = 200
_PRECISION: Final = 1e-7
"""Relative precision of the activation's second eigenvalue, and the most rounds to reach it."""
_MAX_WORK: Final = 30_000
"""Edges times the largest degree, to which the number of matchings is close: beyond, it takes minutes."""

_GRAPH_SCHEMA: Final = {"type": ["string", "object"], "examples": ["ring_lattice"]}
"""Instead of the whole schema of a topology, which would contain itself."""


class MatchaOptions(Settings):
    """Options of ``matcha``."""

    graph: Annotated[TopologyEntry | None, WithJsonSchema(_GRAPH_SCHEMA)] = Field(
        default=None, description="the static undirected graph that is decomposed (default: ring_lattice)"
    )
    budget: float = Field(
        default=0.5, gt=0, le=1, description="share of the matchings that is active in a step on average"
    )


def matcha(workers: int, options: MatchaOptions, seed: int) -> Graphs:
    """A graph's edges fall into matchings; at each step each is active with a probability of its own.

    The probabilities make the mean graph's second Laplacian eigenvalue as large as the budget allows; the
    weight of an active edge minimises the expected disagreement. Source: Wang et al., arXiv 1905.09435.

    Raises:
        InputError: the graph is directed, changes, has weights of its own, is not connected or too large.
    """
    if workers > DENSE:
        raise InputError(f"matcha takes up to {DENSE} workers, not {workers}; use random_matching")
    entry = options.graph or TopologyEntry.of(_DEFAULT_GRAPH)
    graphs = topology_named(entry.name).build(workers, entry.options, seed)
    if graphs.period != 1 or graphs.weighted:
        raise InputError(f"matcha needs one graph without weights, not {entry.name}; use ring_lattice")
    graph = graphs.at(0)
    if not is_symmetric(graph):
        raise InputError(f"matcha needs an undirected graph, {entry.name} is directed; use ring_lattice")
    degree = int(in_degrees(graph).max())
    if graph.nnz // 2 * degree > _MAX_WORK:
        raise InputError(
            f"matcha: the graph {entry.name} has {graph.nnz // 2} edges, up to {degree} of them at a worker, "
            f"and their product may be at most {_MAX_WORK}; use a graph with fewer edges, or random_matching"
        )
    edges = tuple(map(tuple, edges_of(graph, directed=False).tolist()))
    matchings, probabilities, share, rate = _analyse(workers, edges, options.budget)
    number = len(matchings)

    def at(step: int) -> Matrix:
        from scipy.sparse import csr_array

        draws = [
            seeds.uniform(seed, seeds.SHARED, "topology matcha", step * number + j) for j in range(number)
        ]
        active = [matchings[j] for j in range(number) if draws[j] < probabilities[j]]
        union = sum(active, csr_array((workers, workers)))
        return with_diagonal(csr_array(share * union), 1.0 - share * in_degrees(union))

    return Graphs(at, None, weighted=True, rate=rate)


@lru_cache(maxsize=16)
def _analyse(
    workers: int, edges: tuple[tuple[int, int], ...], budget: float
) -> tuple[list[Matrix], Floats, float, float]:
    """Matchings, how often each is active, the weight of an active edge, and the decay of disagreement."""
    matchings = decompose(workers, edges)
    laplacians = [laplacian(workers, edges_of(m, directed=False)).toarray() for m in matchings]
    second, _ = laplacian_ends(undirected(workers, edges))
    if second <= 1e-9:
        raise InputError("the graph that matcha decomposes is not connected; add edges, or use ring_lattice")
    probabilities = activation(laplacians, budget)
    share, rate = best_share(laplacians, probabilities)
    return matchings, probabilities, share, rate


def decompose(workers: int, edges: Sequence[tuple[int, int]]) -> list[Matrix]:
    """Split the edges into matchings: the colours of a greedy edge colouring (DSATUR)."""
    import networkx as nx

    graph: nx.Graph[int] = nx.Graph()
    graph.add_edges_from(edges)
    colours = nx.greedy_color(nx.line_graph(graph), strategy="DSATUR")
    by_colour: dict[int, list[tuple[int, int]]] = {}
    for edge, colour in colours.items():
        by_colour.setdefault(colour, []).append(edge)
    return [undirected(workers, sorted(by_colour[colour])) for colour in sorted(by_colour)]


def activation(laplacians: Sequence[Floats], budget: float) -> Floats:
    """The probabilities p that maximise lambda_2(sum_j p_j L_j) with a mean of at most ``budget``.

    The function is concave, so tangent planes bound it from above; each round solves a linear programme over
    the known planes (Kelley) and adds those at its solution. Source: Wang et al., problem (4).
    """
    from scipy.linalg import eigh
    from scipy.optimize import linprog  # a fifth of a second, for MATCHA alone

    number, n = len(laplacians), laplacians[0].shape[0]
    largest, best = -np.inf, np.full(number, budget)
    point = best
    planes: list[Floats] = []
    for _ in range(_MAX_ROUNDS):
        total = np.tensordot(point, np.array(laplacians), axes=1)
        values, vectors = eigh(total + np.ones((n, n)))  # the ones move eigenvalue 0 out of the way
        second = float(values[0])
        if second > largest:
            largest, best = second, point
        # Where eigenvalues coincide, each eigenvector gives its own plane.
        for vector in vectors[:, values < second + 1e-6 * max(second, 1.0)].T:
            planes.append(np.array([float(vector @ each @ vector) for each in laplacians]))
        solved = linprog(
            np.r_[np.zeros(number), -1.0],
            A_ub=np.c_[np.vstack([-np.array(planes), np.ones(number)]), np.r_[np.ones(len(planes)), 0.0]],
            b_ub=np.r_[np.zeros(len(planes)), budget * number],
            bounds=[(0.0, 1.0)] * number + [(0.0, float(n * number))],
        )
        bound, point = -float(solved.fun or 0.0), np.asarray(solved.x)[:-1]
        if bound - largest <= _PRECISION * max(largest, 1.0):
            break
    return best


def best_share(laplacians: Sequence[Floats], probabilities: Floats) -> tuple[float, float]:
    """The weight a that minimises the norm of E[W'W] - J, W = I - a sum_j B_j L_j, and its root.

    E[W'W] = I - 2 a M + a^2 (M^2 + 2 V), M = sum_j p_j L_j, V = sum_j p_j (1 - p_j) L_j. Source: Wang et al.,
    problem (5).
    """
    from scipy.linalg import eigvalsh
    from scipy.optimize import minimize_scalar

    n = laplacians[0].shape[0]
    stack = np.array(laplacians)
    mean = np.tensordot(probabilities, stack, axes=1)
    spread = np.tensordot(probabilities * (1.0 - probabilities), stack, axes=1)
    square = mean @ mean + 2.0 * spread

    def norm(share: float) -> float:
        rest = np.eye(n) - 1.0 / n - 2.0 * share * mean + share**2 * square
        return float(abs(eigvalsh(rest)[[0, -1]]).max())

    solved = minimize_scalar(norm, bounds=(0.0, 1.0), method="bounded", options={"xatol": 1e-10})
    return float(solved.x), float(np.sqrt(solved.fun))


MATCHA: Final = Topology(
    "matcha",
    matcha,
    MatchaOptions,
    "those of `graph`, up to 500",
    "`budget` x that of `graph` on average",
    drawn=True,
)
