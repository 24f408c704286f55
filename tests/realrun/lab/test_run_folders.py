"""Factors from the folder of a real run beside those of probes, on the lab and on loopback."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.realrun.calibration import cluster_probes, fit, probes, validate
from paceline.realrun.launch.cells import run_requests
from paceline.realrun.launch.processes import measure_runs
from paceline.sim.network.profile import Profile
from paceline.sim.records.folder import write_results
from paceline.sim.scenario.schema import Scenario, dump, parse

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

SCENARIO = """
name: tiny
seed: 1
workload: {{task: digits-mlp, batch_size: 32, optimizer: {{lr: 0.1}}, payload: 400 kB}}
cluster: {{workers: 4, compute: {{time: 40 ms}}, network: {network}}}
schemes:
  - all_reduce
  - gossip: {{topology: ring}}
  - gossip: {{topology: one_peer_exponential, label: pairs}}
stop: {{max_iterations: 30}}
events: all
"""
LAB = "{latency: 10 ms, bandwidth: 100 Mbit/s}"
LOOPBACK = "{latency: 20 us, bandwidth: 20 Gbit/s}"


def profiles_of(scenario: Scenario, lab: bool, folder: Path) -> tuple[Profile, Profile]:
    """From probes, and from the folder of real runs; both on the same hosts."""
    hosts = probes.hosts_of(scenario, lab)
    with validate.processes_for(scenario, lab, probing=False) as pool:
        probed = cluster_probes.measure(pool, hosts, scenario)
        runs = [result.run for result in measure_runs(scenario, run_requests(scenario), pool)]
    write_results(folder, dump(scenario), scenario.name, runs)
    lines: list[str] = []
    from_folder = fit.calibrate(fit.load_all(folder, None, lines.append)).profile
    assert lines == []
    return fit.calibrate([probed]).profile, from_folder


@pytest.mark.slow  # over three minutes
@pytest.mark.parametrize(("lab", "network"), [(True, LAB), (False, LOOPBACK)])
def test_a_folder_gives_the_factors_of_a_probe_within_their_intervals(
    lab: bool, network: str, tmp_path: Path
) -> None:
    probed, measured = profiles_of(parse(SCENARIO.format(network=network)), lab, tmp_path / "out")
    assert measured.hosts == probed.hosts
    for name in probed.covariance:  # what is fitted; a socket's buffer is read, or looked for
        a, b = probed.factors[name], measured.factors[name]
        assert max(a.low, b.low) <= min(a.high, b.high), (name, a, b)
    assert measured.factors["late_s"].value < 5 * probed.factors["late_s"].value
