"""Topologies: each graph keeps its promises for every number of workers, and refusals name a way out."""

from __future__ import annotations

import doctest
import importlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from docs.make import topologies
from paceline.sim.config import yaml_file
from paceline.sim.errors import InputError
from paceline.sim.topology import TOPOLOGIES, TopologyEntry, plan
from paceline.sim.topology.matrix import (
    circulant,
    in_degrees,
    off_diagonal,
    row_sums,
    second_modulus,
    support,
)
from paceline.sim.training.scoring import digest
from tests.support.factory import make_job, run_events
from tests.support.lockstep import run_lockstep


def matrices(name: str, workers: int, weights: str = "auto", seed: int = 0) -> list[np.ndarray]:
    found = plan(name, workers, weights, seed)
    return [found.matrix(step).toarray() for step in range(found.period or 20)]


@pytest.mark.parametrize("name", TOPOLOGIES)
@settings(derandomize=True, max_examples=30)
@given(workers=st.integers(2, 40), seed=st.integers(0, 3))
def test_every_graph_is_doubly_stochastic_as_promised_or_refused_with_a_way_out(
    name: str, workers: int, seed: int
) -> None:
    try:
        found = plan(name, workers, seed=seed)
    except InputError as error:
        if "; use " not in str(error):
            raise
        return
    assert found.row_stochastic
    assert found.column_stochastic
    assert found.undirected or TOPOLOGIES[name].directed
    for step in range(found.period or 5):
        w = found.matrix(step)
        assert abs(row_sums(w) - 1).max() < 1e-12
        assert abs(w.toarray().sum(axis=0) - 1).max() < 1e-12
        pattern = found.at(step)
        assert np.array_equal(pattern.matrix, w.toarray())
        assert all(list(row) == sorted(set(row)) and i not in row for i, row in enumerate(pattern.sources))


@pytest.mark.parametrize(
    ("name", "workers", "degrees"),
    [
        ("ring", 2, {1}),
        ("ring", 7, {2}),
        ("path", 5, {1, 2}),
        ("star", 6, {1, 5}),
        ("complete", 6, {5}),
        ("grid", 12, {2, 3, 4}),
        ("torus", 12, {4}),
        ("hypercube", 32, {5}),
        ("ring_lattice", 9, {4}),
        ("static_exponential", 12, {4}),
        ("hierarchical", 9, {2, 4}),
        ("one_peer_exponential", 12, {1}),
        ("p_peer_exponential", 27, {2}),
        ("random_matching", 8, {1}),
        ("random_regular", 12, {4}),
        ("base", 12, {0, 1}),
        ("hyper_hypercube", 8, {1}),
        ("one_peer_hypercube", 8, {1}),
        ("random_matching", 7, {0, 1}),
    ],
)
def test_degrees(name: str, workers: int, degrees: set[int]) -> None:
    found = plan(name, workers)
    assert set(in_degrees(off_diagonal(found.matrix(0))).tolist()) == degrees


def test_graphs_by_hand() -> None:
    assert plan("path", 3).at(0).sources == ((1,), (0, 2), (1,))
    assert plan("static_exponential", 5).at(0).sources[0] == (1, 3, 4)  # 0 - 4, 0 - 2, 0 - 1
    assert plan("one_peer_exponential", 8).at(2).sources[0] == (4,)
    assert plan("hypercube", 8).at(0).sources[5] == (1, 4, 7)
    assert plan("grid", 6).at(0).sources == ((1, 3), (0, 2, 4), (1, 5), (0, 4), (1, 3, 5), (2, 4))
    tall = TopologyEntry.of({"grid": {"rows": 3}})
    assert plan(tall, 6).at(0).sources[0] == (1, 2)
    odd = TopologyEntry.of({"ring_lattice": {"degree": 3}})
    assert plan(odd, 8).at(0).sources[0] == (1, 4, 7)
    sites = TopologyEntry.of({"hierarchical": {"sites": (3, 1, 2)}})
    assert plan(sites, 6).at(0).sources == ((1, 2, 3, 4), (0, 2), (0, 1), (0, 4), (0, 3, 5), (4,))
    peers = TopologyEntry.of({"p_peer_exponential": {"peers": 3}})
    assert [plan(peers, 16).at(k).sources[0] for k in (0, 1)] == [(13, 14, 15), (4, 8, 12)]


def test_weights_by_hand() -> None:
    star = [matrices("star", 3, rule)[0] for rule in ("uniform", "metropolis", "metropolis_local_degree")]
    third = 1 / 3
    assert np.allclose(star[0], [[third, third, third], [0.5, 0.5, 0], [0.5, 0, 0.5]])
    assert np.allclose(star[1], [[third, third, third], [third, 2 * third, 0], [third, 0, 2 * third]])
    assert np.allclose(star[2], [[0, 0.5, 0.5], [0.5, 0.5, 0], [0.5, 0, 0.5]])
    assert np.allclose(matrices("star", 3, "column_stochastic")[0], star[0].T)
    assert np.allclose(matrices("star", 3, "lazy_metropolis")[0], (np.eye(3) + star[1]) / 2)


@pytest.mark.parametrize("name", sorted(set(TOPOLOGIES) - {"matcha"}))
def test_auto_weights_conserve_the_mean_and_are_not_negative(name: str) -> None:
    found = plan(name, 16)
    assert found.column_stochastic
    assert found.least_weight >= 0


@settings(derandomize=True)
@given(workers=st.integers(2, 64))
def test_column_stochastic_weights_conserve_the_sum(workers: int) -> None:
    for name in ("star", "one_peer_exponential", "path"):
        found = plan(name, workers, "column_stochastic")
        assert found.column_stochastic


def test_random_matchings_are_a_function_of_seed_and_step() -> None:
    one, same, other = (
        plan("random_matching", 10),
        plan("random_matching", 10, "uniform"),
        plan("random_matching", 10, seed=1),
    )
    drawn = [one.at(step).sources for step in range(30)]
    assert [same.at(step).sources for step in reversed(range(30))] == drawn[::-1]
    assert len(set(drawn)) > 25
    assert [other.at(step).sources for step in range(30)] != drawn
    assert one.period is None


def test_all_pairs_are_matched_equally_often() -> None:
    found = plan("random_matching", 6, seed=2)
    count = np.zeros((6, 6))
    for step in range(1000):
        count += found.matrix(step).toarray() > 0
    off = count[~np.eye(6, dtype=bool)]
    assert abs(off / 1000 - 1 / 5).max() < 4 * np.sqrt(0.2 * 0.8 / 1000)


REFUSALS = {
    ("hypercube", 12): "hypercube needs a power of two of workers, not 12; use 8 or 16",
    ("torus", 13): "torus needs rows and columns of at least 3, which 13 workers do not make; use 12 or 15",
    ("grid", 7): "grid needs rows and columns of at least 2, which 7 workers do not make; use 6 or 8",
    ("ring", 1): "topology ring needs at least 2 workers, not 1",
    ("rign", 4): "unknown topology 'rign'; did you mean 'ring'?",
    ("de_bruijn", 12): "de_bruijn needs a power of 2 of workers, not 12; use 8 or 16",
    ("one_peer_hypercube", 12): ("one_peer_hypercube needs a power of two of workers, not 12; use 8 or 16"),
    ("hyper_hypercube", 12): (
        "hyper_hypercube with 1 peers needs workers without a prime factor above 2, not 12; "
        "use 8 or 16, or 2 peers"
    ),
    ("matcha", 501): "matcha takes up to 500 workers, not 501; use random_matching",
    ("complete", 100_000): "the graph would have 9999900000 edges, the limit is 20000000; use a lower degree",
}


@pytest.mark.parametrize(("what", "message"), REFUSALS.items())
def test_refusals_name_the_nearest_possible_choice(what: tuple[str, int], message: str) -> None:
    with pytest.raises(InputError) as caught:
        plan(*what)
    assert str(caught.value) == message


ENTRY_REFUSALS: list[tuple[object, int, str]] = [
    (
        {"ring_lattice": {"degree": 3}}, 9,
        "ring_lattice of degree 3 is not possible with 9 workers (degree x workers must be even); "
        "use degree 2 or 4",
    ),
    (
        {"ring_lattice": {"degree": 9}}, 8,
        "ring_lattice of degree 9 is not possible with 8 workers (the degree must be less than the workers); "
        "use degree 6 or 7",
    ),
    ({"torus": {"rows": 5}}, 12, "torus of 12 workers cannot have 5 rows; use 4"),
    (
        {"erdos_renyi": {"probability": 0.01}}, 20,
        "erdos_renyi is not connected in any of 100 draws; use a probability of 0.3",
    ),
    (
        {"random_geometric": {"radius": 0.01}}, 20,
        "random_geometric is not connected in any of 100 draws; use a radius of 0.547",
    ),
    (
        {"random_regular": {"degree": 1}}, 4,
        "random_regular of degree 1 is not possible with 4 workers (the degree must be at least 2); "
        "use degree 2 or 3",
    ),
    ({"small_world": {"degree": 3}}, 8, "small_world needs an even degree, not 3; use 2 or 4"),
    (
        {"matcha": {"graph": "static_exponential"}}, 8,
        "matcha needs an undirected graph, static_exponential is directed; use ring_lattice",
    ),
    (
        {"matcha": {"graph": "random_matching"}}, 8,
        "matcha needs one graph without weights, not random_matching; use ring_lattice",
    ),
    ({"hierarchical": {"sites": (2, 3)}}, 6, "the sites hold 5 workers, not 6; make them agree"),
]  # fmt: skip


@pytest.mark.parametrize(("entry", "workers", "message"), ENTRY_REFUSALS)
def test_impossible_options(entry: object, workers: int, message: str) -> None:
    with pytest.raises(InputError) as caught:
        plan(TopologyEntry.of(entry), workers)
    assert str(caught.value) == message


def test_weights_that_do_not_fit_the_graph() -> None:
    with pytest.raises(InputError, match="metropolis weights need an undirected graph; use uniform"):
        plan("static_exponential", 8, "metropolis")
    with pytest.raises(InputError, match="unknown weights 'metroplis'; did you mean 'metropolis'"):
        plan("ring", 8, "metroplis")
    with pytest.raises(InputError, match="ring has no weights of its own"):
        plan("ring", 8, "given")
    with pytest.raises(InputError, match=r"do not contract: .* use lazy_metropolis_local_degree"):
        plan("ring", 8, "metropolis_local_degree")
    assert plan("ring", 7, "metropolis_local_degree").row_stochastic


def test_entries_are_written_as_they_are_read() -> None:
    for written in ("ring", {"ring_lattice": {"degree": 6}}, {"hierarchical": {"sites": (2, 2)}}):
        entry = TopologyEntry.of(written)
        again = TopologyEntry.of(yaml_file.parse(yaml_file.write(entry.model_dump()), "").value)
        assert again == entry
        assert hash(again) == hash(entry)
    assert str(TopologyEntry.of({"ring_lattice": {"degree": 6}})) == "ring_lattice degree=6"
    for wrong, message in [
        (3, "must be a topology, not 3; write a name, or for example '{ring_lattice: {degree: 4}}'"),
        ({"ring_lattice": {"degree": 4}, "ring": None}, "must be one topology, not 2 keys"),
        ("g.json", "unknown topology 'g.json'; for a graph in a file write {file: g.json}"),
        ({"file": ""}, "must be the name of a file, not the text ''"),
        ({"ring_lattice": 4}, "its options must be a mapping of keys to values, not 4"),
        ({"ring_lattice": {"degre": 4}}, "ring_lattice.degre: unknown key; did you mean 'degree'?"),
        ({"ring_lattice": {"degree": 0}}, "ring_lattice.degree: must be at least 1, not 0"),
    ]:
        with pytest.raises(InputError) as caught:
            TopologyEntry.of(wrong)
        assert message in str(caught.value)


def test_the_example_of_a_plan() -> None:
    results = doctest.testmod(importlib.import_module("paceline.sim.topology.plan"))
    assert results.failed == 0
    assert results.attempted >= 5


def test_patterns_repeat_after_a_period() -> None:
    sequence = plan("one_peer_exponential", 9)
    assert sequence.period == 4
    assert sequence.at(5) is sequence.at(1)
    assert plan("random_matching", 4).period is None


def halves(workers: int, offsets: Iterable[int]) -> Iterator[NDArray[np.float64]]:
    """Products of push-sum's matrices, step by step: half stays, half goes to the worker at the offset."""
    product = np.eye(workers)
    for offset in offsets:
        product = (product + circulant(workers, [offset]).toarray() @ product) / 2
        yield product


def test_which_offsets_take_turns_matters() -> None:
    """SGP's fact sheet, 5: powers of two are exact after log2 n steps, as many neighbours are not."""
    *_, powers = halves(32, [1, 2, 4, 8, 16])
    *_, neighbours = halves(32, [1, 2, 3, 4, 5])
    assert np.linalg.svd(powers, compute_uv=False)[1] == pytest.approx(0, abs=1e-12)
    assert np.linalg.svd(neighbours, compute_uv=False)[1] == pytest.approx(0.7610, abs=5e-5)


@pytest.mark.parametrize("tau", [2, 3, 4, 5])
def test_both_directions_in_turn_are_exact_later(tau: int) -> None:
    """SGP's fact sheet, 6: the order +1, -1, +2, -2, ... is exact after 2 tau - 1 steps, no sooner."""
    n = 2**tau
    exact = [
        np.allclose(product, 1 / n, atol=1e-12)
        for product in halves(n, [sign * 2**k for k in range(tau) for sign in (1, -1)])
    ]
    assert exact.index(True) + 1 == 2 * tau - 1


# --- a user's own -----------------------------------------------------------------------------------

MODULE = """
import networkx as nx
def wheel(workers): return nx.wheel_graph(workers)
def lone(workers): return nx.empty_graph(workers)
def small(workers): return nx.path_graph(3)
def text(workers): return "ring"
def broken(workers): raise RuntimeError("out of spokes")
def quits(workers): raise SystemExit(3)
number = 3
"""


def test_a_function_of_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "graphs_of_mine.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    found = plan("graphs_of_mine:wheel", 5)
    assert found.at(0).sources == ((1, 2, 3, 4), (0, 2, 4), (0, 1, 3), (0, 2, 4), (0, 1, 3))
    assert found.weights == "metropolis"
    for name, message in {
        "wheeel": "'graphs_of_mine' has no 'wheeel'; did you mean 'wheel'?",
        "lone": "is not connected: workers 0 and 1 never hear of each other",
        "small": "'graphs_of_mine:small' returned a graph of 3 nodes, not 5",
        "text": (
            "'graphs_of_mine:text' with workers=5 returned the text 'ring'; "
            "it must take (workers) and return a networkx graph"
        ),
        "broken": (
            "'graphs_of_mine:broken' with workers=5 raised RuntimeError: out of spokes "
            "(graphs_of_mine.py, line 7)"
        ),
        "quits": "'graphs_of_mine:quits' with workers=5 raised SystemExit: 3 (graphs_of_mine.py, line 8)",
        "number": (
            "'graphs_of_mine:number' is 3; it must be a function, take (workers) and return a networkx graph"
        ),
    }.items():
        with pytest.raises(InputError) as caught:
            plan(f"graphs_of_mine:{name}", 5)
        assert message in str(caught.value)


def test_a_script_that_ends_python_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_script.py").write_text("import sys\nsys.exit('usage: a_script FILE')\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        plan("a_script:graph", 5)
    assert str(caught.value) == (
        "importing 'a_script' raised SystemExit: usage: a_script FILE (a_script.py, line 2)"
    )


# --- the fastest weights, the optimum ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "workers"),
    [("ring", 9), ("path", 8), ("star", 7), ("grid", 9), ("hierarchical", 12), ("erdos_renyi", 12),
     ("small_world", 12), ("hypercube", 8), ("random_geometric", 11), ("torus", 9)],
)  # fmt: skip
def test_no_rule_beats_the_fastest_weights(name: str, workers: int) -> None:
    pytest.importorskip("cvxpy", reason="the fastest weights need cvxpy (the extra fdla)")
    best = plan(name, workers, "fdla", 4)
    assert best.symmetric
    assert best.row_stochastic
    assert best.at(0).sources == plan(name, workers, "metropolis", 4).at(0).sources
    fastest = second_modulus(best.matrix(0))
    for rule in ("metropolis", "laplacian", "lazy_metropolis", "lazy_laplacian"):
        assert fastest <= second_modulus(plan(name, workers, rule, 4).matrix(0)) + 1e-12
    # Nor do small steps to either side improve it: it is a minimum.
    graph = support(best.matrix(0)).toarray()
    random = np.random.default_rng(0)
    for _ in range(30):
        move = random.standard_normal(graph.shape) * graph
        move = 1e-3 * (move + move.T)
        moved = best.matrix(0).toarray() + move - np.diag(move.sum(axis=1))
        assert abs(np.linalg.eigvalsh(moved - 1 / workers)).max() >= fastest - 1e-8


def test_the_fastest_weights_name_their_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cvxpy", None)
    with pytest.raises(InputError, match=r"need cvxpy: pip install 'paceline\[fdla\]', or use laplacian"):
        plan("ring", 6, "fdla", seed=1)
    with pytest.raises(InputError, match="up to 100 workers, not 101; use laplacian"):
        plan("ring", 101, "fdla")


def test_rules_that_need_a_connected_graph_at_every_step() -> None:
    for rule in ("laplacian", "fdla"):
        with pytest.raises(InputError, match="need a connected graph at every step; use uniform"):
            plan("random_matching", 6, rule)


# --- the page ---------------------------------------------------------------------------------------


def test_the_tables_of_the_page_are_up_to_date() -> None:
    page = topologies.PAGE.read_text(encoding="utf-8")
    assert topologies.renewed(page) == page, "run python -m docs.make.topologies"


def test_every_topology_and_rule_has_a_source() -> None:
    for topology in TOPOLOGIES.values():
        assert "Source: " in (topology.build.__doc__ or ""), topology.name


# --- as schemes use them ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topology", "weights"),
    [
        ("simple_base", "auto"),
        ("grid", "laplacian"),
        ({"matcha": {"graph": "ring", "budget": 0.6}}, "auto"),
        ({"random_regular": {"degree": 3}}, "lazy_metropolis"),
    ],
)
def test_gossip_is_the_same_in_lockstep_and_message_by_message(topology: object, weights: str) -> None:
    job = make_job(
        "gossip", {"topology": topology, "weights": weights}, task="quadratic", workers=6, seed=3,
        max_iterations=70, cv=0.3, latency_s=0.01, bandwidth_bytes_per_s=1e4,
    )  # fmt: skip
    assert digest(list(run_lockstep(job).unbind())) == digest(run_events(job).finals)


def test_large_graphs_are_judged_without_eigenvalues() -> None:
    for name in ("static_exponential", "one_peer_exponential", "torus", "base"):
        found = plan(name, 20_000)
        assert found.row_stochastic
        assert found.column_stochastic
