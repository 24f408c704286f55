"""A topology in numbers, as printed and drawn by ``paceline topology show``."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from paceline.sim import seeds
from paceline.sim.config.limits import MAX_WORKERS
from paceline.sim.errors import InputError
from paceline.sim.topology import spectra
from paceline.sim.topology.entry import TopologyEntry
from paceline.sim.topology.matrix import Matrix, edges_of, in_degrees, off_diagonal, out_degrees, union
from paceline.sim.topology.plan import Plan, plan

EPSILON: Final = 1e-3
"""Share of the disagreement at which averaging counts as done."""
MAX_DRAWN_WORKERS: Final = 200
"""Largest number of workers with positions in the record."""
MAX_LISTED_EDGES: Final = 100_000
"""Largest number of edges listed in the record."""
_DECAY_STEPS: Final = 20, 300
"""The fewest and the most steps of the decay of disagreement."""
_DECAY_STARTS: Final = 8
"""Random starts over which the decay of disagreement is averaged."""
EXACT: Final = 1e-10
"""A norm below this is rounding: averaging is exact."""
_NORM_ROUNDING: Final = 1e-13
"""Disagreement below this share of its start is rounding."""


def describe(entry: TopologyEntry, workers: int, weights: str, seed: int) -> dict[str, Any]:
    """All known properties of a topology, ready for JSON; ``docs/topologies.md`` explains the keys.

    Arguments are those of ``plan``. Raises ``InputError`` as ``plan``, or for too many workers, and
    ``RunError`` where the eigenvalues of a very large graph do not converge.
    """
    sequence = plan(entry, workers, weights, seed)
    if workers > MAX_WORKERS and not all(spectra.circulant_row(w) is not None for w in sequence.first):
        raise InputError(
            f"{entry.name} looks different from different workers, and such a graph is described for at most "
            f"{MAX_WORKERS} workers, not {workers}; use fewer"
        )
    matrices = sequence.first
    others = [off_diagonal(w) for w in matrices]
    received, sent = [in_degrees(w) for w in others], [out_degrees(w) for w in others]
    exact = None if sequence.period is None else exact_after(matrices)
    modulus, rate = _rates(sequence, exact)
    steps = _steps(sequence, exact, rate)
    graph = union(matrices)
    edges = edges_of(graph, directed=not sequence.undirected)
    return {
        "topology": entry.model_dump(mode="json"),
        "name": str(entry),
        "workers": workers,
        "seed": seed,
        "weights": sequence.weights,
        "period": sequence.period,
        "degree": int(max(each.max() for each in [*received, *sent])),
        "mean_degree": float(np.mean(received)),
        "directed": not sequence.undirected,
        "symmetric": sequence.symmetric,
        "row_stochastic": sequence.row_stochastic,
        "column_stochastic": sequence.column_stochastic,
        "least_weight": sequence.least_weight,
        "second_eigenvalue_modulus": modulus,
        "spectral_gap": None if modulus is None else 1.0 - modulus,
        "rate_per_step": rate,
        "exact_after": exact,
        "epsilon": EPSILON,
        "steps_to_epsilon": steps,
        "transient_iterations": None
        if rate is None or (exact or 1) > 1
        else transient_iterations(workers, rate),
        "decay": _decay(sequence, steps),
        "spectrum": _spectrum(sequence),
        "positions": _positions(graph).tolist() if workers <= MAX_DRAWN_WORKERS else None,
        "number_of_edges": len(edges),
        "edges": list(map(tuple, edges.tolist())) if len(edges) <= MAX_LISTED_EDGES else None,
    }


def _rates(sequence: Plan, exact: int | None) -> tuple[float | None, float | None]:
    """The second-largest eigenvalue modulus (of a period: the product's norm on disagreement) and rate."""
    if sequence.period is None:
        return sequence.rate, sequence.rate
    matrices = sequence.first
    if exact is not None:
        return (0.0, 0.0) if len(matrices) > 1 or exact > 1 else (spectra.second_modulus(matrices[0]), 0.0)
    modulus = spectra.second_modulus(matrices[0]) if len(matrices) == 1 else spectra.product_norm(matrices)
    return modulus, modulus ** (1.0 / len(matrices))


def _steps(sequence: Plan, exact: int | None, rate: float | None) -> int | None:
    """Steps until disagreement is at most ``EPSILON`` of its start; None: unknown."""
    if sequence.period is None:
        return None if rate is None else max(1, math.ceil(math.log(EPSILON) / math.log(rate))) if rate else 1
    if exact is not None:
        return exact
    return steps_until(sequence.first, EPSILON)


def _decay(sequence: Plan, steps: int | None) -> list[float]:
    """Share of the disagreement left after 0, 1, 2, ... steps, over all random starts together."""
    fewest, most = _DECAY_STEPS
    n = sequence.workers
    x = seeds.generator(0, seeds.SHARED, "topology decay").standard_normal((n, _DECAY_STARTS))
    x -= x.mean(axis=0)
    start = float(np.linalg.norm(x))
    left = [1.0]
    for step in range(min(max(fewest, steps or 0), most)):
        x = np.asarray(sequence.matrix(step) @ x)
        left.append(float(np.linalg.norm(x - x.mean(axis=0))) / start)
    return left


def _spectrum(sequence: Plan) -> list[tuple[float, float]] | None:
    """Eigenvalues (real, imaginary) of a static graph's mixing matrix, or of a period's product."""
    from scipy.sparse import csr_array

    if sequence.period is None or sequence.workers > spectra.DENSE:
        return None
    total = sequence.first[0]
    for w in sequence.first[1:]:
        total = csr_array(w @ total)
    return [(float(value.real), float(value.imag)) for value in spectra.spectrum(total)]


def _positions(graph: Matrix) -> NDArray[np.float64]:
    """Drawing position of each worker [n, 2], in the unit square: on a circle where all are alike."""
    import networkx as nx

    n = graph.shape[0]
    drawn: nx.Graph[int] = nx.empty_graph(n)
    drawn.add_edges_from(zip(*(ends.tolist() for ends in graph.nonzero()), strict=True))
    alike = spectra.circulant_row(graph) is not None
    layout = nx.circular_layout(drawn) if alike else nx.kamada_kawai_layout(drawn)
    places = np.array([layout[rank] for rank in range(n)])
    if alike:
        return np.asarray((places + 1.0) / 2.0)
    low, high = places.min(axis=0), places.max(axis=0)
    return np.asarray((places - low) / np.maximum(high - low, 1e-9))


def exact_after(matrices: list[Matrix]) -> int | None:
    """Number of steps of a periodic sequence until all have the mean, to rounding; None: never.

    Searched within one period, or log2 n steps if longer, on random starts: exactness for
    them is exactness for all with probability 1.
    """
    n = matrices[0].shape[0]
    x = np.stack([spectra.fixed_start(n), np.roll(spectra.fixed_start(n), n // 3)], axis=1)
    begun = np.linalg.norm(x)
    for step in range(max(len(matrices), (n - 1).bit_length())):
        x = np.asarray(matrices[step % len(matrices)] @ x)
        if np.linalg.norm(x - x.mean(axis=0)) <= _NORM_ROUNDING * begun:
            return step + 1
    return None


def steps_until(matrices: list[Matrix], epsilon: float) -> int:
    """Number of steps of a periodic sequence that shrink any disagreement to ``epsilon`` of itself.

    Within the first period this is counted step by step, later bounded by whole periods: T ln(epsilon) /
    ln(norm of the period's product).
    """
    norm = spectra.product_norm(matrices)
    if norm <= epsilon or norm < EXACT:
        return next(
            k
            for k in range(1, len(matrices) + 1)
            if spectra.product_norm(matrices[:k]) <= max(epsilon, EXACT)
        )
    return len(matrices) * math.ceil(math.log(epsilon) / math.log(norm) - 1e-12)


def transient_iterations(workers: int, modulus: float) -> dict[str, float]:
    """Steps, up to a constant, until decentralised SGD is as fast as with exact averages: n^3 rho^4 / (1 -
    rho)^2 for equal data on all workers, (1 - rho)^4 for unequal data (after Ying et al., NeurIPS 2021).
    """
    gap = max(1.0 - modulus, np.finfo(np.float64).tiny ** 0.25)
    top = workers**3 * modulus**4
    return {"same_data": top / gap**2, "different_data": top / gap**4}
