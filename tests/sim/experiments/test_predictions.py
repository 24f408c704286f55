"""Every command that predicts has a finite answer, whatever transport, hosts, computing time and latency."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.sim.experiments.costs.bounds import measure_bounds
from paceline.sim.experiments.costs.check import check
from paceline.sim.experiments.costs.tokens import Utilisation
from paceline.sim.experiments.prepare import resolve
from paceline.sim.experiments.simulate import simulate
from paceline.sim.scenario.schema import Scenario, parse

CPU = torch.device("cpu")
SCENARIO = """\
name: predicted
workload: {{timing_only: true, payload: 100 kB}}
cluster:
  workers: 3
  compute: {{time: {compute_s} s}}
  network: {{transport: {transport}, latency: {latency_s} s, hosts: {hosts}{more}}}
schemes: [{scheme}]
stop: {{max_iterations: 3}}
"""
SCHEMES = ("all_reduce", "{local_sgd: {period: 2}}", "{gossip: {topology: ring}}", "ad_psgd")

scenarios = st.builds(
    lambda **values: parse(SCENARIO.format(**values)),
    transport=st.sampled_from(["ideal", "gloo", "nccl"]),
    hosts=st.sampled_from(["tuned", "stock", "stock, tcp: {congestion: bbr}"]),
    compute_s=st.sampled_from([0.0, 0.14, 0.2, 1.0, 100.0]) | st.floats(1e-15, 100),
    latency_s=st.sampled_from([0.0, 1e-9, 1e-3, 1.0]) | st.floats(1e-15, 1),
    more=st.sampled_from(["", ", bandwidth: 1 MB/s", ", bandwidth: 10 Gbit/s, queue: fifo"]),
    scheme=st.sampled_from(SCHEMES),
)


pytestmark = pytest.mark.usefixtures("little_work")


def predict(scenario: Scenario) -> None:
    resolved = resolve(scenario, CPU)
    compute_s = resolved.cluster.compute.time or 0.0
    (row,) = check(scenario, CPU)["schemes"]
    assert row["problem"] is None
    assert math.isfinite(row["step_s"])
    assert row["step_s"] >= compute_s * (1 - 1e-9)
    (run,) = simulate(resolved)
    assert math.isfinite(run.wall_clock_s)
    assert run.wall_clock_s >= 3 * compute_s * (1 - 1e-9)
    bound = measure_bounds(resolved, resolved.schemes[0])
    assert bound is not None
    assert math.isfinite(bound["step_s"])
    utilisation = Utilisation(resolved, resolved.schemes[0])
    assert math.isfinite(utilisation.step.step_s)
    assert 0 <= utilisation.share <= 1 + 1e-9
    needed = utilisation.needed(0.9)
    assert needed is None or math.isfinite(needed)


@settings(max_examples=3)
@given(scenarios)
def test_every_prediction_is_finite(scenario: Scenario) -> None:
    predict(scenario)


@pytest.mark.slow
@settings(max_examples=6)
@given(scenarios)
def test_every_prediction_is_finite_in_a_long_draw(scenario: Scenario) -> None:
    predict(scenario)
