"""Topologies in files: what is written is read again, and bad files are refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import networkx as nx
import pytest

from paceline.sim.errors import InputError
from paceline.sim.scenario.schema import Scenario, dump, load, parse
from paceline.sim.schemes.gossip import GossipOptions
from paceline.sim.topology import Plan, TopologyEntry, plan
from paceline.sim.topology.graphs.graph_files import write_graph
from paceline.sim.topology.matrix import support


def in_file(path: Path, workers: int) -> Plan:
    return plan(TopologyEntry.of({"file": str(path)}), workers)


@pytest.mark.parametrize(
    "entry", ["ring", "star", "static_exponential", {"ring_lattice": {"degree": 3}}, {"grid": {"rows": 2}}]
)
def test_a_written_graph_is_read_again(entry: object, tmp_path: Path) -> None:
    graph = plan(TopologyEntry.of(entry), 8)
    write_graph(tmp_path / "g.json", support(graph.matrix(0)), provenance={"made by": "a test"})
    again = in_file(tmp_path / "g.json", 8)
    assert again.at(0).sources == graph.at(0).sources
    assert again.weights == graph.weights
    content = json.loads((tmp_path / "g.json").read_text())
    content["weights"] = [float(graph.matrix(0)[v, u]) for u, v in content["edges"]]
    (tmp_path / "w.json").write_text(json.dumps(content))
    again = in_file(tmp_path / "w.json", 8)
    assert again.at(0).sources == graph.at(0).sources
    assert again.weights == "given"
    assert abs(again.matrix(0) - graph.matrix(0)).max() < 1e-15
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["g.json", "w.json"]


def test_graphml_and_edge_lists(tmp_path: Path) -> None:
    graph = nx.cycle_graph(6)
    nx.write_graphml(graph, tmp_path / "g.graphml")
    nx.write_edgelist(graph, tmp_path / "g.edgelist")
    (tmp_path / "g.csv").write_text("# u, v\n\n0,1\n1,2\n2,3\n3,4\n4,5\n5,0\n")
    wanted = plan("ring", 6).at(0).sources
    for name in ("g.graphml", "g.edgelist", "g.csv"):
        assert in_file(tmp_path / name, 6).at(0).sources == wanted


def test_named_nodes_keep_their_order(tmp_path: Path) -> None:
    graph: nx.Graph[str] = nx.Graph([("tokyo", "lyon"), ("lyon", "rio")])
    nx.write_graphml(graph, tmp_path / "g.graphml")
    assert in_file(tmp_path / "g.graphml", 3).at(0).sources == ((1,), (0, 2), (1,))


def test_negative_weights_are_legal_and_reported(tmp_path: Path) -> None:
    text = '{"workers": 3, "edges": [[0, 1], [1, 2], [0, 2]], "weights": [0.6, 0.6, 0.6]}'
    (tmp_path / "g.json").write_text(text)
    found = in_file(tmp_path / "g.json", 3)
    assert found.least_weight == pytest.approx(-0.2)

    scenario = SCENARIO.replace("workers: 4", "workers: 3").replace("gossip", "sgp")
    (tmp_path / "s.yaml").write_text(scenario.replace("FILE", "{file: g.json}, weights: given"))
    with pytest.raises(InputError, match=r"weights go down to -0\.2: leave its own weights out"):
        load(tmp_path / "s.yaml")
    (tmp_path / "s.yaml").write_text(
        scenario.replace("workers: 3", "workers: 16").replace("FILE", "ring_lattice, weights: laplacian")
    )
    with pytest.raises(InputError, match=r"weights go down to -0\.156: use weights: column_stochastic"):
        load(tmp_path / "s.yaml")


BAD_FILES = {
    '{"workers": 3, "edges": [[0, 1]': "g.json: not valid JSON: EOF while parsing a list at line 1 column 31",
    '{"workers": 3, "edges": [[0, 1]], "edges": []}': "g.json: not valid JSON: has the key 'edges' twice",
    "[1]": "g.json: must be a mapping of keys to values, not a list",
    '{"workers": 3}': "g.json: edges: is missing",
    '{"workers": 3, "edges": [[0, 1], [1, 3]]}': "g.json: edges.1: there is no worker 3; ranks go to 2",
    '{"workers": 3, "edges": [[0, 1], [1, 1]]}': "g.json: edges.1: joins worker 1 with itself; leave it out",
    '{"workers": 3, "edges": [[0, 1], [1, 0]]}': "g.json: edges.1: is edges.0 again; leave it out",
    '{"workers": 3, "edges": [[0, 1], [1, 2]], "weights": [1]}': (
        "g.json: weights: 1 weights for 2 edges; give one for each, or none"
    ),
    '{"workers": 3, "edges": [[0, 1]], "wieghts": []}': (
        "g.json: wieghts: unknown key; did you mean 'weights'?"
    ),
    '{"workers": 4, "edges": [[0, 1], [1, 2], [2, 3]]}': (
        "g.json holds a graph of 4 workers, not 3; make them agree"
    ),
    '{"workers": 3, "edges": [[0, 1]]}': (
        "the graph of topology g.json is not connected: workers 0 and 2 never hear of each other (2 parts); "
        "add edges, or use another topology"
    ),
    '{"workers": 3, "edges": [[0, 1], [1, 2], [0, 2]], "weights": [0.7, 0.7, 0.7]}': (
        "the weights of topology g.json do not contract: the second-largest eigenvalue modulus is 1.1, not "
        "below 1; make the weights smaller"
    ),
    '{"workers": 3, "directed": true, "edges": [[0, 1], [1, 2], [2, 0]], "weights": [NaN, 1, 1]}': (
        "g.json: weights.0: must be a finite number, not nan"
    ),
    '{"workers": 3, "directed": true, "edges": [[0, 1], [1, 2], [2, 0]], "weights": [1, 1, 1]}': (
        "given weights on topology g.json do not contract: workers only swap their values, since nobody "
        "keeps a share; give everybody a weight of its own"
    ),
}


@pytest.mark.parametrize(("text", "message"), BAD_FILES.items())
def test_a_bad_graph_file_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "g.json").write_text(text)
    with pytest.raises(InputError) as caught:
        in_file(tmp_path / "g.json", 3)
    assert str(caught.value).replace(f"{tmp_path}/", "") == message


def test_bad_edge_lists_and_graphml(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("0 1\n1 x\n")
    with pytest.raises(InputError, match=r"a\.txt:2: is not two ranks; write for example '0 1'"):
        in_file(tmp_path / "a.txt", 2)
    (tmp_path / "a.txt").write_text("0 1\n1 2\n")
    with pytest.raises(InputError, match=r"a\.txt holds a graph of 3 workers, not 2; make them agree"):
        in_file(tmp_path / "a.txt", 2)
    (tmp_path / "a.txt").write_text("0 1\n1 -2\n")
    with pytest.raises(InputError, match=r"a\.txt:2: -2 is no rank; ranks go from 0 to"):
        in_file(tmp_path / "a.txt", 2)
    (tmp_path / "a.txt").write_text("# nothing\n")
    with pytest.raises(InputError, match=r"a\.txt: holds no edges; write for example '0 1'"):
        in_file(tmp_path / "a.txt", 2)
    (tmp_path / "a.graphml").write_text("<graphml>")
    with pytest.raises(InputError, match=r"a\.graphml: not valid GraphML"):
        in_file(tmp_path / "a.graphml", 2)
    with pytest.raises(InputError, match=r"b\.graphml: there is no such file; did you mean 'a\.graphml'"):
        in_file(tmp_path / "b.graphml", 2)


SCENARIO = """\
name: held
workload: {task: quadratic, batch_size: 1, optimizer: {lr: 0.1}}
cluster: {workers: 4, compute: {time: 1 s}, network: {latency: 0 s}}
schemes: [{gossip: {topology: FILE}}]
stop: {max_iterations: 3}
"""


def held(scenario: Scenario) -> Plan:
    options = scenario.schemes[0].options
    assert isinstance(options, GossipOptions)
    return plan(options.topology, 4)


@pytest.mark.parametrize("weights", ["", ', "weights": [0.3, 0.1, 0.3, 0.1]'])
def test_a_file_stands_beside_the_scenario_and_is_read_once(
    weights: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").mkdir()
    graph = tmp_path / "there" / "g.json"
    graph.write_text(f'{{"workers": 4, "edges": [[0, 2], [2, 1], [1, 3], [3, 0]]{weights}}}')
    (tmp_path / "there" / "s.yaml").write_text(SCENARIO.replace("FILE", "{file: g.json}"))
    monkeypatch.chdir(tmp_path)
    first = load(Path("there/s.yaml"))
    graph.unlink()
    again = parse(dump(first))
    assert again == first
    assert str(again.schemes[0].options.topology) == "file g.json"  # type: ignore[attr-defined]
    assert held(again).at(0).sources == ((2, 3), (2, 3), (0, 1), (0, 1))
    assert abs(held(again).matrix(0) - held(first).matrix(0)).max() == 0.0
    assert held(again).weights == ("given" if weights else "uniform")
    with pytest.raises(
        InputError, match=r"s\.yaml:4: schemes\.0\.gossip\.topology\.file: there/g\.json: there is"
    ):
        load(Path("there/s.yaml"))


def test_labels_name_the_file_not_what_is_in_it(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text("0 1\n1 2\n2 3\n3 0\n")
    entries = "{file: a.csv}}}, {gossip: {topology: {file: b.csv}"
    (tmp_path / "s.yaml").write_text(SCENARIO.replace("FILE", entries))
    first, second = load(tmp_path / "s.yaml").schemes
    assert (first.label, second.label) == ("gossip topology.file=a.csv", "gossip topology.file=b.csv")


def test_a_scenario_takes_no_endless_graph_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "g.csv").write_text("".join(f"{i},{i + 1}\n" for i in range(20_001)))
    assert in_file(tmp_path / "g.csv", 20_002).workers == 20_002
    (tmp_path / "s.yaml").write_text(SCENARIO.replace("FILE", "{file: g.csv}"))
    with pytest.raises(InputError, match=r"g\.csv: has 20001 edges, the limit in a scenario is 20000; write"):
        load(tmp_path / "s.yaml")


@pytest.mark.parametrize(
    ("kept", "message"),
    [
        (
            "{workers: 4, edges: 0-1 1 2}",
            "graph.edges: must be pairs of ranks such as '0-1 1-2', not the text",
        ),
        ("{workers: 4, edges: 0-1 1-4}", "graph.edges: there is no worker 4; ranks go to 3"),
        ("{workers: 4, edges: 0-1, weights: [1.0, 1.0]}", "graph.weights: 2 weights for 1 edges; give one"),
        ("{workers: 4}", "graph.edges: is missing"),
    ],
)
def test_a_graph_that_is_written_into_a_scenario_is_checked(kept: str, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        parse(SCENARIO.replace("FILE", f"{{file: {{path: g.json, graph: {kept}}}}}"))


def test_matcha_decomposes_no_graph_that_falls_apart(tmp_path: Path) -> None:
    (tmp_path / "g.csv").write_text("0 1\n2 3\n")
    entry = TopologyEntry.of({"matcha": {"graph": {"file": str(tmp_path / "g.csv")}}})
    with pytest.raises(InputError, match="the graph that matcha decomposes is not connected; add edges"):
        plan(entry, 4)
