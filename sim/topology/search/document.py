"""The report on a search's best graph, and its file, which scenarios can name."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final

import numpy as np

from ..graphs.graph_files import write_graph
from ..matrix import undirected
from .bound import alon_boppana, modulus_bound
from .find import SearchResult
from .objective import StepTime, modulus_for
from .search_graph import EdgeArray, lattice
from .spectrum import eigenvalues

MADE_BY: Final = "paceline topology search"
"""In the provenance of the files."""


def describe(result: SearchResult, step_time: StepTime | None = None) -> dict[str, Any]:
    """The best graph, its comparisons, and the course of the search; values of JSON.

    Keys: ``lower_bound`` and ``alon_boppana`` are of regular graphs with the best constant weight (see
    ``sim/topology/search/bound.py``), ``ring_lattice`` is the regular ring lattice of the same degree under
    the same rule; ``step_time_s`` and ``time_per_e_fold_s`` are null where steps were counted.
    """
    request, degree = result.request, result.request.degree
    weight = 2.0 / (result.second + result.last)
    if request.weights == "metropolis" and degree is not None:
        weight = 1.0 / (degree + 1)
    degrees = np.bincount(np.array(result.edges).ravel(), minlength=request.workers)
    return {
        "workers": request.workers,
        "degree": degree,
        "weights": request.weights,
        **_rates(result.modulus, result.step_s),
        "spectral_gap": 1.0 - result.modulus,
        "edge_weight": weight,
        "least_own_weight": 1.0 - weight * int(degrees.max()),
        "lower_bound": None if degree is None else modulus_bound(request.workers, degree),
        "alon_boppana": None if degree is None else alon_boppana(degree),
        "ring_lattice": None if degree is None else _lattice(result, degree, step_time),
        "objective": "spectral" if result.step_s is None else "wall-clock",
        "seed": request.seed,
        "restarts": request.budget.restarts,
        "moves": result.tally.moves,
        "moves_computed": result.tally.computed,
        "moves_accepted": result.tally.accepted,
        "edges": [list(edge) for edge in result.edges],
    }


def save(result: SearchResult, path: Path, objective: str) -> None:
    """Write the graph, with the ``objective`` in its provenance; an existing file is replaced.

    Scenarios name it: ``topology: {file: PATH}, weights: laplacian`` (or another rule). Raises ``InputError``
    where the file cannot be written.
    """
    request = result.request
    provenance = {
        "made_by": MADE_BY,
        "objective": objective,
        "degree": request.degree,
        "weights": request.weights,
        "second_eigenvalue_modulus": result.modulus,
        "seed": request.seed,
        "moves": request.budget.moves,
        "restarts": request.budget.restarts,
    }
    write_graph(path, undirected(request.workers, result.edges), provenance=provenance)


def _lattice(result: SearchResult, degree: int, step_time: StepTime | None) -> dict[str, Any]:
    edges: EdgeArray = lattice(result.request.workers, degree)
    values = eigenvalues(result.request.workers, edges)
    modulus = modulus_for(result.request.weights, degree)(values[1:2], values[-1:])
    return _rates(float(modulus[0]), None if step_time is None else step_time.checked_s(edges))


def _rates(modulus: float, step_s: float | None) -> dict[str, Any]:
    modulus = max(modulus, 0.0)
    steps = 0.0 if modulus == 0.0 else -1.0 / math.log(modulus)
    return {
        "second_eigenvalue_modulus": modulus,
        "steps_per_e_fold": steps,
        "step_time_s": step_s,
        "time_per_e_fold_s": None if step_s is None else steps * step_s,
    }
