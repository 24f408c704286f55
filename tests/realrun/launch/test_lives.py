"""Real runs with faults: refused ones, and one that resumes after a worker was stopped or killed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from paceline.realrun.launch.cells import run_requests
from paceline.realrun.launch.processes import Processes, check_faults
from paceline.sim.errors import InputError, RunError
from paceline.sim.experiments.parity import compare_iterates
from paceline.sim.experiments.prepare import prepare
from paceline.sim.experiments.simulate import simulate_job
from paceline.sim.records.run import Run
from paceline.sim.scenario.schema import Scenario
from tests.support import warm

KILL = {"workers": [1], "at_step": "9 steps", "back_after": "300 ms"}
CHECKPOINT = {"every": "4 steps"}


def _scenario(*faults: dict[str, Any], scheme: Any = None, **changes: Any) -> Scenario:
    return Scenario.model_validate(
        {
            "name": "lives",
            "seed": 3,
            "workload": {
                "task": "quadratic",
                "dimension": 5,
                "examples": 64,
                "batch_size": 4,
                "optimizer": {"lr": 0.1, "momentum": 0.5},
            },
            "cluster": {
                "workers": 2,
                "compute": {"time": "10 ms"},
                "network": {"latency": "1 ms"},
                "faults": list(faults),
            },
            "evaluate": {"every": "2 steps"},
            "schemes": [scheme or {"gossip": {"topology": "ring"}}],
            "stop": {"max_iterations": 14},
            "gradients": "looped",
            **changes,
        }
    )


@pytest.fixture
def processes() -> Iterator[Processes]:
    with Processes(popen=warm.popen) as processes:
        yield processes


@pytest.mark.parametrize(
    ("scenario", "words"),
    [
        (_scenario(KILL), "on_fault: wait has no real run with how: kill"),
        (_scenario({**KILL, "how": "stop"}, checkpoint=CHECKPOINT), "restart has no real run with how: stop"),
        (_scenario({**KILL, "how": "cut"}), "cut needs --lab"),
        (_scenario({**KILL, "warning": "1 min"}, checkpoint=CHECKPOINT), "no checkpoint at a warning"),
        (_scenario(KILL, checkpoint={"every": "1 min"}), "write for example '100 steps'"),
        (_scenario(KILL, scheme={"ad_psgd": {}}, checkpoint=CHECKPOINT), "asynchronous"),
    ],
)
def test_a_fault_without_a_real_run_is_refused(scenario: Scenario, words: str) -> None:
    with pytest.raises(InputError, match=words):
        check_faults(scenario, lab=False)


@pytest.mark.parametrize(
    ("faults", "more", "least_s"),
    [
        ([{**KILL, "how": "stop"}], {}, 0.3),
        ([{"workers": [0], "at": "50 ms", "back_after": "400 ms", "how": "stop"}], {}, 0.4),
        ([KILL], {"checkpoint": CHECKPOINT}, 0.3),
        ([KILL], {}, 0.3),
        ([KILL, {**KILL, "workers": [0], "at_step": "11 steps"}], {"checkpoint": CHECKPOINT}, 0.6),
    ],
)
def test_a_run_goes_through_the_same_models(
    faults: list[dict[str, Any]], more: dict[str, Any], least_s: float, processes: Processes
) -> None:
    scenario = _scenario(*faults, **more, **({} if more or "how" in faults[0] else {"schemes": RESTARTS}))
    check_faults(scenario, lab=False)
    (request,) = run_requests(scenario)
    steps: list[int] = []
    run = processes.run(request, steps.append).run
    predicted = simulate_job(prepare(scenario, scenario.schemes[0], 3))
    assert (run.status, run.digest) == ("completed", predicted.digest)
    assert [each.steps for each in run.evaluations] == [each.steps for each in predicted.evaluations]
    assert run.bytes_sent == predicted.bytes_sent
    assert run.wall_clock_s >= 14 * 0.01 + least_s


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("scheme", "victim"), [("all_reduce", 1), ("gossip", 0), ("local_sgd", 2), ("sgp", 1), ("choco_sgd", 1)]
)
def test_the_living_go_on_as_simulated(scheme: str, victim: int, processes: Processes) -> None:
    scenario = _shrinking(scheme, {**KILL, "workers": [victim], "back_after": "1 h"}, steps=20)
    run = _run(scenario, processes)
    assert run.message == f"worker {victim} died"
    assert [len(each) for each in run.iterates] == [9 if rank == victim else 20 for rank in range(3)]
    assert run.time_s.down > 0.5 * (run.wall_clock_s - 9 * 0.05) / 3


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("scheme", ["all_reduce", "gossip", "local_sgd", "diloco", "sgp", "choco_sgd"])
def test_who_returns_is_healed_as_simulated(scheme: str, processes: Processes) -> None:
    # It is back halfway between averages 1 s apart, so that the same one takes it in as in the simulator.
    each, steps = ("1 s", 1) if scheme not in ("local_sgd", "diloco") else ("100 ms", 10)
    fault = {**KILL, "at_step": f"{2 * steps} steps", "back_after": "1600 ms"}
    run = _run(_shrinking(scheme, fault, steps=6 * steps, period=10, time=each), processes)
    absent = [digest == "" for digest in run.iterates[1]]
    assert absent == [2 * steps <= step < 4 * steps for step in range(6 * steps)]
    assert run.message == ""


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_workers_fail_one_after_another_and_while_one_is_away(processes: Processes) -> None:
    faults = [
        {"workers": [0], "at_step": "5 steps", "back_after": "1 h"},
        {"workers": [2], "at_step": "12 steps", "back_after": "1 h"},
    ]
    run = _run(_shrinking("local_sgd", *faults, steps=20), processes)
    assert [len(each) for each in run.iterates] == [5, 20, 12]


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_nobody_is_left_to_heal(processes: Processes) -> None:
    scenario = _shrinking("local_sgd", {**KILL, "workers": [0, 1, 2]}, steps=20)
    (request,) = run_requests(scenario)
    with pytest.raises(RunError, match="all workers have failed"):
        processes.run(request)


def _shrinking(
    scheme: str, *faults: dict[str, Any], steps: int, period: int = 4, time: str = "50 ms"
) -> Scenario:
    ring: dict[str, Any] = {"topology": "ring"}
    some: dict[str, Any] = {"compression": {"top_k": {"share": 0.4}}, "gamma": 0.4}
    options: dict[str, Any] = {
        "all_reduce": {}, "gossip": ring, "sgp": ring, "choco_sgd": {**ring, **some},
    }.get(scheme, {"period": period})  # fmt: skip
    cluster = {
        "workers": 3,
        "compute": {"time": time},
        "network": {"latency": "1 ms"},
        "faults": list(faults),
    }
    schemes = [{scheme: {**options, "on_fault": "shrink"}}]
    return _scenario(cluster=cluster, schemes=schemes, stop={"max_iterations": steps})


def _run(scenario: Scenario, processes: Processes) -> Run:
    check_faults(scenario, lab=False)
    (request,) = run_requests(scenario)
    run = processes.run(request).run
    assert run.status == "completed"
    again = compare_iterates(prepare(scenario, scenario.schemes[0], 3), run)
    assert again["same"], again["says"]
    return run


RESTARTS = [{"gossip": {"topology": "ring", "on_fault": "restart"}}]
