"""The graph under search and its moves; the ends of its Laplacian's spectrum before and after one.

Of the Laplacian L of a connected graph, 0 = l_1 < l_2 <= ... <= l_n, only l_2 and l_n matter. Kept is a
block Q of eigenvectors next to both ends. A move changes L by a matrix D of rank two at most. The smallest
eigenvalue of B'(L + D)B on any orthonormal block B orthogonal to the ones is never below the new l_2, and
the largest one never above the new l_n (Courant and Fischer). So a move can be rejected, without any
error, on a bound from

1. B = Q: a small problem, whatever n is (``best_case``),
2. B = Q and the Krylov space of L + D from the range of D, step by step (``move_ends``). Where the bounds
   settle, they are the new ends, and the best vectors are the next Q.

Source for the second: Parlett, The Symmetric Eigenvalue Problem (1998), chapters 11 to 13 (Rayleigh-Ritz,
block Lanczos).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import networkx as nx
import numpy as np
from numpy.typing import NDArray
from scipy.sparse.linalg import eigsh

from ...seeds import Floats
from ..graphs.random import random_regular_edges
from ..matrix import Matrix, laplacian

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


LANCZOS_BLOCK: Final = 8
"""Eigenvectors kept at each end, at most."""

MAX_DENSE_NODES: Final = 128
"""Up to this many workers a full decomposition is the quickest."""

LANCZOS_STEPS: Final = 40
"""Krylov steps that a move gets at most."""

LOOK: Final = 4
"""Krylov steps between two looks at the bounds."""

SETTLED: Final = 1e-8
"""A bound that moves by less than this between two looks has settled."""


@dataclass(frozen=True)
class Ends:
    """Eigenvalues [block], ascending, and orthonormal eigenvectors [n, block] at both ends of the spectrum.

    The constant vector is left out.
    """

    low: Floats
    low_vectors: Floats
    high: Floats
    high_vectors: Floats

    @property
    def second(self) -> float:
        """The smallest eigenvalue but that of the constant vector."""
        return float(self.low[0])

    @property
    def last(self) -> float:
        """The largest eigenvalue."""
        return float(self.high[-1])


def eigenvalues(workers: int, edges: EdgeArray) -> Floats:
    """The whole spectrum of the Laplacian, ascending [n], by a dense decomposition."""
    return np.asarray(np.linalg.eigvalsh(laplacian(workers, edges).toarray()), dtype=np.float64)


def ends_of(matrix: Matrix) -> Ends:
    """Both ends of the spectrum of a Laplacian [n, n], n >= 3."""
    workers = matrix.shape[0]
    if workers <= MAX_DENSE_NODES:
        values, vectors = np.linalg.eigh(matrix.toarray())
        block = min(LANCZOS_BLOCK, workers - 1)
    else:
        start = 1.0 + np.cos(np.arange(workers) ** 2.0)  # fixed, and with a part in every eigenvector
        values, vectors = eigsh(matrix, k=2 * LANCZOS_BLOCK + 2, which="BE", v0=start, tol=1e-8)
        order = np.argsort(values)
        values, vectors = values[order], vectors[:, order]
        block = LANCZOS_BLOCK
    parts = int(np.count_nonzero(values < 1e-9))
    if parts > 1:  # not connected: the constant vector is somewhere among the first ones
        constant = np.full((workers, 1), workers**-0.5)
        vectors[:, 1:parts] = _orthonormal(vectors[:, :parts], constant)
    return Ends(values[1 : 1 + block], vectors[:, 1 : 1 + block], values[-block:], vectors[:, -block:])


def best_case(ends: Ends, moves: Moves) -> tuple[Floats, Floats]:
    """After each move [moves], an upper bound of the second eigenvalue and a lower bound of the last."""
    low = np.linalg.eigvalsh(_projected(ends.low, ends.low_vectors, moves))
    high = np.linalg.eigvalsh(_projected(ends.high, ends.high_vectors, moves))
    return np.asarray(low[:, 0], dtype=np.float64), np.asarray(high[:, -1], dtype=np.float64)


def _projected(values: Floats, vectors: Floats, moves: Moves) -> Floats:
    """Q'(L + D)Q for every move, [moves, block, block]."""
    across = vectors[moves.pairs[:, :, 0]] - vectors[moves.pairs[:, :, 1]]
    out: Floats = np.matmul((across * moves.signs[:, None]).transpose(0, 2, 1), across)
    out += np.diag(values)
    return out


def move_ends(
    matrix: Matrix, ends: Ends, pairs: EdgeArray, signs: Floats, hopeless: Callable[[float, float], bool]
) -> Ends | None:
    """The ends after one move of edge ``pairs`` [changes, 2] with their ``signs``, to about ``SETTLED``.

    ``matrix`` is the Laplacian before it. None where ``hopeless``, of (upper bound of the second eigenvalue,
    lower bound of the last one), rejects the move in any case.
    """
    workers, block = ends.low_vectors.shape
    nodes, change, krylov = _change(pairs, signs, workers)
    width = krylov.shape[1]
    size = 1 + 2 * block
    basis = np.zeros((workers, size + width * LANCZOS_STEPS), order="F")
    basis[:, 0] = 1.0 / math.sqrt(workers)
    basis[:, 1 : 1 + block], basis[:, 1 + block : size] = ends.low_vectors, ends.high_vectors
    # A value in the middle keeps the constant vector away from both ends.
    known = np.concatenate([[(ends.second + ends.last) / 2], ends.low, ends.high])
    touched = basis[nodes, :size]
    small = np.zeros((basis.shape[1], basis.shape[1]))
    small[:size, :size] = np.diag(known) + touched.T @ change @ touched
    bounds = (np.inf, -np.inf)
    for step in range(LANCZOS_STEPS):
        added = _orthonormal(krylov, basis[:, :size])
        grown = size + added.shape[1]
        basis[:, size:grown] = added
        krylov = np.asarray(matrix @ added)
        krylov[nodes] += change @ added[nodes]
        small[:grown, size:grown] = basis[:, :grown].T @ krylov
        small[size:grown, :size] = small[:size, size:grown].T
        size = grown
        exhausted = added.shape[1] < width
        if step % LOOK == LOOK - 1 or exhausted:
            values = np.linalg.eigvalsh(small[:size, :size])
            outer = float(values[0]), float(values[-1])
            if hopeless(*outer):
                return None
            if exhausted or max(abs(outer[0] - bounds[0]), abs(outer[1] - bounds[1])) < SETTLED:
                break
            bounds = outer
    values, vectors = np.linalg.eigh(small[:size, :size])
    low, high = basis[:, :size] @ vectors[:, :block], basis[:, :size] @ vectors[:, -block:]
    return Ends(values[:block], low, values[-block:], high)


def _change(pairs: EdgeArray, signs: Floats, workers: int) -> tuple[NDArray[np.int64], Floats, Floats]:
    """The nodes of a move, D on them [nodes, nodes], and a base of its range [n, rank]."""
    nodes, where = np.unique(pairs, return_inverse=True)
    where = where.reshape(pairs.shape)
    across = np.zeros((len(pairs), len(nodes)))
    rows = np.arange(len(pairs))
    across[rows, where[:, 0]] += 1.0
    across[rows, where[:, 1]] -= 1.0
    change = across.T @ (across * signs[:, None])
    values, vectors = np.linalg.eigh(change)
    vectors = vectors[:, np.abs(values) > 1e-9]
    krylov = np.zeros((workers, vectors.shape[1]))
    krylov[nodes] = vectors
    return nodes, change, krylov


def _orthonormal(vectors: Floats, basis: Floats) -> Floats:
    """An orthonormal base of the part of ``vectors`` outside ``basis``, [n, at most their number]."""
    for _ in range(2):  # twice is enough (Kahan and Parlett)
        vectors = vectors - basis @ (basis.T @ vectors)
    rotated, lengths, _ = np.linalg.svd(vectors, full_matrices=False)
    return rotated[:, lengths > 1e-8]
