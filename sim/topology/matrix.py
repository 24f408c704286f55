"""Sparse matrices for graphs and weights: row i belongs to receiver i.

An *adjacency* has a 1 at [i, j] where i hears j != i; a *mixing matrix* W has there the weight that i
gives to j's value, and its own weight on the diagonal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import InputError

if TYPE_CHECKING:
    import networkx as nx
    from scipy.sparse import csr_array

    Matrix = csr_array[np.float64, tuple[int, int]]
else:
    Matrix = Any

MAX_EDGES: Final = 20_000_000
"""Largest number of directed edges: a larger graph would not fit into memory."""


def adjacency(workers: int, receivers: ArrayLike, sources: ArrayLike) -> Matrix:
    """The graph in which ``receivers[k]`` hears ``sources[k]``, without repeated edges and loops.

    Raises ``InputError`` for more than ``MAX_EDGES``.
    """
    from scipy.sparse import csr_array

    to, by = np.asarray(receivers, dtype=np.int64), np.asarray(sources, dtype=np.int64)
    refuse_too_many(to.size)
    kept = to != by
    graph = csr_array((np.ones(int(kept.sum())), (to[kept], by[kept])), shape=(workers, workers))
    graph.sum_duplicates()
    graph.data[:] = 1.0
    return graph


def refuse_too_many(edges: int) -> None:
    """Raise ``InputError`` where a graph would have too many directed edges."""
    if edges > MAX_EDGES:
        raise InputError(f"the graph would have {edges} edges, the limit is {MAX_EDGES}; use a lower degree")


def undirected(workers: int, edges: Iterable[tuple[int, int]] | NDArray[np.int64]) -> Matrix:
    """The graph in which both ends of every edge (or row [edges, 2]) hear each other."""
    held = edges if isinstance(edges, np.ndarray) else list(edges)
    ends = np.array(held, dtype=np.int64).reshape(-1, 2)
    return adjacency(workers, np.r_[ends[:, 0], ends[:, 1]], np.r_[ends[:, 1], ends[:, 0]])


def from_networkx(graph: nx.Graph[Any]) -> Matrix:
    """The adjacency of a networkx graph, its nodes numbered in the graph's order; u -> v: v hears u."""
    rank = {node: number for number, node in enumerate(graph.nodes)}
    pairs = np.array([(rank[u], rank[v]) for u, v in graph.edges()], dtype=np.int64).reshape(-1, 2)
    if graph.is_directed():
        return adjacency(len(rank), pairs[:, 1], pairs[:, 0])
    return undirected(len(rank), pairs)


def ranked(graph: nx.Graph[Any], source: object) -> nx.Graph[Any]:
    """The graph, nodes named 0 ... n - 1 sorted by rank; ``InputError``: two workers with several edges."""
    import networkx as nx

    if graph.is_multigraph():
        raise InputError(f"{source}: has several edges between the same two workers; leave one")
    try:
        ranks = {node: int(node) for node in graph.nodes}
    except (TypeError, ValueError, OverflowError):
        return graph
    if sorted(ranks.values()) != list(range(len(ranks))):
        return graph
    ordered: nx.Graph[Any] = nx.DiGraph() if graph.is_directed() else nx.Graph()
    ordered.add_nodes_from(range(len(ranks)))
    ordered.add_edges_from((ranks[u], ranks[v]) for u, v in graph.edges())
    return ordered


def exponential_offsets(n: int) -> tuple[int, ...]:
    """The powers of two below n: 1, 2, 4, ... (ceil(log2 n) of them for n >= 2)."""
    return tuple(1 << e for e in range((n - 1).bit_length()))


def circulant(workers: int, offsets: Iterable[int]) -> Matrix:
    """The graph in which worker i hears i - o (mod n) for every offset o: i sends to i + o."""
    steps = np.array(sorted({o % workers for o in offsets} - {0}), dtype=np.int64)
    refuse_too_many(workers * steps.size)
    to = np.repeat(np.arange(workers), steps.size)
    return adjacency(workers, to, (to - np.tile(steps, workers)) % workers)


def in_degrees(graph: Matrix) -> NDArray[np.int64]:
    """Number of others that each worker hears [n]."""
    return np.diff(graph.indptr).astype(np.int64)


def out_degrees(graph: Matrix) -> NDArray[np.int64]:
    """Number of others that hear each worker [n]."""
    return np.bincount(graph.indices, minlength=graph.shape[0]).astype(np.int64)


def edges_of(graph: Matrix, directed: bool) -> NDArray[np.int64]:
    """Edges [edges, 2], ascending: u sends to v; of an undirected graph each once, u < v."""
    receivers, sources = graph.nonzero()
    kept = slice(None) if directed else np.flatnonzero(sources < receivers)
    edges = np.stack([sources[kept], receivers[kept]], axis=1)
    return edges[np.lexsort((edges[:, 1], edges[:, 0]))].astype(np.int64)


def off_diagonal(matrix: Matrix) -> Matrix:
    """The matrix without its diagonal and without stored zeros, columns ascending."""
    from scipy.sparse import csr_array, diags_array

    off = csr_array(matrix - diags_array(matrix.diagonal()))
    off.eliminate_zeros()
    off.sort_indices()
    return off


def is_symmetric(matrix: Matrix, tolerance: float = 0.0) -> bool:
    """Whether [i, j] and [j, i] differ by no more than ``tolerance``."""
    difference = abs(matrix - matrix.T)
    return difference.nnz == 0 or bool(difference.max() <= tolerance)


def support(matrix: Matrix) -> Matrix:
    """The adjacency of all weights other than 0."""
    graph = off_diagonal(matrix)
    graph.data[:] = 1.0
    return graph


def union(matrices: Sequence[Matrix]) -> Matrix:
    """The adjacency of all weights other than 0 in any of the mixing matrices."""
    total = support(matrices[0])
    for w in matrices[1:]:
        total = total + support(w)
    return support(total)


def with_diagonal(off: Matrix, own: NDArray[np.floating[Any]]) -> Matrix:
    """The matrix ``off`` with ``own`` on its diagonal."""
    from scipy.sparse import csr_array, diags_array

    return csr_array(off + diags_array(own))


def keeping_rest(off: Matrix) -> Matrix:
    """The mixing matrix with the weights ``off`` for others, and own weights that complete rows to 1."""
    return with_diagonal(off, 1.0 - row_sums(off))


def pairwise(
    workers: int, u: NDArray[np.integer[Any]], v: NDArray[np.integer[Any]], share: NDArray[np.float64]
) -> Matrix:
    """The mixing matrix in which u[k] and v[k] give each other the weight share[k], for every pair k."""
    from scipy.sparse import csr_array

    pairs = np.r_[u, v], np.r_[v, u]
    return keeping_rest(csr_array((np.r_[share, share], pairs), shape=(workers, workers)))


def row_sums(matrix: Matrix) -> NDArray[np.float64]:
    """The sum of every row [n], added from left to right on every machine."""
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    return np.bincount(rows, weights=matrix.data, minlength=matrix.shape[0]).astype(np.float64)


def laplacian(workers: int, edges: NDArray[np.int64]) -> Matrix:
    """L = D - A [n, n] of the undirected graph with these ``edges`` [edges, 2], each given once."""
    from scipy.sparse import csr_array

    i, j, nodes = edges[:, 0], edges[:, 1], np.arange(workers)
    degree = np.bincount(edges.ravel(), minlength=workers)
    rows, columns = np.concatenate([i, j, nodes]), np.concatenate([j, i, nodes])
    values = np.concatenate([np.full(2 * len(edges), -1.0), degree])
    return csr_array((values, (rows, columns)), shape=(workers, workers))


def need_undirected(graph: Matrix, name: str) -> None:
    """Raise ``InputError`` where a worker hears another that does not hear it."""
    if not is_symmetric(graph):
        raise InputError(f"{name} weights need an undirected graph; use uniform or column_stochastic")


def need_connected(connected: bool, name: str) -> None:
    """Raise ``InputError`` where a step's graph is not connected."""
    if not connected:
        raise InputError(f"{name} weights need a connected graph at every step; use uniform or metropolis")
