"""Simulated annealing over graphs, one move at a time; a bound rejects most moves.

A move is accepted if the cost afterwards is at most ``cost - temperature * ln(u)`` with u uniform on (0, 1]:
Metropolis' rule, with u drawn first. So a move whose lower bound is beyond that threshold is rejected without
its exact cost, and the walk is the same as if every cost had been computed.

Source: Kirkpatrick, Gelatt and Vecchi, Science 220 (1983).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from ...config.tracking import WATCH
from ..matrix import laplacian
from .objective import Objective
from .search_graph import EdgeArray, Moves, SearchGraph
from .spectrum import MAX_DENSE_NODES, Ends, best_case, ends_of, move_ends

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
