"""The speed of averaging: eigenvalues of mixing matrices, and norms of their products.

Circulant matrices are solved by a Fourier transform, others up to ``DENSE`` workers by a full
decomposition, larger ones by Lanczos and Arnoldi iterations on the sparse matrix.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .. import seeds
from ..errors import RunError
from ..seeds import Floats
from .matrix import Matrix, edges_of, is_symmetric, laplacian, row_sums

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
