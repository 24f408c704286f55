"""What is told of a graph that was found, and the file that scenarios can name."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from ..graphs.files import write_graph
from ..matrix import undirected
from .bound import alon_boppana, modulus_bound
from .find import SearchResult
from .graph import EdgeArray, lattice
from .objective import StepTime, modulus_for
from .spectrum import eigenvalues


def describe(found: SearchResult, step_time: StepTime | None = None) -> dict[str, Any]:
    """The found graph, what it is compared with, and how it was found; values of JSON.

    Keys: ``lower_bound`` and ``alon_boppana`` are of regular graphs with the best constant weight (see
    ``sim/topology/search/bound.py``), ``ring_lattice`` is the regular ring lattice of the same degree under
    the same rule; ``step_time_s`` and ``time_per_e_fold_s`` are null where steps were counted.

    Args:
        found: the result of a search.
        step_time: that of the search.
    """
    request, degree = found.request, found.request.degree
    weight = _edge_weight(found)
    degrees = np.bincount(np.array(found.edges).ravel(), minlength=request.workers)
    return {
        "workers": request.workers,
        "degree": degree,
        "weights": request.weights,
        **_rates(found.modulus, found.step_s),
        "spectral_gap": 1.0 - found.modulus,
        "edge_weight": weight,
        "least_own_weight": 1.0 - weight * int(degrees.max()),
        "lower_bound": None if degree is None else modulus_bound(request.workers, degree),
        "alon_boppana": None if degree is None else alon_boppana(degree),
        "ring_lattice": None if degree is None else _lattice(found, degree, step_time),
        "objective": "spectral" if found.step_s is None else "wall-clock",
        "seed": request.seed,
        "restarts": request.budget.restarts,
        "moves": found.tally.moves,
        "moves_computed": found.tally.computed,
        "moves_accepted": found.tally.accepted,
        "edges": [list(edge) for edge in found.edges],
    }


def _edge_weight(found: SearchResult) -> float:
    """The weight of every edge: 2 / (l_2 + l_n), or 1 / (k + 1) under ``metropolis``."""
    if found.request.weights == "metropolis" and found.request.degree is not None:
        return 1.0 / (found.request.degree + 1)
    return 2.0 / (found.second + found.last)


def save(found: SearchResult, path: Path, objective: str) -> None:
    """Write the graph; scenarios name it: ``topology: {file: PATH}, weights: laplacian`` (or another rule).

    Args:
        found: the result of a search.
        path: the file; one that is there is replaced.
        objective: for the file's provenance.

    Raises:
        InputError: the file cannot be written.
    """
    request = found.request
    provenance = {
        "made_by": "paceline topology search",
        "objective": objective,
        "degree": request.degree,
        "weights": request.weights,
        "second_eigenvalue_modulus": found.modulus,
        "seed": request.seed,
        "moves": request.budget.moves,
        "restarts": request.budget.restarts,
    }
    write_graph(path, undirected(request.workers, found.edges), provenance=provenance)


def _lattice(found: SearchResult, degree: int, step_time: StepTime | None) -> dict[str, Any]:
    edges: EdgeArray = lattice(found.request.workers, degree)
    values = eigenvalues(found.request.workers, edges)
    modulus = modulus_for(found.request.weights, degree)(values[1:2], values[-1:])
    return _rates(float(modulus[0]), None if step_time is None else step_time.checked_s(edges))


def _rates(modulus: float, step_s: float | None) -> dict[str, Any]:
    """Steps, and seconds, in which disagreement shrinks by a factor of e."""
    modulus = max(modulus, 0.0)
    steps = 0.0 if modulus == 0.0 else -1.0 / math.log(modulus)
    return {
        "second_eigenvalue_modulus": modulus,
        "steps_per_e_fold": steps,
        "step_time_s": step_s,
        "time_per_e_fold_s": None if step_s is None else steps * step_s,
    }
