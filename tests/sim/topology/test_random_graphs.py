"""Random topologies: functions of the seed, with the distribution that they promise."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from paceline.sim.errors import InputError
from paceline.sim.topology import TopologyEntry, plan
from paceline.sim.topology.graphs.named import Degree
from paceline.sim.topology.graphs.random import Probability, erdos_renyi, random_regular
from paceline.sim.topology.matrix import in_degrees, is_symmetric
from tests.sim.topology.test_topology import matrices

DRAWN = ["random_regular", "erdos_renyi", "random_geometric", "small_world", "matcha"]


@pytest.mark.parametrize("name", DRAWN)
def test_random_graphs_are_a_function_of_the_seed(name: str) -> None:
    first, again, other = (matrices(name, 14, seed=seed) for seed in (5, 5, 6))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize(
    ("workers", "degree"), [(3, 2), (8, 3), (12, 11), (12, 10), (40, 39), (41, 20), (300, 7)]
)
def test_everybody_has_as_many_neighbours_as_was_asked_for(workers: int, degree: int) -> None:
    for seed in range(3):
        graph = random_regular(workers, Degree(degree=degree), seed).at(0)
        assert set(in_degrees(graph).tolist()) == {degree}
        assert is_symmetric(graph)
        assert graph.diagonal().max() == 0.0


def test_every_edge_is_as_likely_in_a_random_regular_graph() -> None:
    seeds = 600
    drawn = [random_regular(8, Degree(degree=3), seed).at(0).toarray() for seed in range(seeds)]
    share = np.sum(drawn, axis=0)[np.triu_indices(8, 1)] / seeds
    assert abs(share - 3 / 7).max() < 4.5 * (3 / 7 * 4 / 7 / seeds) ** 0.5


@pytest.mark.parametrize(("probability", "complete"), [(0.5, 1 / 4), (0.7, 7 / 16), (1.0, 1.0)])
def test_independent_edges_given_that_the_graph_is_connected(probability: float, complete: float) -> None:
    # p^3 of p^3 + 3 p^2 (1 - p), and the three paths share the rest evenly.
    seeds, found = 800, Counter[bytes]()
    for seed in range(seeds):
        found[erdos_renyi(3, Probability(probability=probability), seed).at(0).toarray().tobytes()] += 1
    triangle = (np.ones((3, 3)) - np.eye(3)).tobytes()
    expected = {key: (complete if key == triangle else (1 - complete) / 3) * seeds for key in found}
    assert len(found) == (1 if complete == 1.0 else 4)
    assert sum((found[key] - wanted) ** 2 / wanted for key, wanted in expected.items()) < 16.3  # p = 0.001


def test_the_number_of_edges_is_that_of_independent_draws() -> None:
    n = 3000
    edges = np.array([erdos_renyi(n, Probability(), seed).at(0).nnz / 2 for seed in range(10)])
    chance = 2 * np.log(n) / n
    mean, variance = n * (n - 1) / 2 * chance, n * (n - 1) / 2 * chance * (1 - chance)
    assert abs(edges.mean() - mean) < 4 * (variance / len(edges)) ** 0.5


def test_an_edge_list_of_a_regular_graph_that_falls_apart_is_drawn_again() -> None:
    entry = TopologyEntry.of({"random_regular": {"degree": 2}})
    for seed in range(20):  # one in two such graphs of 6 workers is two triangles
        assert plan(entry, 6, seed=seed).row_stochastic


def test_a_regular_graph_that_always_falls_apart_is_refused_with_a_degree_that_is_possible(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("paceline.sim.topology.graphs.random.TRIES", 0)
    for workers, degree in ((8, 3), (9, 4)):
        with pytest.raises(InputError, match=f"in any of 0 draws; use degree {degree}"):
            random_regular(workers, Degree(degree=2), 0)
