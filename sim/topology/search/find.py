"""Search for a graph on which averaging is fast, with a fixed degree or number of edges.

The best graph is reported, and written to a file, which scenarios can name.

A move is accepted if the cost afterwards is at most ``cost - temperature * ln(u)`` with u uniform on (0, 1]:
Metropolis' rule, with u drawn first. So a move whose lower bound is beyond that threshold is rejected without
its exact cost, and the walk is the same as if every cost had been computed.

Source: Kirkpatrick, Gelatt and Vecchi, Science 220 (1983).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from threadpoolctl import threadpool_limits

from ... import seeds
from ...config.tracking import WATCH
from ...errors import InputError, shorten
from ..graphs.graph_files import write_graph
from ..graphs.random import random_regular_edges
from ..matrix import laplacian, undirected
from .objective import Objective, StepTime, alon_boppana, modulus_bound, modulus_for
from .spectrum import (
    MAX_DENSE_NODES,
    EdgeArray,
    Ends,
    Moves,
    SearchGraph,
    best_case,
    eigenvalues,
    ends_of,
    lattice,
    move_ends,
    random_even,
)

LARGEST_BATCH: Final = 64
"""Largest number of candidates drawn and bounded at a time."""

MARGIN: Final = 1e-9
"""Largest effect of rounding on a bound, in units of the cost."""

REFRESH: Final = 32
"""Number of accepted moves after which the ends of the spectrum are computed afresh."""


@dataclass
class Tally:
    """Counts of a walk's candidates: judged; of these, not rejected by a fixed block's bound; made."""

    moves: int = 0
    computed: int = 0
    accepted: int = 0


def anneal(
    graph: SearchGraph,
    objective: Objective,
    moves: int,
    temperatures: tuple[float, float],
    random: np.random.Generator,
    tally: Tally,
    *,
    rewire: bool = False,
) -> EdgeArray:
    """Walk from ``graph`` (changed in place) and return the edges of the best graph on the way.

    Args:
        moves: candidates to draw, including unjudged ones that give no simple graph.
        temperatures: the first and the last one, in units of the cost; they fall geometrically.
        random: the only source of chance.
        tally: is added to.
        rewire: move single edges anywhere, instead of swaps that keep the degrees.
    """
    walk = _Walk(graph, objective, tally)
    best, best_cost = graph.edges.copy(), walk.cost
    hot, cold = temperatures
    left, batch = moves, 1
    while left > 0:
        WATCH.get()("candidate of a walk", moves - left, moves)
        drawn = min(batch, left)
        candidates = (graph.rewirings if rewire else graph.swaps)(random, drawn)
        temperature = hot * math.exp((1.0 - left / moves) * math.log(cold / hot))
        patience = -np.log1p(-random.random(len(candidates.pairs)))
        accepted = walk.first_accepted(candidates, walk.cost + temperature * patience)
        if accepted is None:
            batch = min(2 * batch, LARGEST_BATCH)
            used = drawn
        else:
            # Candidates after an accepted move were drawn for another graph: draw them again.
            batch = max(1, min(2 * accepted, LARGEST_BATCH))
            used = drawn - (len(candidates.pairs) - 1 - accepted)
            if walk.cost < best_cost:
                best, best_cost = graph.edges.copy(), walk.cost
        left -= used
    return best


class _Walk:
    """The state of a walk: the graph, its cost, and the ends of its spectrum."""

    def __init__(self, graph: SearchGraph, objective: Objective, tally: Tally) -> None:
        self._graph, self._objective, self._tally = graph, objective, tally
        self._matrix = laplacian(graph.workers, graph.edges)
        self._ends = ends_of(self._matrix)
        self.cost = self._cost(self._ends, objective.log_step_s(graph.edges))

    def _cost(self, ends: Ends, log_step_s: float) -> float:
        return self._objective.log_steps_of(ends.second, ends.last) + log_step_s

    def first_accepted(
        self, moves: Moves, thresholds: np.ndarray[tuple[int], np.dtype[np.float64]]
    ) -> int | None:
        """Make the first move whose cost afterwards is within its threshold; returns its index, if any."""
        bounds = self._objective.log_steps(*best_case(self._ends, moves))
        for index, threshold in enumerate(thresholds.tolist()):
            self._tally.moves += 1
            if self._accept(moves, index, float(bounds[index]), threshold):
                self._tally.accepted += 1
                return index
        return None

    def _accept(self, moves: Moves, index: int, bound: float, threshold: float) -> bool:
        objective, graph = self._objective, self._graph
        if bound + objective.log_floor_s > threshold + MARGIN:
            return False
        edges = graph.after(moves, index)
        if bound + objective.least_log_step_s(edges) > threshold + MARGIN:
            return False
        self._tally.computed += 1
        log_step_s = objective.log_step_s(edges)
        if bound + log_step_s > threshold + MARGIN:
            return False
        if graph.workers <= MAX_DENSE_NODES:
            matrix = laplacian(graph.workers, edges)
            ends = ends_of(matrix)
        else:

            def hopeless(second: float, last: float) -> bool:
                return objective.log_steps_of(second, last) > threshold - log_step_s + MARGIN

            moved = move_ends(self._matrix, self._ends, moves.pairs[index], moves.signs, hopeless)
            if moved is None:
                return False
            matrix, ends = laplacian(graph.workers, edges), moved
            if self._tally.accepted % REFRESH == REFRESH - 1:
                ends = ends_of(matrix)
        cost = self._cost(ends, log_step_s)
        if cost > threshold:
            return False
        graph.apply(moves, index)
        self._matrix, self._ends, self.cost = matrix, ends, cost
        return True


MAX_SEARCH_WORKERS: Final = 4096
"""The best graph is checked by a full decomposition, which takes minutes beyond this."""

MAX_MOVES: Final = 100_000_000
"""Candidates in all walks together; as many as take hours."""

FIRST_TEMPERATURES: Final = (2.0, 6.0, 1.0)
"""First temperatures of the walks, in turn, in units of n^-1.5: about a swap's change of the cost."""

COOLING: Final = 50.0
"""First temperature over last."""

MADE_BY: Final = "paceline topology search"
"""In the provenance of the files."""


def default_budget(workers: int) -> tuple[int, int]:
    """Moves and restarts that take less than a minute on one core."""
    return min(max(20 * workers**2, 1_000), 50_000), min(max(16_384 // max(workers**2, 1), 1), 64)


@dataclass(frozen=True)
class Request:
    """The target of a search: a ``degree`` of every worker, or None and a number of ``edges`` anywhere.

    The graph is judged with mixing ``weights`` by that rule; ``seed`` decides every random choice. There are
    ``restarts`` walks from graphs of their own, with that many candidate ``moves`` each.
    """

    workers: int
    degree: int | None
    edges: int | None
    weights: str
    seed: int
    moves: int
    restarts: int


@dataclass(frozen=True)
class SearchResult:
    """The best graph of a search.

    Attributes:
        edges: pairs i < j, ascending.
        second, last: the Laplacian's second and last eigenvalue, of a full decomposition.
        modulus: second-largest eigenvalue modulus of the mixing matrix.
        step_s: seconds per step, if there was a step time.
    """

    request: Request
    edges: tuple[tuple[int, int], ...]
    second: float
    last: float
    modulus: float
    step_s: float | None
    tally: Tally


def check(request: Request) -> None:
    """Raise ``InputError`` where no graph can meet a request, with the nearest possible choice."""
    n, k = request.workers, request.degree
    if not 3 <= n <= MAX_SEARCH_WORKERS:
        raise InputError(f"--workers {shorten(n)}: a search needs 3 to {MAX_SEARCH_WORKERS} workers")
    if (k is None) == (request.edges is None):
        raise InputError("give either --degree K (of every worker) or --edges M (in all)")
    if k is not None:
        if not 2 <= k < n:
            near = min(max(k, 2), n - 1)
            near -= n * near % 2
            text = "connects no more than pairs" if 0 <= k < 2 else "no worker has so many neighbours"
            raise InputError(f"--degree {k}: {text} with {n} workers; the nearest possible degree is {near}")
        if n * k % 2:
            other = f"{k - 1} or {k + 1}" if k + 1 < n else f"{k - 1}"
            raise InputError(
                f"--degree {k}: {n} workers of odd degree {k} would make {n * k / 2:g} edges; "
                f"use degree {other}, or {n - 1} or {n + 1} workers"
            )
    elif request.edges is not None and not n - 1 <= request.edges <= n * (n - 1) // 2:
        least, most = n - 1, n * (n - 1) // 2
        text = "too few to connect" if request.edges < least else "more than there are between"
        near = min(max(request.edges, least), most)
        raise InputError(
            f"--edges {request.edges}: {text} {n} workers; the nearest possible number is {near}"
        )
    if request.moves < 1 or request.restarts < 1:
        raise InputError("--moves and --restarts: at least 1 of each")
    if request.moves * request.restarts > MAX_MOVES:
        raise InputError(
            f"--moves {shorten(request.moves)}, each of --restarts {shorten(request.restarts)}: at most "
            f"{MAX_MOVES:,} in all"
        )


def search(request: Request, step_time: StepTime | None = None) -> SearchResult:
    """Find the graph with the fewest steps, or the least time, per e-fold of consensus.

    The result is a function of the request (and the step time) alone: budgets are moves, not seconds.
    Without a ``step_time`` steps are counted. Raises ``InputError`` where no such graph is possible.
    """
    check(request)
    objective = Objective(modulus_for(request.weights, request.degree), step_time)
    tally = Tally()
    best: SearchResult | None = None
    best_cost = math.inf
    # One thread: sums in another order could decide a move differently.
    with threadpool_limits(1):
        for restart in range(request.restarts):
            random = seeds.generator(request.seed, seeds.SHARED, "topology search", restart)
            graph = SearchGraph(request.workers, _start(request, restart, random, step_time is not None))
            hot = FIRST_TEMPERATURES[restart % len(FIRST_TEMPERATURES)] / request.workers**1.5
            fall, rewire = (hot, hot / COOLING), request.degree is None
            edges = anneal(graph, objective, request.moves, fall, random, tally, rewire=rewire)
            values = eigenvalues(request.workers, edges)
            second, last = float(values[1]), float(values[-1])
            cost = objective.log_steps_of(second, last)
            if math.isinf(cost):
                continue
            step_s = None if step_time is None else step_time.checked_s(edges)
            cost += math.log(step_s or 1.0)
            if cost < best_cost:
                modulus = float(objective.modulus(np.array([second]), np.array([last]))[0])
                best_cost = cost
                pairs = tuple(sorted((min(i, j), max(i, j)) for i, j in edges.tolist()))
                best = SearchResult(request, pairs, second, last, modulus, step_s, tally)
    if best is None:
        raise InputError(f"no connected graph found in {tally.moves} moves; raise --moves or --restarts")
    return best


def _start(request: Request, restart: int, random: np.random.Generator, near_first: bool) -> EdgeArray:
    """A random graph; where distances count, the ring lattice first, and at every other restart."""
    seed = int(random.integers(2**31))
    if request.degree is None:
        return random_even(request.workers, request.edges or 0, seed)
    if near_first and restart % 2 == 0:
        return lattice(request.workers, request.degree)
    return random_regular_edges(request.workers, request.degree, seed)


def describe(result: SearchResult, step_time: StepTime | None = None) -> dict[str, Any]:
    """The best graph, its comparisons, and the course of the search; values of JSON.

    Keys: ``lower_bound`` and ``alon_boppana`` are of regular graphs with the best constant weight (see
    ``objective.py``), ``ring_lattice`` is the regular ring lattice of the same degree under the same rule;
    ``step_time_s`` and ``time_per_e_fold_s`` are null where steps were counted.
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
        "restarts": request.restarts,
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
        "moves": request.moves,
        "restarts": request.restarts,
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
