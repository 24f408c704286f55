"""Plans: the mixing pattern of every step, from a topology, a rule for weights and n workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

import numpy as np

from ..config.limits import MAX_GRAPH
from ..errors import InputError, did_you_mean, quote, shorten
from ..program.pattern import Pattern
from . import weights as rules
from .entry import TopologyEntry, topology_named
from .matrix import Matrix, is_symmetric, row_sums, support, union
from .registered import Graphs
from .spectra import product_norm, second_modulus

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
    make = graphs.at if rule == GIVEN else lambda step: rules.RULES[rule](graphs.at(step))
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
        raise InputError(f"topology {name} has no weights of its own; choose from: {', '.join(rules.RULES)}")
    if weights != GIVEN and weights not in rules.RULES:
        raise InputError(
            f"unknown weights {quote(weights)}; {did_you_mean(weights, [AUTO, GIVEN, *rules.RULES])}"
        )
    if weights != GIVEN and graphs.weighted:
        raise InputError(f"topology {name} has weights of its own; use weights: given, not {weights}")
    return weights


def _usual(graphs: Graphs) -> str:
    """The rule that ``auto`` means for these graphs."""
    if graphs.weighted:
        return GIVEN
    steps = [graphs.at(step) for step in range(graphs.period or 1)]
    if all(bool(np.all(abs(rules.uniform(g).sum(axis=0) - 1.0) <= WEIGHT_TOLERANCE)) for g in steps):
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
