"""Steps without a closed form are interpolated on a grid of links, within the error that the page states."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from paceline.extras.explore import export as exporting
from paceline.extras.explore.export import export, interpolate, scaled
from paceline.sim.errors import InputError
from paceline.sim.experiments import prepare
from paceline.sim.experiments.jobs import JobProcesses, PlannedRun
from paceline.sim.experiments.simulate import job_of, simulate_job
from paceline.sim.network.build import build_network
from paceline.sim.network.network import Network
from paceline.sim.scenario.schema import Scenario, parse
from tests.support.browser import browse, found_in, in_a_browser

HERE = torch.device("cpu")
SHARED = """
name: shared
seed: 5
workload: {timing_only: true, payload: 24 MB}
cluster:
  compute: {time: 50 ms}
  network:
    sites: {us: 2, eu: 2}
    within: {latency: 0.1 ms, bandwidth: 10 Gbit/s}
    between: {latency: 20 ms, bandwidth: 1 Gbit/s}
schemes:
  - all_reduce
  - local_sgd: {period: 4}
  - gossip: {topology: ring}
  - diloco: {period: 4, fragments: 2, delay: 1, label: streaming}
  - ad_psgd
stop: {max_iterations: 24}
"""
HEAD = SHARED.partition("schemes:")[0]
FLAT = "  workers: 4\n  network: {latency: 20 ms, bandwidth: 1 Gbit/s%s}\n"
NETWORKS = {
    "sites": HEAD,
    "flat": HEAD.partition("  network:")[0] + FLAT % "",
    "GPUs": HEAD.partition("  network:")[0]
    + FLAT % ", host: {gpus: 2, bandwidth: 100 Gbit/s, latency: 2 us}",
}
FACTORS = st.floats(0.01, 100)


def at(text: str, latency: float, bandwidth: float) -> Scenario:
    """The study with these factors written into it."""
    text = text.replace("latency: 20 ms", f"latency: {0.02 * latency!r} s")
    return parse(text.replace("bandwidth: 1 Gbit/s", f"bandwidth: {bandwidth!r} Gbit/s"))


def numbers(network: Network) -> list[float]:
    routes = [network.route(a, b) for a in range(4) for b in range(4) if a != b]
    rates = [network.links[link].bandwidth_bytes_per_s for route in routes for link in route.links]
    return [*(route.latency_s for route in routes), *(r.per_flow_bytes_per_s for r in routes), *rates]


@pytest.mark.slow
@pytest.mark.parametrize("form", NETWORKS)
@given(FACTORS, FACTORS)
def test_scaled_links_are_those_of_the_scenario_with_these_values(
    form: str, latency: float, bandwidth: float
) -> None:
    text = NETWORKS[form] + "schemes: [all_reduce]\nstop: {max_iterations: 1}\n"
    own, other = (
        build_network(at(text, *each).cluster.network, 4) for each in ((1, 1), (latency, bandwidth))
    )
    assert numbers(scaled(own, latency, bandwidth)) == pytest.approx(numbers(other), rel=1e-9)


@given(st.lists(st.floats(-3, 3), min_size=9, max_size=9), st.floats(-2, 2), st.floats(-2, 2))
def test_a_product_of_powers_is_interpolated_exactly(logs: list[float], x: float, y: float) -> None:
    axes = [[-2.0, 0.0, 2.0]] * 2
    plane = [[logs[0] + logs[1] * a + logs[2] * b for b in axes[1]] for a in axes[0]]
    assert interpolate(axes, np.array(plane), (x, y)) == pytest.approx(
        logs[0] + logs[1] * x + logs[2] * y, abs=1e-9
    )
    rows = np.array(logs).reshape(3, 3)
    assert min(logs) - 1e-9 <= interpolate(axes, rows, (x, y)) <= max(logs) + 1e-9


@pytest.fixture
def small_grids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "GRID_POINTS", 3)
    monkeypatch.setattr(exporting, "FRESH", 2)


@pytest.mark.usefixtures("small_grids")
def test_what_follows_no_law_is_interpolated_from_its_own_record() -> None:
    text = f"{HEAD}schemes: [{{gossip: {{topology: ring}}}}, ad_psgd]\nstop: {{max_iterations: 6}}\n"
    scenario = prepare.resolve(parse(text), HERE)
    content = export(scenario, HERE)
    assert set(content["left_out"]) == {"ad_psgd"}
    assert "not synchronous" in content["left_out"]["ad_psgd"]
    (ring,) = content["schemes"]
    run = simulate_job(job_of(PlannedRun("run", 0, scenario, scenario.schemes[0], scenario.seed), HERE))
    assert ring["runs"][0]["step_s"] == run.step_s
    assert ring["runs"][0]["steps"] == 6
    logs = ring["grid"]["logs"]
    assert (len(logs), len(logs[0]), logs[1][1], ring["grid"]["fresh"]) == (3, 3, 0.0, 2)
    assert logs[1][0] > logs[1][1] > logs[1][2]
    assert logs[0][1] < logs[1][1] < logs[2][1]


@pytest.mark.parametrize(
    ("own", "changed", "why"),
    [
        ("network: {", "network: {connect: 50 ms, ", "connecting"),
        ("network: {", "network: {jitter: {lognormal: {cv: 0.2}}, ", r"network\.jitter"),
        ("network: {", "stragglers: [{workers: [0], at: 2 steps, crash: true}]\n  network: {", "faults"),
        (
            "gossip: {topology: ring}",
            "diloco: {compression: {qsgd: {bits: 8}}, fragments: 2, delay: 1, period: 4}",
            "encoded",
        ),
    ],
)
def test_what_changes_besides_the_time_of_a_step_is_left_out(own: str, changed: str, why: str) -> None:
    alone = "schemes: [{gossip: {topology: ring}}]\nstop: {max_iterations: 3}\n"
    text = (NETWORKS["GPUs"] + alone).replace(own, changed, 1)
    with pytest.raises(InputError, match=why):
        export(prepare.resolve(parse(text), HERE), HERE)


@in_a_browser
def test_the_stated_error_covers_nine_of_ten_fresh_simulations(tmp_path: Path) -> None:
    content = export(prepare.resolve(parse(SHARED), HERE), HERE)
    assert [each["label"] for each in content["schemes"]] == [
        "all_reduce",
        "local_sgd",
        "gossip",
        "streaming",
    ]
    rng = random.Random(42)
    settings = [(rng.uniform(-2, 2), rng.uniform(-2, 2)) for _ in range(40)]
    law = (Path(exporting.__file__).parent / "law.js").read_text(encoding="utf-8")
    values = [{"latency": 10**latency, "bandwidth": 10**bandwidth} for latency, bandwidth in settings]
    probe = tmp_path / "grid.html"
    probe.write_text(
        f"""<body><pre id="found"></pre><script>{law}
const schemes = {json.dumps(content["schemes"])};
const all = {json.dumps(values)}.map((setting) => schemes.map(({{ grid }}) => stepOf(grid, setting)));
document.getElementById("found").textContent = JSON.stringify(all);</script>""",
        encoding="utf-8",
    )
    in_page: list[list[float]] = json.loads(found_in(browse(probe, tmp_path, "--dump-dom")))
    covered = dict.fromkeys((each["label"] for each in content["schemes"]), 0)
    for setting, value, factors in zip(settings, values, in_page, strict=True):
        scenario = prepare.resolve(at(SHARED, **value), HERE)
        for scheme, factor in zip(content["schemes"], factors, strict=True):
            grid, entry = scheme["grid"], next(e for e in scenario.schemes if e.label == scheme["label"])
            assert factor == pytest.approx(math.exp(interpolate(grid["axes"], grid["logs"], setting)))
            run = simulate_job(job_of(PlannedRun("trial", 0, scenario, entry, scenario.seed), HERE))
            assert run.step_s is not None
            off = abs(factor * scheme["runs"][0]["step_s"] / run.step_s - 1)
            covered[scheme["label"]] += off <= scheme["grid"]["error"]
    assert min(covered.values()) >= 0.9 * len(settings), covered


class Asked(Future[bytes]):
    """A result of ``out``, the numbers of those that nobody has asked for yet."""

    def __init__(self, out: list[int], value: bytes) -> None:
        super().__init__()
        self.out = out
        self.set_result(value)

    @override
    def result(self, timeout: float | None = None) -> bytes:
        self.out.append(self.out[-1] - 1)
        return super().result(timeout)


def test_no_more_is_handed_out_than_processes_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """And steps come in the order of their settings."""
    monkeypatch.setattr(exporting, "_step_s", lambda scenario, entry, latency, bandwidth: latency)
    scenario = prepare.resolve(parse(SHARED), torch.device("cpu"))
    settings = [[float(k), 0.0] for k in range(20 * exporting.GRID_POINTS + 1)]
    processes, out = JobProcesses(executor=ThreadPoolExecutor(1)), [0]
    processes.window = 2

    def submit(work: Callable[[str], bytes], text: str) -> Future[bytes]:
        out.append(out[-1] + 1)
        return Asked(out, work(text))

    monkeypatch.setattr(processes, "submit", submit)
    steps_s = [*exporting._steps_s(scenario, scenario.schemes[0], settings, processes)]
    assert steps_s == [latency for latency, _ in settings]
    assert max(out) == 4
