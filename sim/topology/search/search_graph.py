"""The graph under search: edges that change by small moves, and initial graphs."""

from __future__ import annotations

from dataclasses import dataclass

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from ..graphs.random import random_regular_edges

EdgeArray = NDArray[np.int64]
"""Pairs of workers [..., 2]."""

SWAP_SIGNS = np.array([-1.0, -1.0, 1.0, 1.0])
REWIRE_SIGNS = np.array([-1.0, 1.0])


@dataclass(frozen=True)
class Moves:
    """Candidate changes of one graph.

    Attributes:
        numbers: removed edges of each move, [moves, removed].
        pairs: removed, then added edges, [moves, changes, 2].
        signs: -1 for each removed edge, +1 for each added one, [changes].
    """

    numbers: NDArray[np.int64]
    pairs: EdgeArray
    signs: NDArray[np.float64]


class SearchGraph:
    """A simple undirected graph of n workers, of constant size: ``edges`` [m, 2], ``adjacent`` [n, n]."""

    def __init__(self, workers: int, edges: EdgeArray) -> None:
        self.workers = workers
        self.edges = edges.copy()
        self.adjacent = np.zeros((workers, workers), dtype=np.bool_)
        self.adjacent[edges[:, 0], edges[:, 1]] = True
        self.adjacent[edges[:, 1], edges[:, 0]] = True

    def swaps(self, random: np.random.Generator, count: int) -> Moves:
        """Up to ``count`` random swaps a-b, c-d -> a-c, b-d, which keep every degree.

        Pairs of edges and their orientation are drawn; moves to a loop or a double edge are left
        out, so the rest is uniform over the possible swaps.
        """
        numbers = random.integers(len(self.edges), size=(count, 2))
        turned = random.integers(2, size=count)
        first, second = self.edges[numbers[:, 0]], self.edges[numbers[:, 1]]
        a, b = first[:, 0], first[:, 1]
        at = np.arange(count)
        c, d = second[at, turned], second[at, 1 - turned]
        possible = (a != c) & (a != d) & (b != c) & (b != d) & ~self.adjacent[a, c] & ~self.adjacent[b, d]
        pairs = np.stack([np.stack(pair, axis=1) for pair in ((a, b), (c, d), (a, c), (b, d))], axis=1)
        return Moves(numbers[possible], pairs[possible], SWAP_SIGNS)

    def rewirings(self, random: np.random.Generator, count: int) -> Moves:
        """Up to ``count`` random moves of one edge to a free place."""
        numbers = random.integers(len(self.edges), size=count)
        ends = random.integers(self.workers, size=(count, 2))
        possible = (ends[:, 0] != ends[:, 1]) & ~self.adjacent[ends[:, 0], ends[:, 1]]
        pairs = np.stack([self.edges[numbers], ends], axis=1)
        return Moves(numbers[possible, None], pairs[possible], REWIRE_SIGNS)

    def apply(self, moves: Moves, index: int) -> None:
        """Make one of the moves."""
        for (i, j), sign in zip(moves.pairs[index].tolist(), moves.signs.tolist(), strict=True):
            self.adjacent[i, j] = self.adjacent[j, i] = sign > 0
        self.edges = self.after(moves, index)

    def after(self, moves: Moves, index: int) -> EdgeArray:
        """The edges as they would be after one of the moves."""
        edges = self.edges.copy()
        numbers = moves.numbers[index]
        edges[numbers] = moves.pairs[index, len(numbers) :]
        return edges


def lattice(workers: int, degree: int) -> EdgeArray:
    """The regular ring lattice: each worker and its nearest ones, and for an odd degree the opposite one."""
    offsets = [*range(1, degree // 2 + 1), *([workers // 2] if degree % 2 else [])]
    return np.array(nx.circulant_graph(workers, offsets).edges, dtype=np.int64).reshape(-1, 2)


def random_even(workers: int, edges: int, seed: int) -> EdgeArray:
    """A random graph whose degrees differ by one at most."""
    degree, more = divmod(2 * edges, workers)
    if more == 0:
        return random_regular_edges(workers, degree, seed)
    degrees = [degree + 1] * more + [degree] * (workers - more)
    graph = nx.random_degree_sequence_graph(degrees, seed=seed, tries=1000)
    return np.sort(np.array(graph.edges, dtype=np.int64), axis=1)
