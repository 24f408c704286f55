"""The fastest mixing weights of a graph, as a convex programme; the optional extra ``paceline[fdla]``."""

from __future__ import annotations

import warnings

import numpy as np
from scipy.sparse import csr_array, triu
from scipy.sparse.csgraph import connected_components

from ..errors import InputError, RunError
from .matrix import Matrix, need_connected, need_undirected, row_sums, with_diagonal

MAX_WORKERS = 100
"""Half a minute's work; the time grows with the fourth power or so."""


def fastest(graph: Matrix) -> Matrix:
    """The symmetric weights on a graph with the least norm of W - J, to about 1e-9.

    Source: Xiao and Boyd, Systems & Control Letters 2004, problem (16).

    Raises:
        InputError: the graph is directed, not connected or too large, or cvxpy is not installed.
        RunError: the solver fails.
    """
    need_undirected(graph, "fdla")
    parts, _ = connected_components(graph, directed=False)
    need_connected(parts == 1, "fdla")
    n = graph.shape[0]
    if n > MAX_WORKERS:
        raise InputError(f"fdla weights are for up to {MAX_WORKERS} workers, not {n}; use laplacian")
    try:
        import cvxpy as cp
    except ImportError:
        raise InputError("fdla weights need cvxpy: pip install 'paceline[fdla]', or use laplacian") from None
    upper = triu(graph, k=1).tocoo()
    edges = upper.row.size
    ends = np.r_[upper.row, upper.col], np.r_[np.arange(edges), np.arange(edges)]
    incidence = csr_array((np.r_[np.ones(edges), -np.ones(edges)], ends), shape=(n, edges))
    share, modulus = cp.Variable(edges), cp.Variable()
    distance = np.eye(n) - 1.0 / n - incidence @ cp.diag(share) @ incidence.T
    identity = np.eye(n)
    problem = cp.Problem(
        cp.Minimize(modulus), [modulus * identity - distance >> 0, modulus * identity + distance >> 0]
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of an inaccurate solution; the start below is never worse
        try:
            problem.solve(solver=cp.CLARABEL)
        except cp.SolverError as error:
            raise RunError(f"the solver found no fdla weights: {error}") from error
    if share.value is None:
        raise RunError(f"the solver found no fdla weights: {problem.status}")
    pairs = np.r_[upper.row, upper.col], np.r_[upper.col, upper.row]
    off = csr_array((np.r_[share.value, share.value], pairs), shape=(n, n))
    return with_diagonal(off, 1.0 - row_sums(off))
