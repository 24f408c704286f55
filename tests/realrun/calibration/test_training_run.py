"""Calibration on the folders of real runs; what is no measurement is named for what it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.realrun.calibration import fit
from paceline.realrun.calibration.training_run import load_runs
from paceline.sim.compute.model import ComputeModel
from paceline.sim.drivers.job import JobCollectives
from paceline.sim.errors import InputError
from paceline.sim.experiments.prepare import prepare
from paceline.sim.experiments.simulate import simulate_job
from paceline.sim.network import profile as profiles
from paceline.sim.records.folder import write_results
from paceline.sim.records.run import Machine, Run
from paceline.sim.scenario.schema import Scenario, dump, parse
from tests.support.made_measurements import exact_fit
from tests.support.made_records import TRUE

SCENARIO = """
name: here
seed: 1
workload: {{task: quadratic, dimension: 50, batch_size: 4, optimizer: {{lr: 0.1}}, payload: {payload}}}
cluster:
  workers: 4
  compute: {{time: 10 ms, jitter: {{lognormal: {{cv: 0.2}}}}}}
  network: {{latency: 5 ms, bandwidth: 100 Mbit/s, transport: gloo}}
schemes: [{schemes}]
stop: {{max_iterations: 30}}
events: all
"""
BUFFER = {"net.ipv4.tcp_wmem": "4096 4000000 4000000"}


def real_runs(scenario: Scenario, hosts: dict[str, str]) -> list[Run]:
    """What real hosts with the factors ``TRUE`` would have recorded."""
    runs = []
    for entry in scenario.schemes:
        job = prepare(scenario, entry, 1)
        transfer = replace(
            job.transfer, **TRUE, announcement=1.0, streams=True, buffer_bytes=4e6,  # type: ignore[arg-type]
        )  # fmt: skip
        compute = ComputeModel(job.compute.compute, (), 1)
        run = simulate_job(
            replace(job, transfer=transfer, collectives=JobCollectives("gloo_ring"), compute=compute)
        )
        machines = (Machine("node07", 0.0),) * 4
        runs.append(replace(run, source="measured", machines=machines, hosts=hosts))
    return runs


def folder(
    path: Path, schemes: str = "{gossip: {topology: ring}}", payload: str = "400 kB", kind: str = "cluster"
) -> Path:
    scenario = parse(SCENARIO.format(schemes=schemes, payload=payload))
    hosts = {"kind": kind, "transport": "gloo", "software": "torch", **BUFFER}
    write_results(path, dump(scenario), scenario.name, real_runs(scenario, hosts))
    return path


def test_a_folder_gives_the_factors_and_says_what_it_cannot_tell(tmp_path: Path) -> None:
    (run,) = load_runs(folder(tmp_path / "out", payload="4 kB"), print)
    answer = fit.calibrate([run])
    for name, value in TRUE.items():
        factor = answer.profile.factors[name]
        assert factor.low <= value <= factor.high, name
    assert answer.profile.factors["buffer_bytes"].value == 4_000_000
    assert answer.profile.machine == "node07"
    assert (
        answer.profile.factors["overhead_s"]
        .measurements[0]
        .endswith(": 30 steps of gossip for real, 4 workers")
    )
    open_factors = {sentence.split()[0]: sentence for sentence in answer.undetermined}
    assert {"overhead_s", "resume_s", "copy_s_per_byte"} <= set(open_factors)
    assert "have overhead, latency and resumption together" in open_factors["overhead_s"]
    assert "messages of at most 4000 bytes are copied in no time" in open_factors["copy_s_per_byte"]


def test_hosts_of_a_lab_give_a_profile_of_that_lab(tmp_path: Path) -> None:
    (run,) = load_runs(folder(tmp_path / "out", kind="lab"), print)
    assert str(run.origin.hosts) == "lab with tuned hosts and fair queues over gloo"


def test_a_scheme_that_tells_nothing_is_left_out_and_named(tmp_path: Path) -> None:
    lines: list[str] = []
    where = folder(tmp_path / "out", "all_reduce, {local_sgd: {period: 1000}}")
    (run,) = load_runs(where, lines.append)
    assert list(run.record.scheme) == ["all_reduce"]
    assert lines == [f"local_sgd is left out: {where}: nothing was exchanged in its 30 steps"]


def write_scenario(path: Path) -> Path:
    path.write_text(SCENARIO.format(schemes="all_reduce", payload="4 kB"))
    return path


def write_profile(path: Path) -> Path:
    path.write_text(profiles.dump(exact_fit().profile))
    return path


def write_predictions(path: Path) -> Path:
    scenario = parse(SCENARIO.format(schemes="all_reduce", payload="4 kB"))
    run = simulate_job(prepare(scenario, scenario.schemes[0], 1))
    write_results(path, dump(scenario), scenario.name, [run])
    return path


def write_summary(path: Path) -> Path:
    return write_predictions(path) / "summary.json"


def write_bundle(path: Path) -> Path:
    path.write_text(json.dumps({"kind": "paceline bundle", "version": 1}))
    return path


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (write_scenario, "is a scenario: measure with 'paceline probe"),
        (write_profile, "is a profile, which 'paceline calibrate' has written already"),
        (write_predictions, "holds predictions alone"),
        (write_summary, "is the summary of a result folder: give the folder"),
        (write_bundle, "is a bundle of 'paceline report --bundle'"),
    ],
)
def test_what_is_no_measurement_is_named(tmp_path: Path, write: Callable[[Path], Path], message: str) -> None:
    path = write(tmp_path / "given")
    with pytest.raises(InputError, match="given") as raised:
        fit.load_all(path, None, print)
    assert message in str(raised.value)


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is no result folder"):
        fit.load_all(tmp_path, None, print)
