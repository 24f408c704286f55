"""Rules for mixing weights: adjacency [n, n] in, mixing matrix W [n, n] out; row i is the receiver."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from ..errors import InputError, RunError
from .matrix import (
    Matrix,
    in_degrees,
    keeping_rest,
    need_connected,
    need_undirected,
    out_degrees,
    pairwise,
    with_diagonal,
)
from .spectra import laplacian_ends, second_modulus

MAX_FDLA_WORKERS: Final = 100
"""Half a minute's work; the time grows with about the fourth power."""


def fdla(graph: Matrix) -> Matrix:
    """Fastest distributed linear averaging: the symmetric weights with the least second-largest modulus.

    Doubly stochastic on any connected undirected graph; weights may be negative. Where the solver's last
    digits leave it behind a rule in closed form, that rule's weights are taken. Needs the extra
    ``paceline[fdla]``. Source: Xiao and Boyd, Systems & Control Letters 2004, problem (16).

    Raises:
        InputError: the graph is directed, not connected or too large, or cvxpy is not installed.
        RunError: the solver fails.
    """
    from scipy.sparse import csr_array, triu
    from scipy.sparse.csgraph import connected_components

    need_undirected(graph, "fdla")
    parts, _ = connected_components(graph, directed=False)
    need_connected(parts == 1, "fdla")
    n = graph.shape[0]
    if n > MAX_FDLA_WORKERS:
        raise InputError(f"fdla weights are for up to {MAX_FDLA_WORKERS} workers, not {n}; use laplacian")
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
    solved = pairwise(n, upper.row, upper.col, share.value)
    return min((solved, laplacian(graph), metropolis(graph)), key=second_modulus)


def uniform(graph: Matrix) -> Matrix:
    """Equal weights for a worker and its senders: 1 / (in-degree + 1). Row-stochastic on any graph, doubly
    stochastic where all degrees are equal.
    """
    share = 1.0 / (in_degrees(graph) + 1)
    return with_diagonal(_scaled(graph, np.repeat(share, in_degrees(graph))), share)


def metropolis(graph: Matrix) -> Matrix:
    """Metropolis weights 1 / (1 + max(deg_i, deg_j)), the rest on oneself. Doubly stochastic and not negative
    on any undirected graph. Source: Xiao, Boyd and Kim, J. Parallel Distrib. Comput. 2007.

    Raises: ``InputError`` where the graph is directed.
    """
    return _larger_degree(graph, "metropolis", 1)


def metropolis_local_degree(graph: Matrix) -> Matrix:
    """Metropolis weights without the 1: 1 / max(deg_i, deg_j), the rest, which may be 0, on oneself.

    The Metropolis-Hastings chain of a simple random walk. It does not contract where the graph is regular
    and two-colourable. Source: Xiao and Boyd, Systems & Control Letters 2004 (local-degree weights).

    Raises: ``InputError`` where the graph is directed.
    """
    return _larger_degree(graph, "metropolis_local_degree", 0)


def column_stochastic(graph: Matrix) -> Matrix:
    """Equal shares of a value for its worker and all receivers: 1 / (out-degree + 1). Column-stochastic on
    any graph; push-sum divides the bias out. Source: Assran et al., ICML 2019 (stochastic gradient push).
    """
    share = 1.0 / (out_degrees(graph) + 1)
    return with_diagonal(_scaled(graph, share[graph.indices]), share)


def laplacian(graph: Matrix) -> Matrix:
    """The best constant: W = I - a L with a = 2 / (lambda_2 + lambda_n), L the graph's Laplacian.

    Doubly stochastic on any connected undirected graph; own weights may be negative. The second-largest
    modulus is (lambda_n - lambda_2) / (lambda_n + lambda_2). Source: Xiao and Boyd, 2004, section 4.1.

    Raises: ``InputError`` where the graph is directed or not connected.
    """
    from scipy.sparse import csr_array

    need_undirected(graph, "laplacian")
    second, last = laplacian_ends(graph)
    need_connected(second > 1e-9 * last, "laplacian")
    share = 2.0 / (second + last)
    return with_diagonal(csr_array(share * graph), 1.0 - share * in_degrees(graph))


def _scaled(graph: Matrix, weights: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Matrix:
    from scipy.sparse import csr_array

    return csr_array((weights, graph.indices, graph.indptr), shape=graph.shape)


def _larger_degree(graph: Matrix, name: str, plus: int) -> Matrix:
    """Weights 1 / (plus + max(deg_i, deg_j)), the rest on oneself."""
    need_undirected(graph, name)
    degree = in_degrees(graph)
    rows = np.repeat(degree, degree)
    return keeping_rest(_scaled(graph, 1.0 / (plus + np.maximum(rows, degree[graph.indices]))))


def lazy(rule: Callable[[Matrix], Matrix]) -> Callable[[Matrix], Matrix]:
    """A rule that gives (I + W) / 2 instead of W: no eigenvalue is below 0 where W is symmetric and >= 0."""

    def halved(graph: Matrix) -> Matrix:
        from scipy.sparse import csr_array, eye_array

        return csr_array(0.5 * (eye_array(graph.shape[0]) + rule(graph)))

    return halved


_RULES: Final[Mapping[str, Callable[[Matrix], Matrix]]] = {
    "uniform": uniform,
    "metropolis": metropolis,
    "metropolis_local_degree": metropolis_local_degree,
    "laplacian": laplacian,
    "fdla": fdla,
    "column_stochastic": column_stochastic,
}

RULES: Final[Mapping[str, Callable[[Matrix], Matrix]]] = {
    **_RULES,
    **{f"lazy_{name}": lazy(rule) for name, rule in _RULES.items()},
}
"""Every rule by its name in scenarios."""
