"""One run with each kind of fault, predicted and measured; a link that stays cut."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.faults import measure, predict, probe_start_s
from paceline.realrun.lab import Lab
from paceline.realrun.launch.cells import run_requests
from paceline.realrun.launch.processes import Processes
from paceline.sim.network.build import build_network
from paceline.sim.scenario.schema import parse

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]


@pytest.mark.parametrize(
    ("kind", "scheme", "changes", "within_pct"),
    [
        ("stop", "local_sgd", {"at": "2 s"}, 5),
        ("cut", "all_reduce", {"at_step": "10 steps", "back_after": "5 s"}, 10),
        (
            "kill",
            "gossip",
            {"at_step": "25 steps", "back_after": "3 s"},
            25,
        ),  # by the start
    ],
)
def test_a_run_with_a_fault_is_as_predicted(
    kind: str, scheme: str, changes: dict[str, Any], within_pct: float
) -> None:
    start_s = probe_start_s() if kind == "kill" else 0.0
    row = measure(predict(kind, scheme, start_s, steps=30, **changes), steps=30, **changes)
    assert row.same_models
    assert abs(row.error_pct) < within_pct


CUT = """
name: cut
seed: 1
workload: {task: quadratic, dimension: 30, batch_size: 4, optimizer: {lr: 0.1}}
cluster: {workers: 3, compute: {time: 50 ms}, network: {latency: 2 ms, bandwidth: 100 Mbit/s}}
schemes: [all_reduce]
gradients: looped
stop: {max_iterations: 1000}
"""


def test_a_link_that_stays_cut_ends_the_run_with_the_records_of_the_others() -> None:
    scenario = parse(CUT, "cut", [])
    lab = Lab(build_network(scenario.cluster.network, 3))
    down: list[int] = []

    def cut(step: int) -> None:
        if step >= 5 and not down:
            down.append(lab.popen(1, ["ip", "link", "set", lab.interface, "down"]).wait())

    with Processes(lab=lab, timeout_s=3.0) as processes:
        run = processes.run(run_requests(scenario)[0], cut).run
    assert (down, run.status) == ([0], "partial")
    waits = "; ".join(f"worker {rank} waits in all_reduce" for rank in range(3))
    assert run.message.startswith(f"no worker can go on: {waits}; worker 1 handed in no record")
    assert run.iterations >= 5 * 2 / 3
