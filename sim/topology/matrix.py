"""Graphs as sparse matrices, and the speed of averaging: eigenvalues, and norms of products.

An *adjacency* has a 1 at [i, j] where i hears j != i; a *mixing matrix* W has there the weight that i
gives to j's value, and its own weight on the diagonal.

Circulant matrices are solved by a Fourier transform, others up to ``DENSE`` workers by a full
decomposition, larger ones by Lanczos and Arnoldi iterations on the sparse matrix.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import seeds
from ..errors import InputError, RunError
from ..seeds import Floats

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


DENSE: Final = 500
"""Largest number of workers whose matrices are decomposed in full."""
_SYMMETRY_ROUNDING: Final = 1e-13
"""Largest difference of [i, j] and [j, i] in a symmetric matrix."""
_LANCZOS_RESIDUAL: Final = 1e-9
"""Of Lanczos vectors; the error of a simple eigenvalue is its square over the distance to the next."""
_SLOW_RESTARTS: Final = 12
"""Restarts after which Lanczos counts as slow."""
_MAX_FACTOR_NUMBERS: Final = 5 * 10**7
"""Most numbers in a factor of a matrix."""


def spectrum(w: Matrix) -> NDArray[np.complex128]:
    """All eigenvalues of a mixing matrix [n, n], the largest modulus first."""
    row = circulant_row(w)
    if row is not None:
        values = np.fft.fft(row)
    else:
        values = _all_eigenvalues(w.toarray(), is_symmetric(w, _SYMMETRY_ROUNDING))
    return values[np.argsort(-abs(values), kind="stable")]


def second_modulus(w: Matrix) -> float:
    """The second-largest eigenvalue modulus of a row- or column-stochastic matrix [n, n].

    Subtracting J = 11'/n moves the eigenvalue 1 of the vector of ones to 0 (Brauer); the others stay. Raises
    ``RunError`` where the iteration does not converge.
    """
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigs

    n = w.shape[0]
    row = circulant_row(w)
    if row is not None:
        return float(abs(np.fft.fft(row)[1:]).max())
    if n <= DENSE:
        rest = w.toarray() - 1.0 / n
        return float(abs(_all_eigenvalues(rest, is_symmetric(w, _SYMMETRY_ROUNDING))).max())
    if is_symmetric(w, _SYMMETRY_ROUNDING):
        second = float(np.sort(_ends(w, "LA", 2))[0])
        least = float((2.0 * w.diagonal() - row_sums(abs(w))).min())  # Gershgorin
        return second if -least <= second else max(second, -float(_ends(w, "SA", 1)[0]))

    def apply(x: Floats) -> Floats:
        return np.asarray(w @ x - x.mean())

    operator = LinearOperator((n, n), matvec=apply, dtype=np.float64)
    try:
        values = eigs(operator, k=1, which="LM", return_eigenvectors=False, v0=fixed_start(n))
    except ArpackNoConvergence as error:
        raise RunError(f"the eigenvalues of {n} workers' directed graph do not converge") from error
    return float(abs(values).max())


def laplacian_ends(graph: Matrix) -> tuple[float, float]:
    """lambda_2 and lambda_n of the Laplacian of an undirected graph [n, n]."""
    from scipy.linalg import eigvalsh

    row = circulant_row(graph)
    if row is not None:
        values = np.sort(row.sum() - np.fft.fft(row).real)
        return float(values[1]), float(values[-1])
    matrix = laplacian(graph.shape[0], edges_of(graph, directed=False))
    if graph.shape[0] > DENSE:
        return float(np.sort(_ends(matrix, "SA", 2))[1]), float(_ends(matrix, "LA", 1)[0])
    values = eigvalsh(matrix.toarray())
    return float(values[1]), float(values[-1])


def circulant_row(matrix: Matrix) -> Floats | None:
    """The first row [n] of a circulant matrix (each row is the previous one shifted by one); else None."""
    n = matrix.shape[0]
    counts = np.diff(matrix.indptr)
    if not (counts == counts[0]).all():
        return None
    rows = np.arange(n)[:, None]
    shift = (matrix.indices.reshape(n, -1) - rows) % n
    order = np.argsort(shift, axis=1)
    shift = np.take_along_axis(shift, order, axis=1)
    data = np.take_along_axis(matrix.data.reshape(n, -1), order, axis=1)
    if not ((shift == shift[0]).all() and (data == data[0]).all()):
        return None
    row = np.zeros(n)
    row[shift[0]] = data[0]
    return row


def product_norm(matrices: list[Matrix]) -> float:
    """The norm of (I - J) W_T ... W_1 (I - J): the largest disagreement that one period leaves.

    For doubly stochastic matrices this is the distance of their product from J in the spectral norm.
    """
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator

    n = matrices[0].shape[0]
    if len(matrices) == 1 and is_symmetric(matrices[0], _SYMMETRY_ROUNDING):
        return second_modulus(matrices[0])
    rows = [circulant_row(w) for w in matrices]
    if all(row is not None for row in rows):
        factors = [np.fft.fft(row) for row in rows if row is not None]
        return float(abs(np.prod(factors, axis=0)[1:]).max())
    if n <= DENSE:
        total = np.eye(n) - 1.0 / n
        for w in matrices:
            total = np.asarray(w @ total)
        return float(np.linalg.norm(total - total.mean(axis=0), 2))

    def apply(x: Floats) -> Floats:
        x = x - x.mean()
        for w in matrices:
            x = np.asarray(w @ x)
        x = x - x.mean()
        for w in reversed(matrices):
            x = np.asarray(w.T @ x)
        return np.asarray(x - x.mean())

    operator = LinearOperator((n, n), matvec=apply, dtype=np.float64)
    try:
        squared = _lanczos(operator, k=1, which="LA", v0=fixed_start(n))
    except ArpackNoConvergence as error:
        raise RunError(f"the norm of {n} workers' mixing matrices does not converge") from error
    return math.sqrt(max(float(squared[0]), 0.0))


def fixed_start(n: int) -> Floats:
    """A fixed start of iterations, so that they give the same bits every time."""
    x = seeds.generator(0, seeds.SHARED, "spectra").standard_normal(n)
    return np.asarray(x - x.mean())


def _all_eigenvalues(dense: Floats, symmetric: bool) -> NDArray[np.complex128]:
    from scipy.linalg import eigvals, eigvalsh

    values = eigvalsh(dense) if symmetric else eigvals(dense)
    return np.asarray(values, dtype=np.complex128)


def _lanczos(operator: Any, **options: Any) -> Floats:
    from scipy.sparse.linalg import eigsh

    return np.asarray(eigsh(operator, return_eigenvectors=False, **options), dtype=np.float64)


def _ends(matrix: Matrix, which: str, count: int) -> Floats:
    """The largest (LA) or smallest (SA) eigenvalues of a large symmetric matrix, by Lanczos.

    Where eigenvalues crowd at the end, as on long rings and grids, by shift and invert, if the matrix has a
    narrow enough band to be factorised. Raises ``RunError`` where the iteration does not converge.
    """
    from scipy.sparse.linalg import ArpackNoConvergence

    n = matrix.shape[0]
    options = {"k": count, "v0": fixed_start(n) + 1.0, "ncv": 32, "tol": _LANCZOS_RESIDUAL}
    try:
        return _lanczos(matrix, which=which, maxiter=_SLOW_RESTARTS, **options)
    except ArpackNoConvergence:
        if n * _band(matrix) <= _MAX_FACTOR_NUMBERS:
            return _beyond(matrix, 1.0 if which == "LA" else -1.0, options)
    try:
        return _lanczos(matrix, which=which, maxiter=100 * _SLOW_RESTARTS, **options)
    except ArpackNoConvergence as error:
        raise RunError(f"the eigenvalues of {n} workers' graph do not converge") from error


def _beyond(matrix: Matrix, sign: float, options: dict[str, Any]) -> Floats:
    """Eigenvalues at the upper (1) or lower (-1) end, by shift and invert from just beyond it."""
    from scipy.sparse import csc_array, diags_array
    from scipy.sparse.linalg import LinearOperator, splu

    n = matrix.shape[0]
    own = matrix.diagonal()
    reach = row_sums(abs(matrix)) - abs(own)
    shift = sign * (float((sign * own + reach).max()) + 1e-9)  # Gershgorin
    inverse = splu(csc_array(matrix - shift * diags_array(np.ones(n))))
    operator = LinearOperator((n, n), matvec=inverse.solve, dtype=np.float64)
    return np.asarray(shift + 1.0 / _lanczos(operator, which="LM", **options))


def _band(matrix: Matrix) -> int:
    """The bandwidth of a matrix, its rows and columns in the order of reverse Cuthill-McKee."""
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    order = reverse_cuthill_mckee(matrix, symmetric_mode=True)
    place = np.empty_like(order)
    place[order] = np.arange(order.size)
    rows = np.repeat(np.arange(order.size), np.diff(matrix.indptr))
    return int(abs(place[rows] - place[matrix.indices]).max())
