"""Networks given as graphs: routes, shared links, and what is no graph."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.sim.errors import InputError
from paceline.sim.network.forms import read_graph
from paceline.sim.program.worker import Worker
from paceline.sim.scenario.schema import dump, load, parse
from tests.sim.scenario.test_schema import FLAT
from tests.support.factory import NoOptions, make_job, make_scheme, network_of, one_message, run_events

X = torch.zeros(1)


def campus() -> nx.Graph[Any]:
    """Two switches with two hosts each, one trunk between them, and a long way round it."""
    graph: nx.Graph[Any] = nx.Graph()
    graph.add_nodes_from(["s1", "s2", "s3"], kind="switch")
    graph.add_nodes_from(["a", "b", "c", "d"])
    for host, switch in (("a", "s1"), ("b", "s1"), ("c", "s2"), ("d", "s2")):
        graph.add_edge(host, switch, latency="250 ms", bandwidth="64 B/s")
    graph.add_edge("s1", "s2", latency="500 ms", bandwidth="8 B/s")
    graph.add_edge("s1", "s3", latency="500 ms", bandwidth="64 B/s")
    graph.add_edge("s3", "s2", latency="500 ms")
    return graph


def written(graph: nx.Graph[Any], path: Path) -> Path:
    if path.suffix == ".json":
        path.write_text(json.dumps(nx.node_link_data(graph, edges="edges")))
    else:
        nx.write_graphml_xml(graph, path)
    return path


@pytest.mark.parametrize("suffix", [".graphml", ".json"])
def test_messages_take_the_route_of_least_latency(tmp_path: Path, suffix: str) -> None:
    network = network_of(4, graph=str(written(campus(), tmp_path / f"campus{suffix}")))
    route = network.route(0, 2)
    assert [network.links[link].name for link in route.links] == ["a->s1", "s1->s2", "s2->c"]
    assert route.latency_s == 1.0
    assert network.route(0, 1).latency_s == 0.5
    assert run_events(one_message(network, 64)).wall_s == 64 / 64 + 0.5


def test_transfers_share_the_links_of_a_graph() -> None:
    async def program(worker: Worker, options: NoOptions) -> None:
        if worker.rank < 2:
            await worker.send(worker.rank + 2, torch.zeros(1 + worker.rank))
        else:
            await worker.receive(worker.rank - 2, X)

    links = tuple({"source": a, "target": b, **data} for a, b, data in campus().edges(data=True))
    network = network_of(4, graph={"hosts": ("a", "b", "c", "d"), "links": links})
    job = make_job(make_scheme(program), workers=4, network=network, bytes_per_parameter=32)
    # 32 and 64 bytes over 8 bytes/s: 4 each until 8 s; then 32 more at 8: 12 s; and 1 s of latency
    assert run_events(job).wall_s == 13.0


def test_ties_go_to_the_fewest_hops_and_ways_may_differ() -> None:
    links = (
        {"source": "a", "target": "s", "latency": "1 ms"},
        {"source": "s", "target": "b", "latency": "1 ms", "bandwidth": "1 kB/s"},
        {"source": "a", "target": "b", "latency": "2 ms", "bandwidth": "2 kB/s", "one_way": True},
    )
    network = network_of(2, graph={"hosts": ("a", "b"), "links": links})
    assert [network.links[link].name for link in network.route(0, 1).links] == ["a->b"]
    assert [network.links[link].name for link in network.route(1, 0).links] == ["b->s"]
    assert network.route(0, 1).latency_s == network.route(1, 0).latency_s == 0.002


@given(st.integers(2, 6), st.integers(0, 99))
@settings(max_examples=25)
def test_no_detour_is_shorter(hosts: int, seed: int) -> None:
    graph = nx.connected_watts_strogatz_graph(hosts + 2, 2, 0.3, seed=seed)
    names = [f"n{node}" for node in graph]
    links = tuple(
        {"source": names[a], "target": names[b], "latency": f"{1 + (7 * a + 3 * b + seed) % 9} ms"}
        for a, b in graph.edges
    )
    network = network_of(len(names), graph={"hosts": tuple(names), "links": links})
    for a in range(len(names)):
        for b in range(len(names)):
            for via in range(len(names)):
                if len({a, b, via}) == 3:
                    detour_s = network.route(a, via).latency_s + network.route(via, b).latency_s
                    assert network.route(a, b).latency_s <= detour_s + 1e-12


def test_workers_of_a_graph_are_counted_and_its_contents_resolved(tmp_path: Path) -> None:
    written(campus(), tmp_path / "campus.graphml")
    text = FLAT.replace("  workers: 4\n", "").replace(
        "{latency: 5 ms, bandwidth: 100 Mbit/s}", "{graph: campus.graphml}"
    )
    (tmp_path / "s.yaml").write_text(text)
    found = load(tmp_path / "s.yaml")
    assert found.cluster.workers == 4
    (tmp_path / "campus.graphml").unlink()
    assert parse(dump(found)) == found


def _changed(change: Any) -> nx.Graph[Any]:
    graph = campus()
    change(graph)
    return graph


WRONG_GRAPHS: dict[str, Any] = {
    "node 's1' has the kind 'swich'; did you mean 'switch'?": lambda g: g.nodes["s1"].update(kind="swich"),
    "the edge from 's1' to 's2' has no latency": lambda g: g.edges["s1", "s2"].pop("latency"),
}


@pytest.mark.parametrize(("message", "change"), WRONG_GRAPHS.items())
def test_wrong_graphs_are_named(tmp_path: Path, message: str, change: Any) -> None:
    path = written(_changed(change), tmp_path / "g.graphml")
    with pytest.raises(InputError) as caught:
        read_graph(path)
    assert str(caught.value).startswith(f"{path}: {message}")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "<x", "<x/>"])
@pytest.mark.parametrize("suffix", [".graphml", ".json"])
def test_what_is_no_graph_is_refused(tmp_path: Path, text: str, suffix: str) -> None:
    path = tmp_path / f"g{suffix}"
    path.write_text(text)
    with pytest.raises(InputError, match="is no graph that networkx can read"):
        read_graph(path)


def test_parallel_edges_are_refused(tmp_path: Path) -> None:
    graph: nx.MultiGraph[Any] = nx.MultiGraph()
    for _ in range(2):
        graph.add_edge("a", "b", latency="1 ms")
    with pytest.raises(InputError, match="parallel edges"):
        read_graph(written(graph, tmp_path / "g.graphml"))


def test_a_latency_without_a_unit_is_refused_where_it_stands(tmp_path: Path) -> None:
    graph = _changed(lambda g: g.edges["s1", "s2"].update(latency=5.0))
    written(graph, tmp_path / "g.json")
    (tmp_path / "s.yaml").write_text(
        FLAT.replace("{latency: 5 ms, bandwidth: 100 Mbit/s}", "{graph: g.json}")
    )
    with pytest.raises(InputError, match=r"s.yaml:9: cluster.network.graph.*'5.0' has no unit; write"):
        load(tmp_path / "s.yaml")


def test_a_long_chain_of_switches_is_one_route() -> None:
    """Every node of it knows the one before, and not the whole way to itself."""
    count = 20_000
    names = ["a", *(f"s{number}" for number in range(count - 1)), "b"]
    links = tuple(
        {"source": here, "target": there, "latency": "1 ms"} for here, there in itertools.pairwise(names)
    )
    network = network_of(2, graph={"hosts": ("a", "b"), "links": links})
    assert network.route(0, 1).latency_s == pytest.approx(count * 1e-3, rel=1e-12)
