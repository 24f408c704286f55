"""Closed forms of mixing matrices, and the laws that tie them together."""

from __future__ import annotations

import math

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.sim.errors import InputError
from paceline.sim.topology import TopologyEntry, matcha, plan
from paceline.sim.topology import matrix as spectra
from paceline.sim.topology.matrix import edges_of, from_networkx, in_degrees, laplacian, support
from paceline.sim.topology.plan import RULES, lazy, metropolis

laws = settings(derandomize=True, max_examples=40)
SIZES = st.integers(3, 1200)


def entry(name: str, **options: object) -> TopologyEntry:
    return TopologyEntry.of({name: options})


def modulus(topology: TopologyEntry | str, workers: int, rule: str = "auto") -> float:
    return spectra.second_modulus(plan(topology, workers, rule).matrix(0))


def close(value: float, wanted: float) -> bool:
    return abs(value - wanted) < 1e-10


# --- second-largest eigenvalue moduli ---------------------------------------------------------------


@laws
@given(SIZES)
def test_ring(n: int) -> None:
    c = math.cos(2 * math.pi / n)
    assert close(
        modulus("ring", n), max(1 / 3 + 2 / 3 * c, -1 / 3 - 2 / 3 * math.cos(2 * math.pi * (n // 2) / n))
    )
    if n % 2 == 0:
        assert close(modulus("ring", n, "laplacian"), (1 + c) / (3 - c))


@settings(laws, max_examples=5)
@given(SIZES)
def test_path_star_complete(n: int) -> None:
    assert close(modulus("path", n), 1 / 3 + 2 / 3 * math.cos(math.pi / n))
    assert close(modulus("path", n, "laplacian"), math.cos(math.pi / n))
    assert close(modulus("star", n), 1 - 1 / n)
    assert close(modulus("star", n, "laplacian"), (n - 1) / (n + 1))
    if n < 400:
        assert close(modulus("complete", n), 0)
        assert close(modulus("complete", n, "laplacian"), 0)


@pytest.mark.parametrize("digits", range(1, 13))
def test_hypercube_and_static_exponential(digits: int) -> None:
    wanted = (digits - 1) / (digits + 1)
    for rule in ("uniform", "metropolis", "laplacian"):
        assert close(modulus("hypercube", 2**digits, rule), wanted)
    assert close(modulus("static_exponential", 2**digits), wanted)


@laws
@given(st.integers(1, 700))
def test_static_exponential_of_even_size(half: int) -> None:
    n = 2 * half
    tau = math.ceil(math.log2(n))
    assert close(modulus("static_exponential", n), (tau - 1) / (tau + 1))


@laws
@given(st.integers(1, 700))
def test_static_exponential_of_odd_size_has_a_larger_gap(half: int) -> None:
    n = 2 * half + 1
    tau = math.ceil(math.log2(n))
    assert modulus("static_exponential", n) < (tau - 1) / (tau + 1) - 1e-12


@pytest.mark.parametrize(
    ("n", "wanted"),
    [
        (3, 0), (5, 1 / 4), (7, 0.353553), (9, 0.441787), (15, 0.489898), (17, 0.547621), (31, 0.562261),
        (33, 0.607800), (63, 0.610869), (100, 3 / 4), (256, 7 / 9),
    ],
)  # fmt: skip
def test_static_exponential_by_value(n: int, wanted: float) -> None:
    assert modulus("static_exponential", n) == pytest.approx(wanted, abs=5e-7)


@pytest.mark.parametrize("k", [3, 4, 5, 6, 8, 15, 30, 33])
def test_square_torus(k: int) -> None:
    assert close(modulus("torus", k * k), (3 + 2 * math.cos(2 * math.pi / k)) / 5)


@laws
@given(st.integers(3, 600), st.integers(1, 6))
def test_ring_lattice(n: int, half: int) -> None:
    if 2 * half >= n:
        return
    graph = support(plan(entry("ring_lattice", degree=2 * half), n).matrix(0))
    k = np.arange(1, n)
    cosines = np.cos(2 * np.pi * np.outer(np.arange(1, half + 1), k) / n).sum(axis=0)
    values = 2 * half - 2 * cosines
    second, last = spectra.laplacian_ends(graph)
    assert close(second, values.min())
    assert close(last, values.max())
    wanted = (last - second) / (last + second)
    assert close(modulus(entry("ring_lattice", degree=2 * half), n, "laplacian"), wanted)


GRAPHS = {
    "petersen": (nx.petersen_graph(), 3 / 7, 0.5),
    "heawood": (nx.heawood_graph(), 0.581906, 0.603553),
    "wagner": (nx.circulant_graph(8, [1, 4]), 0.460496, 0.5),
    "K44": (nx.complete_bipartite_graph(4, 4), 1 / 3, 0.6),
    "torus 4x4": (nx.grid_2d_graph(4, 4, periodic=True), 0.6, 0.6),
    "torus 5x5": (nx.grid_2d_graph(5, 5, periodic=True), 0.679285, 0.723607),
    "grid 4x4": (nx.grid_2d_graph(4, 4), 0.841983, 0.868641),
    "grid 2x4": (nx.grid_2d_graph(2, 4), None, 0.853553),
    "grid 3x3": (nx.grid_2d_graph(3, 3), None, 0.767423),
    "grid 4x8": (nx.grid_2d_graph(4, 8), None, 0.965778),
    "grid 8x8": (nx.grid_2d_graph(8, 8), None, 0.967705),
    "lattice 16": (nx.circulant_graph(16, [1, 2]), 0.786624, 0.852395),
    "lattice 32": (nx.circulant_graph(32, [1, 2]), 0.940681, 0.961866),
    "path 8": (nx.path_graph(8), 0.923880, 0.949253),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_named_graphs(name: str) -> None:
    graph, of_laplacian, of_metropolis = GRAPHS[name]
    found = from_networkx(graph)
    assert spectra.second_modulus(metropolis(found)) == pytest.approx(of_metropolis, abs=5e-7)
    if of_laplacian is not None:
        assert spectra.second_modulus(RULES["laplacian"](found)) == pytest.approx(of_laplacian, abs=5e-7)


@laws
@given(st.integers(4, 40), st.integers(0, 1000))
def test_relabelling_changes_nothing(n: int, seed: int) -> None:
    graph = from_networkx(nx.connected_watts_strogatz_graph(n, 3, 0.5, seed=seed))
    order = np.random.default_rng(seed).permutation(n)
    other = graph[order][:, order]
    for rule in (metropolis, RULES["laplacian"], lazy(metropolis)):
        assert close(spectra.second_modulus(rule(graph)), spectra.second_modulus(rule(other)))


@laws
@given(st.integers(4, 40), st.integers(0, 1000))
def test_the_best_constant_is_never_beaten_by_metropolis_on_a_regular_graph(n: int, seed: int) -> None:
    graph = from_networkx(nx.random_regular_graph(3 if n % 2 == 0 else 4, max(n, 6), seed=seed))
    try:
        best = spectra.second_modulus(RULES["laplacian"](graph))
    except InputError:
        return  # not connected
    assert best <= spectra.second_modulus(metropolis(graph)) + 1e-12


def test_lazy_weights_halve_the_way_to_one() -> None:
    w = plan("torus", 25).matrix(0)
    lazy = plan("torus", 25, "lazy_uniform").matrix(0)
    wanted = (1 + spectra.spectrum(w).real) / 2
    assert np.allclose(np.sort(spectra.spectrum(lazy).real), np.sort(wanted), atol=1e-12)


def test_negative_own_weights_of_the_best_constant() -> None:
    for name, n, wanted in [("ring", 16, 0.0366), ("ring_lattice", 16, -0.156), ("ring_lattice", 32, -0.244)]:
        found = plan(name, n, "laplacian")
        assert found.matrix(0).diagonal()[0] == pytest.approx(wanted, abs=6e-4)
        assert found.column_stochastic


# --- sequences --------------------------------------------------------------------------------------


@pytest.mark.parametrize("digits", range(1, 9))
def test_one_peer_exponential_is_exact_from_any_phase(digits: int) -> None:
    n = 2**digits
    found = plan("one_peer_exponential", n)
    for phase in range(digits):
        total = np.eye(n)
        for step in range(phase, phase + digits):
            total = found.matrix(step).toarray() @ total
        assert (total == 1.0 / n).all()
    assert spectra.product_norm(found.first) == 0.0


@pytest.mark.parametrize(("n", "wanted"), [(6, 0.216506), (12, 0.209129)])
def test_one_peer_exponential_of_other_sizes_is_not(n: int, wanted: float) -> None:
    assert spectra.product_norm(plan("one_peer_exponential", n).first) == pytest.approx(wanted, abs=5e-7)


@laws
@given(st.integers(2, 900))
def test_one_step_of_one_peer_exponential(n: int) -> None:
    found = plan("one_peer_exponential", n)
    assert close(spectra.product_norm([found.matrix(0)]), math.cos(math.pi / n))


@pytest.mark.parametrize(("peers", "tau"), [(2, 4), (3, 3), (4, 3)])
def test_p_peer_exponential_is_exact_for_powers(peers: int, tau: int) -> None:
    found = plan(entry("p_peer_exponential", peers=peers), (peers + 1) ** tau)
    assert found.period == tau
    assert spectra.product_norm(found.first) < 1e-15


@laws
@given(st.integers(3, 30), st.integers(1, 30))
def test_the_norm_bounds_every_start_and_is_reached(n: int, steps: int) -> None:
    w = plan("ring", n, "laplacian").matrix(0)
    rho = spectra.second_modulus(w)
    x = np.random.default_rng(n).standard_normal(n)
    worst = np.cos(2 * np.pi * np.arange(n) / n)
    for start, exact in ((x - x.mean(), False), (worst, True)):
        y = start
        for _ in range(steps):
            y = w @ y
        ratio = float(np.linalg.norm(y) / np.linalg.norm(start))
        assert ratio <= rho**steps + 1e-12
        if exact:
            assert close(ratio, rho**steps)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("topology", "n", "wanted"),
    [
        ("random_matching", 2, 0.0),
        ("random_matching", 10, math.sqrt(0.5 - 0.5 / 9)),
        ("random_matching", 9, math.sqrt(0.5)),
        (entry("matcha", graph="hypercube"), 8, None),
        (entry("matcha", graph="star", budget=0.3), 6, None),
    ],
)
def test_random_sequences_in_mean_square(topology: TopologyEntry | str, n: int, wanted: float | None) -> None:
    found = plan(topology, n)
    assert found.rate is not None
    if wanted is not None:
        assert found.rate == pytest.approx(wanted, abs=1e-12)
    total = np.zeros((n, n))
    for step in range(1000):
        w = found.matrix(step).toarray()
        total += w.T @ w
    drawn = math.sqrt(abs(np.linalg.eigvalsh(total / 1000 - 1 / n)[-1]))
    assert drawn == pytest.approx(found.rate, abs=0.03)


@pytest.mark.parametrize("graph", ["ring", "star", "hypercube", "grid"])
def test_matcha_with_the_whole_budget_is_the_best_constant(graph: str) -> None:
    found = plan(entry("matcha", graph=graph, budget=1.0), 16)
    assert found.rate == pytest.approx(modulus(graph, 16, "laplacian"), abs=1e-8)
    assert abs(found.matrix(3) - plan(graph, 16, "laplacian").matrix(0)).max() < 1e-6


def test_matcha_keeps_its_budget_and_prefers_the_edges_that_join() -> None:
    """Two triangles joined by a bridge: the bridge's matching is used more often than the others."""
    edges = [(0, 1), (1, 2), (0, 2), (2, 3), (3, 4), (4, 5), (3, 5)]
    matchings = matcha.decompose(6, edges)
    assert sum(m.nnz for m in matchings) == 14
    assert all(m.sum(axis=1).max() == 1 for m in matchings)
    laplacians = [laplacian(6, edges_of(m, directed=False)).toarray() for m in matchings]
    found = matcha.activation(laplacians, 0.5)
    assert found.sum() == pytest.approx(0.5 * len(matchings))
    bridge = next(number for number, m in enumerate(matchings) if m[2, 3])
    assert found[bridge] == found.max()

    def second(p: np.ndarray) -> float:
        return float(np.linalg.eigvalsh(np.tensordot(p, np.array(laplacians), axes=1))[1])

    random = np.random.default_rng(0)
    for _ in range(200):
        p = random.random(len(matchings))
        p *= min(0.5 * len(p) / p.sum(), 1 / p.max())
        assert second(p) <= second(found) + 1e-6


# --- exact in finitely many steps -------------------------------------------------------------------


@pytest.mark.slow
@laws
@given(st.integers(2, 150), st.integers(1, 4), st.sampled_from(["base", "simple_base"]))
def test_base_graphs_are_exact_for_every_size(n: int, peers: int, name: str) -> None:
    found = plan(entry(name, peers=peers), n)
    assert found.period is not None
    assert spectra.product_norm(found.first) < 1e-14
    assert found.period <= 2 * math.log(n, peers + 1) + 2 + 1e-9
    assert max(int(in_degrees(support(w)).max()) for w in found.first) <= peers
    assert found.symmetric
    assert found.least_weight >= 0
    assert found.column_stochastic


def test_base_graphs_by_hand() -> None:
    """n = 5 = 4 + 1: pairs, pairs across, the fifth joins with 4/5, then pairs and pairs across again."""
    found = plan("simple_base", 5)
    pairs = [
        {(i, j) for i, row in enumerate(found.at(step).sources) for j in row if i < j} for step in range(5)
    ]
    inside = {(0, 1), (2, 3)}, {(0, 2), (1, 3)}
    assert pairs == [*inside, {(0, 4)}, *inside]
    assert found.matrix(2)[0, 4] == 4 / 5
    assert plan("base", 12).period == 5  # 3 workers in 3 steps, beside 4 of them; then 2 steps across
    assert plan("simple_base", 12).period == 7


@pytest.mark.parametrize(("b", "tau"), [(2, 1), (2, 6), (3, 4), (5, 3)])
def test_de_bruijn_graphs_are_exact(b: int, tau: int) -> None:
    w = plan(entry("de_bruijn", base=b), b**tau).matrix(0)
    assert spectra.product_norm([w] * tau) < 1e-14
    assert tau == 1 or spectra.product_norm([w] * (tau - 1)) > 0.5


@pytest.mark.parametrize("name", ["hyper_hypercube", "one_peer_hypercube"])
def test_hypercubes_one_dimension_a_step(name: str) -> None:
    found = plan(name, 32)
    assert found.period == 5
    assert spectra.product_norm(found.first) == 0.0


# --- large graphs -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["path", "star", "grid", "torus", "hypercube", "static_exponential"])
def test_iterations_agree_with_full_decompositions(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    w = plan(name, 64).matrix(0)
    full = spectra.second_modulus(w), spectra.product_norm([w, w])
    monkeypatch.setattr(spectra, "DENSE", 10)
    monkeypatch.setattr(spectra, "circulant_row", lambda matrix: None)
    assert close(spectra.second_modulus(w), full[0])
    assert spectra.product_norm([w, w]) == pytest.approx(full[1], abs=1e-9)
