"""Plans: the mixing pattern of every step, from a topology, a rule for weights and n workers.

A rule takes an adjacency [n, n] and gives a mixing matrix W [n, n]; row i is the receiver.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

import numpy as np

from ..config.limits import MAX_GRAPH
from ..errors import InputError, RunError, did_you_mean, quote, shorten
from ..program.pattern import Pattern
from .entry import Graphs, TopologyEntry, topology_named
from .matrix import (
    Matrix,
    in_degrees,
    is_symmetric,
    keeping_rest,
    laplacian_ends,
    need_connected,
    need_undirected,
    out_degrees,
    pairwise,
    product_norm,
    row_sums,
    second_modulus,
    support,
    union,
    with_diagonal,
)

AUTO: Final = "auto"
GIVEN: Final = "given"
"""Names of weights that are no rule: the choice that ``plan`` makes, and the topology's own."""
WEIGHT_TOLERANCE: Final = 1e-12
"""Largest difference of a sum of weights from 1."""
SAMPLED_STEPS: Final = 16
"""Steps by which an endless sequence is judged."""
CACHED_STEPS: Final = 64
"""Steps of an endless sequence whose matrices and patterns are cached."""
_MODULUS_ROUNDING: Final = 1e-14
"""A modulus this near to 1 does not contract."""
_PROVEN: Final = ("laplacian", "fdla")
"""Rules that may give negative weights and contract on every connected graph."""


@dataclass(frozen=True, eq=False)
class Plan:
    """The mixing matrices that a topology goes through, step by step.

    Row i of a matrix is the receiver's: the weights that worker i gives to the values it receives, its own
    (the self-loop) on the diagonal.

    >>> ring = plan("ring", 4)
    >>> ring.weights, ring.period
    ('uniform', 1)
    >>> ring.matrix(0).toarray().round(2).tolist()[0]
    [0.33, 0.33, 0.0, 0.33]
    >>> ring.at(0).sources[0]
    (1, 3)
    >>> float((ring.matrix(0) @ [1, 2, 3, 4])[0].round(2))  # the mean of the values of workers 0, 1 and 3
    2.33

    Attributes:
        weights: name of the rule that made the weights; ``given`` where the topology has its own.
        period: step k uses what step k mod period uses; None: no two steps need be the same.
        matrix: the mixing matrix [n, n] of a step.
        at: the pattern of a step, for ``Worker.mix``: the step's matrix with its messages spelled out.
        rate: of a random sequence, by how much disagreement shrinks in mean square a step; None: not known.
    """

    name: str
    workers: int
    weights: str
    period: int | None
    matrix: Callable[[int], Matrix]
    at: Callable[[int], Pattern]
    rate: float | None = None

    @property
    def first(self) -> list[Matrix]:
        """The matrices of one period; of an endless sequence those of its first steps."""
        return [self.matrix(step) for step in range(self.period or SAMPLED_STEPS)]

    @cached_property
    def row_stochastic(self) -> bool:
        """Whether the weights that each worker gives sum to 1."""
        return all(bool(np.all(abs(row_sums(w) - 1.0) <= WEIGHT_TOLERANCE)) for w in self.first)

    @cached_property
    def column_stochastic(self) -> bool:
        """Whether the weights given to each worker's value sum to 1: the mean is conserved."""
        return all(bool(np.all(abs(w.sum(axis=0) - 1.0) <= WEIGHT_TOLERANCE)) for w in self.first)

    @cached_property
    def symmetric(self) -> bool:
        """Whether every matrix equals its transpose."""
        return all(is_symmetric(w, WEIGHT_TOLERANCE) for w in self.first)

    @cached_property
    def undirected(self) -> bool:
        """Whether in every step every worker hears all workers that hear it."""
        return all(is_symmetric(support(w)) for w in self.first)

    @cached_property
    def least_weight(self) -> float:
        """The smallest weight, own weights included."""
        return min(min(float(w.data.min()), float(w.diagonal().min())) for w in self.first)


@lru_cache(maxsize=64)
def plan(topology: TopologyEntry | str, workers: int, weights: str = AUTO, seed: int = 0) -> Plan:
    """The mixing matrices of a topology, an entry or the name of one without options, for n ``workers``.

    Args:
        weights: a rule's name; ``auto`` is the topology's own weights if it has some, else uniform where that
            conserves the mean, else metropolis (uniform on a directed graph).
        seed: of the run; random graphs are drawn from (seed, topology, step).

    Raises:
        InputError: the topology, the weights or the number of workers is not possible, or averaging would
            never bring the workers together.
    """
    entry = TopologyEntry.of(topology) if isinstance(topology, str) else topology
    if workers < 2:
        raise InputError(f"topology {entry.name} needs at least 2 workers, not {workers}")
    if workers > MAX_GRAPH:
        raise InputError(f"topology {entry.name}: takes at most {MAX_GRAPH} workers, not {shorten(workers)}")
    graphs = topology_named(entry.name).build(workers, entry.options, seed)
    name = str(getattr(entry.options, "path", entry.name))
    rule = _chosen(name, graphs, weights)
    make = graphs.at if rule == GIVEN else lambda step: RULES[rule](graphs.at(step))
    period = graphs.period
    matrix = lru_cache(maxsize=period or CACHED_STEPS)(make)
    pattern = lru_cache(maxsize=period or CACHED_STEPS)(lambda step: Pattern.from_matrix(matrix(step)))
    sequence = Plan(
        name=entry.name,
        workers=workers,
        weights=rule,
        period=period,
        rate=graphs.rate if graphs.rate is None or rule == _usual(graphs) else None,
        matrix=matrix if period is None else lambda step: matrix(step % period),
        at=pattern if period is None else lambda step: pattern(step % period),
    )
    _refuse_sums(sequence)
    _refuse_stuck(name, rule, sequence.first, endless=period is None)
    return sequence


def _chosen(name: str, graphs: Graphs, weights: str) -> str:
    if weights == AUTO:
        return _usual(graphs)
    if weights == GIVEN and not graphs.weighted:
        raise InputError(f"topology {name} has no weights of its own; choose from: {', '.join(RULES)}")
    if weights != GIVEN and weights not in RULES:
        raise InputError(f"unknown weights {quote(weights)}; {did_you_mean(weights, [AUTO, GIVEN, *RULES])}")
    if weights != GIVEN and graphs.weighted:
        raise InputError(f"topology {name} has weights of its own; use weights: given, not {weights}")
    return weights


def _usual(graphs: Graphs) -> str:
    """The rule that ``auto`` means for these graphs."""
    if graphs.weighted:
        return GIVEN
    steps = [graphs.at(step) for step in range(graphs.period or 1)]
    if all(bool(np.all(abs(uniform(g).sum(axis=0) - 1.0) <= WEIGHT_TOLERANCE)) for g in steps):
        return "uniform"
    return "metropolis" if all(is_symmetric(g) for g in steps) else "uniform"


def _refuse_sums(sequence: Plan) -> None:
    if sequence.row_stochastic or sequence.column_stochastic:
        return
    for w in sequence.first:
        sums = row_sums(w)
        worst = int(abs(sums - 1.0).argmax())
        if abs(sums[worst] - 1.0) > WEIGHT_TOLERANCE:
            raise InputError(
                f"the weights that worker {worst} gives in topology {sequence.name} sum to "
                f"{sums[worst]:.6g}, not to 1; leave the weights out, or correct them"
            )


def _refuse_stuck(name: str, rule: str, matrices: Sequence[Matrix], endless: bool) -> None:
    """Raise ``InputError``, with the reason, for one period's mixing matrices that do not contract.

    Matrices without negative weights contract exactly where all workers reach each other and the lengths of
    the walks have no common divisor, which one positive own weight rules out (Perron and Frobenius). The
    beginning of an ``endless`` random sequence does not decide.
    """
    from scipy.sparse.csgraph import connected_components

    if endless:
        return
    count, part = connected_components(union(matrices), directed=True, connection="strong")
    if count > 1:
        apart = int(np.flatnonzero(part != part[0])[0])
        raise InputError(
            f"the graph of topology {name} is not connected: workers 0 and {apart} never hear of each other "
            f"({count} parts); add edges, or use another topology"
        )
    positive = all(w.data.min() >= 0.0 for w in matrices)
    if positive and all(w.diagonal().min() > 0.0 for w in matrices):
        return
    if rule.removeprefix("lazy_") in _PROVEN:
        return
    if positive and len(matrices) == 1:
        import networkx as nx

        graph: nx.DiGraph[int] = nx.from_scipy_sparse_array(matrices[0], create_using=nx.DiGraph)
        if matrices[0].diagonal().max() > 0.0 or nx.is_aperiodic(graph):
            return
        hint = "give everybody a weight of its own" if rule == "given" else f"use lazy_{rule}"
        raise InputError(
            f"{rule} weights on topology {name} do not contract: workers only swap their values, since "
            f"nobody keeps a share; {hint}"
        )
    modulus = second_modulus(matrices[0]) if len(matrices) == 1 else product_norm(list(matrices))
    if modulus >= 1.0 - _MODULUS_ROUNDING:
        raise InputError(
            f"the weights of topology {name} do not contract: the second-largest eigenvalue modulus is "
            f"{modulus:.6g}, not below 1; make the weights smaller"
        )


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
