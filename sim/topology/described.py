"""A topology in numbers: what ``paceline topology show`` prints and draws."""

from __future__ import annotations

import math
from typing import Any, Final

import networkx as nx
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from .. import seeds
from . import spectra
from .entry import TopologyEntry
from .matrix import Matrix, edges_of, in_degrees, off_diagonal, out_degrees, support
from .plan import Plan, plan

EPSILON: Final = 1e-3
"""Averaging is done when disagreement has shrunk to this."""
DRAWN: Final = 200
"""Up to so many workers the record says where to draw each."""
LISTED: Final = 100_000
"""Up to so many edges the record lists them."""
_DECAY: Final = 20, 300
"""The fewest and the most steps of the decay of disagreement."""
_PROBES: Final = 8


def describe(entry: TopologyEntry, workers: int, weights: str, seed: int) -> dict[str, Any]:
    """Everything that is known of a topology, ready for JSON; the keys are told in ``docs/topologies.md``.

    Args:
        entry, workers, weights, seed: as for ``plan``.

    Raises:
        InputError: as for ``plan``.
        RunError: the eigenvalues of a very large graph do not converge.
    """
    found = plan(entry, workers, weights, seed)
    matrices = found.first
    heard = [in_degrees(off_diagonal(w)) for w in matrices]
    sent = [out_degrees(off_diagonal(w)) for w in matrices]
    exact = None if found.period is None else spectra.exact_after(matrices)
    modulus, rate = _rates(found, exact)
    steps = _steps(found, exact, rate)
    union = _union(matrices)
    return {
        "topology": entry.model_dump(mode="json"),
        "name": str(entry),
        "workers": workers,
        "seed": seed,
        "weights": found.weights,
        "period": found.period,
        "degree": int(max(each.max() for each in [*heard, *sent])),
        "mean_degree": float(np.mean(heard)),
        "directed": not found.undirected,
        "symmetric": found.symmetric,
        "row_stochastic": found.row_stochastic,
        "column_stochastic": found.column_stochastic,
        "least_weight": found.least_weight,
        "second_eigenvalue_modulus": modulus,
        "spectral_gap": None if modulus is None else 1.0 - modulus,
        "rate_per_step": rate,
        "exact_after": exact,
        "epsilon": EPSILON,
        "steps_to_epsilon": steps,
        "transient_iterations": None if rate is None else spectra.transient_iterations(workers, rate),
        "decay": _decay(found, steps),
        "spectrum": _spectrum(found),
        "positions": _positions(union).tolist() if workers <= DRAWN else None,
        "number_of_edges": union.nnz if not found.undirected else union.nnz // 2,
        "edges": _edges(union, found.undirected),
    }


def _rates(found: Plan, exact: int | None) -> tuple[float | None, float | None]:
    """The second-largest eigenvalue modulus and the rate per step.

    Of a periodic sequence the modulus is the norm of the period's product on what the workers disagree in.
    """
    if found.period is None:
        return found.rate, found.rate
    matrices = found.first
    if exact is not None:
        return (0.0, 0.0) if len(matrices) > 1 or exact > 1 else (spectra.second_modulus(matrices[0]), 0.0)
    modulus = spectra.second_modulus(matrices[0]) if len(matrices) == 1 else spectra.product_norm(matrices)
    return modulus, modulus ** (1.0 / len(matrices))


def _steps(found: Plan, exact: int | None, rate: float | None) -> int | None:
    """Steps until disagreement is at most ``EPSILON`` of what it was."""
    if found.period is None:
        return None if rate is None else max(1, math.ceil(math.log(EPSILON) / math.log(rate))) if rate else 1
    if exact is not None:
        return exact
    return spectra.steps_until(found.first, EPSILON)


def _decay(found: Plan, steps: int | None) -> list[float]:
    """What is left of the disagreement after 0, 1, 2, ... steps, in root mean square over random starts."""
    fewest, most = _DECAY
    n = found.workers
    x = seeds.generator(0, seeds.SHARED, "topology decay").standard_normal((n, _PROBES))
    x -= x.mean(axis=0)
    start = float(np.linalg.norm(x))
    left = [1.0]
    for step in range(min(max(fewest, steps or 0), most)):
        x = np.asarray(found.matrix(step) @ x)
        left.append(float(np.linalg.norm(x - x.mean(axis=0))) / start)
    return left


def _spectrum(found: Plan) -> list[tuple[float, float]] | None:
    """The eigenvalues (real, imaginary) of a static graph's mixing matrix, or of a period's product."""
    if found.period is None or found.workers > spectra.DENSE:
        return None
    total = found.first[0]
    for w in found.first[1:]:
        total = csr_array(w @ total)
    return [(float(value.real), float(value.imag)) for value in spectra.spectrum(total)]


def _union(matrices: list[Matrix]) -> Matrix:
    """Who hears whom in any of the steps."""
    total = support(matrices[0])
    for w in matrices[1:]:
        total = total + support(w)
    return support(total)


def _edges(union: Matrix, undirected: bool) -> list[tuple[int, int]] | None:
    """Pairs (u, v), u < v where both hear each other, else u sends to v."""
    found = edges_of(union, not undirected)
    return [(u, v) for u, v in found.tolist()] if len(found) <= LISTED else None


def _positions(union: Matrix) -> NDArray[np.float64]:
    """Where to draw each worker [n, 2], in the unit square: on a circle where all are alike."""
    n = union.shape[0]
    graph: nx.Graph[int] = nx.empty_graph(n)
    graph.add_edges_from(zip(*(ends.tolist() for ends in union.nonzero()), strict=True))
    alike = spectra.circulant_row(union) is not None
    layout = nx.circular_layout(graph) if alike else nx.kamada_kawai_layout(graph)
    places = np.array([layout[rank] for rank in range(n)])
    if alike:
        return np.asarray((places + 1.0) / 2.0)
    low, high = places.min(axis=0), places.max(axis=0)
    return np.asarray((places - low) / np.maximum(high - low, 1e-9))
