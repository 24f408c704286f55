"""Records of ``paceline.attach`` from a cluster that is known: the simulator made them itself."""

from __future__ import annotations

from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import torch

from paceline.realrun.calibration.training_run import TrainingRun
from paceline.sim.compute.attached import AttachedRun
from paceline.sim.compute.compute_settings import Compute
from paceline.sim.compute.model import ComputeModel
from paceline.sim.drivers.job import Job
from paceline.sim.scenario.schema import Scenario, parse
from tests.support.factory import make_job, network_of, run_events

NETWORK = {"latency": "5 ms", "bandwidth": "100 Mbit/s"}
TRUE = {"overhead_s": 2e-4, "added_latency_s": 3e-4, "resume_s": 4e-4, "efficiency": 0.9}
GRADIENTS_S = ((0.03, 0.011, 0.009, 0.012), (0.03, 0.008, 0.01, 0.013), (0.03, 0.01, 0.01), (0.03, 0.014))
SCENARIO = """
name: here
workload: {{task: quadratic, optimizer: {{lr: 0.1}}, timing_only: true, payload: 40 kB}}
cluster: {{workers: {workers}, compute: {{time: 1 ms}}, network: {{latency: 5 ms, bandwidth: 100 Mbit/s}}}}
schemes: [all_reduce]
stop: {{max_iterations: 10}}
"""


def nominal(workers: int = 4) -> Scenario:
    """What its user knows of the cluster."""
    return parse(SCENARIO.format(workers=workers))


def true_job(scheme: str, options: dict[str, Any], num_bytes: int, steps: int) -> Job:
    """The training as it is, with gradients of ``GRADIENTS_S``."""
    job = make_job(
        scheme, options, start=torch.zeros(1000), bytes_per_parameter=num_bytes / 1000,
        network=network_of(4, **NETWORK), announcement=1.0, streams=True, all_reduce="gloo_ring",
        every=10**9, max_iterations=steps,
    )  # fmt: skip
    workers = [[f"{value!r} s" for value in each] for each in GRADIENTS_S]
    compute = Compute.model_validate({"trace": {"workers": workers}})
    transfer: Any = replace(job.transfer, **TRUE, buffer_bytes=4e6)  # type: ignore[arg-type]
    return replace(job, compute=ComputeModel(compute, (), job.seed), transfer=transfer)


def record(scheme: str, options: dict[str, Any], num_bytes: int, steps: int = 30) -> AttachedRun:
    """What ``paceline.attach`` would have written down of it."""
    job = true_job(scheme, options, num_bytes, steps)
    return AttachedRun(
        made="2026-01-01T00:00:00+00:00", machine="test", software="test", hosts=("a",) * 4,
        settings={"net.ipv4.tcp_wmem": "4096 4000000 4000000"}, scheme={scheme: options}, workers=4,
        seed=job.seed, steps=steps, parameters=1000, bytes_per_parameter=num_bytes / 1000, moments=0,
        rows=tuple(astuple(event) for event in run_events(job).events),
    )  # fmt: skip


def training_run(scheme: str, options: dict[str, Any], num_bytes: int) -> TrainingRun:
    """The same as evidence."""
    return TrainingRun(record(scheme, options, num_bytes), nominal(), Path("attached.json"))
