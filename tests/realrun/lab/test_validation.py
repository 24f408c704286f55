"""From probes to a comparison on the lab, small."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest

from benchmarks.validation.campaign import measure_cell, predict_cell, row_of
from benchmarks.validation.design import DesignPoint
from paceline.realrun.calibration import cluster_probes, fit, probes, validate
from paceline.realrun.calibration.validate import with_step_limit
from paceline.realrun.launch.cells import RunRequest
from paceline.sim.devices import one_thread
from paceline.sim.experiments.parity import compare_iterates
from paceline.sim.experiments.prepare import prepare
from paceline.sim.experiments.simulate import simulate_job
from paceline.sim.scenario.schema import dump, load, over_transport, parse

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[3]

SCENARIO = """
name: tiny
workload: {task: digits-mlp, batch_size: 32, optimizer: {lr: 0.1}, payload: 200 kB}
cluster: {workers: 4, compute: {time: 20 ms}, network: {latency: 10 ms, bandwidth: 100 Mbit/s}}
evaluate: {every: 5 steps}
schemes: [all_reduce, {gossip: {topology: ring}}, ad_psgd]
stop: {max_iterations: 10}
repeats: 3
"""


@pytest.mark.slow
def test_prediction_and_measurement_agree() -> None:
    scenario = parse(SCENARIO)
    said: list[str] = []
    hosts = probes.hosts_of(scenario, lab=True)
    with validate.processes_for(scenario, lab=True, probing=True) as pool:
        measured = cluster_probes.measure(pool, hosts, cluster_probes.standard(None), repeats=3)
        profile = fit.calibrate([measured]).profile
        found = validate.validate(scenario, pool, profile, None, said.append)
        cell = DesignPoint("one_peer", 4, 20, 100, 200, "homogeneous", 30)
        row = row_of(cell, predict_cell(cell, profile), [measure_cell(pool, cell, n) for n in range(2)])
    for label in ("all_reduce", "gossip", "ad_psgd"):  # one of three short runs may have been held up
        off = [abs(cell["error_pct"]) for cell in found.comparison["cells"] if cell["label"] == label]
        assert median(off) < 10
    assert [each["same"] for each in found.comparison["trajectories"]] == [True, True, None] * 3
    assert found.comparison["warnings"] == []
    assert abs(row["mechanism_pct"]) < 5
    assert row["same_models"] == "same bits"
    assert measured.settings["net.ipv4.tcp_congestion_control"] == "reno"


def test_a_support_vector_machine_with_a_period_is_the_same_program_for_real() -> None:
    """Pegasos that averages after every 8th sample goes through the predicted models in about the time."""
    loaded = load(ROOT / "scenarios" / "lab" / "svm.yaml")
    scenario = over_transport(with_step_limit(loaded, 24), loaded.cluster.backend)
    with one_thread():
        job = prepare(scenario, scenario.schemes[1], 1)
        predicted = simulate_job(job)
    with validate.processes_for(scenario, lab=True, probing=False) as pool:
        measured = pool.run(RunRequest(dump(scenario), 1, 1, max_iterations=24)).run
    with one_thread():
        assert compare_iterates(prepare(scenario, scenario.schemes[1], 1), measured)["same"]
    assert measured.wall_clock_s == pytest.approx(predicted.wall_clock_s, rel=0.15)


def test_layers_that_are_summed_at_once_do_not_wait_for_each_other() -> None:
    """Carried two after two, they would last nearly twice as long."""
    scenario = load(ROOT / "scenarios" / "lab" / "layers.yaml")
    predicted = simulate_job(prepare(scenario, scenario.schemes[1], 1))
    with validate.processes_for(scenario, lab=True, probing=False) as pool:
        measured = pool.run(RunRequest(dump(scenario), 1, 1, max_iterations=20)).run
    assert measured.wall_clock_s == pytest.approx(predicted.wall_clock_s, rel=0.1)
