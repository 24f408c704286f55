"""Asynchronous decentralised SGD: who is active, who is passive, and which graphs have no such kinds."""

from __future__ import annotations

from pathlib import Path

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.sim.errors import InputError
from paceline.sim.schemes.ad_psgd import AdPsgdOptions, check, passive_neighbours, topology_for
from paceline.sim.topology import TopologyEntry, plan
from paceline.sim.topology.graphs.graph_files import write_graph
from paceline.sim.topology.matrix import from_networkx
from tests.support.factory import make_job, run_events


def written(graph: nx.Graph[int], path: Path) -> TopologyEntry:
    write_graph(path, from_networkx(graph))
    return TopologyEntry.of({"file": str(path)})


def test_kinds_by_hand() -> None:
    assert passive_neighbours(TopologyEntry.of("ring"), 4) == ((1, 3), None, (1, 3), None)
    assert passive_neighbours(TopologyEntry.of("path"), 3) == ((1,), None, (1,))
    assert passive_neighbours(TopologyEntry.of("star"), 4) == ((1, 2, 3), None, None, None)
    # Ranks 0 and 3 are at the ends of a face's diagonal, 5 and 6 at those of the opposite face's other one.
    cube = passive_neighbours(TopologyEntry.of("hypercube"), 8)
    assert [rank for rank, row in enumerate(cube) if row] == [0, 3, 5, 6]


@pytest.mark.parametrize("workers", range(2, 10))
def test_by_default_there_is_a_graph_for_every_number_of_workers(workers: int) -> None:
    options = AdPsgdOptions()
    check(options, workers)
    topology = topology_for(options, workers)
    assert topology.name == ("path" if workers % 2 else "ring")
    rows = passive_neighbours(topology, workers)
    assert [row is not None for row in rows] == [rank % 2 == 0 for rank in range(workers)]


def test_three_workers_run_by_default() -> None:
    job = make_job("ad_psgd", {}, task="quadratic", workers=3, max_iterations=4)
    swaps = [event for event in run_events(job).events if event.operation == "send" and event.task == 0]
    assert {(event.worker, event.peer) for event in swaps} == {(0, 1), (2, 1)}


def test_a_topology_of_the_scenario_is_checked_as_it_is() -> None:
    with pytest.raises(InputError, match="use path, or ring with 4 workers"):
        check(AdPsgdOptions(topology=TopologyEntry.of("ring")), 3)


def test_ranks_may_be_in_any_order_on_the_ring(tmp_path: Path) -> None:
    graph = nx.empty_graph(4)
    graph.add_edges_from([(0, 2), (2, 1), (1, 3), (3, 0)])
    entry = written(graph, tmp_path / "g.json")
    assert passive_neighbours(entry, 4) == ((2, 3), (2, 3), None, None)
    job = make_job("ad_psgd", {"topology": entry}, task="quadratic", workers=4, max_iterations=5)
    swaps = [event for event in run_events(job).events if event.operation == "send" and event.task == 0]
    assert {event.worker for event in swaps} == {0, 1}
    assert {event.peer for event in swaps} == {2, 3}


@given(workers=st.integers(2, 30), seed=st.integers(0, 999))
@settings(max_examples=30, derandomize=True)
def test_every_edge_of_a_tree_joins_an_active_worker_to_a_passive_one(
    workers: int, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tree = nx.random_labeled_tree(workers, seed=seed)
    rows = passive_neighbours(written(tree, tmp_path_factory.mktemp("tree") / "g.json"), workers)
    assert rows[0] is not None
    for rank, row in enumerate(rows):
        assert row is None or set(row) == set(tree[rank])
        assert all((row is None) != (rows[other] is None) for other in tree[rank])


@pytest.mark.parametrize(
    ("written_as", "workers", "message"),
    [
        ("ring", 5, "workers 2 and 3 would be of one kind, since a cycle of odd length goes through them: "
         "use path, or ring with 6 workers"),
        ("complete", 4, "workers 1 and 2 would be of one kind, since .*: use ring$"),
        ({"ring_lattice": {"degree": 4}}, 8, "of one kind"),
        ("torus", 12, "of one kind"),
        ("static_exponential", 8, "ad_psgd needs an undirected topology, static_exponential is directed"),
        ("one_peer_hypercube", 8, "needs one graph for all steps, one_peer_hypercube changes: use ring"),
    ],
)  # fmt: skip
def test_what_has_no_two_kinds_is_refused(written_as: object, workers: int, message: str) -> None:
    entry = TopologyEntry.of(written_as)
    assert plan(entry, workers).workers == workers
    with pytest.raises(InputError, match=message):
        passive_neighbours(entry, workers)
