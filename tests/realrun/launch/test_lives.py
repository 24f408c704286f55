"""Real runs with faults: refused ones, and one that goes on after a worker was stopped or killed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from paceline.realrun.launch.cells import run_requests
from paceline.realrun.launch.lives import check_faults
from paceline.realrun.launch.processes import Processes
from paceline.sim.errors import InputError
from paceline.sim.experiments.prepare import prepare
from paceline.sim.experiments.simulate import simulate_job
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


RESTARTS = [{"gossip": {"topology": "ring", "on_fault": "restart"}}]
