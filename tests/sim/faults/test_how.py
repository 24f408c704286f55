"""Workers that are stopped or cut off: nobody repeats anything, and TCP resumes after a doubled time-out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline.sim.experiments.prepare import resolve
from paceline.sim.experiments.simulate import simulate
from paceline.sim.faults.fault_settings import Fault, How
from paceline.sim.faults.outages import Churn, follow, resumed_s
from paceline.sim.records.run import Run
from paceline.sim.scenario.schema import Scenario

TIMES = st.floats(0.01, 50)


@given(TIMES, st.floats(0, 0.4))
def test_tcp_goes_on_at_the_first_attempt_after_a_cut(outage_s: float, round_trip_s: float) -> None:
    attempts = [(2**k - 1) * (0.2 + round_trip_s) for k in range(1, 12)]  # none is 120 s after the last
    later = [each for each in attempts if each >= outage_s]
    assert resumed_s(outage_s, round_trip_s) == pytest.approx(later[0])


def test_time_outs_stop_doubling_at_two_minutes() -> None:
    assert resumed_s(400, 0.0) == pytest.approx(0.2 * (2**10 - 1) + 2 * 120)


@given(TIMES, TIMES, st.sampled_from(["stop", "cut"]))
def test_who_keeps_its_state_repeats_nothing(at_s: float, back_s: float, how: How) -> None:
    fault = Fault.model_validate({"at": f"{at_s} s", "back_after": f"{back_s} s", "how": how})
    line = follow(Churn((fault,), (((0,),),), "wait", None, 0), [10.0 * k for k in range(1, 7)], 60.0)
    assert line.repeated_s == 0.0
    assert line.wall_s == pytest.approx(60 + back_s)


def _run(**fault: Any) -> Run:
    cluster = {
        "workers": 3,
        "compute": {"time": "100 ms"},
        "network": {"latency": "25 ms"},
        "faults": [{"workers": [1], "at": "1 s", "back_after": "2 s", **fault}],
    }
    scenario = Scenario.model_validate(
        {
            "name": "how",
            "workload": {"task": "quadratic", "batch_size": 4, "optimizer": {"lr": 0.1}},
            "cluster": cluster,
            "schemes": ["all_reduce"],
            "stop": {"max_iterations": 20},
        }
    )
    (run,) = simulate(resolve(scenario, torch.device("cpu")))
    return run


def test_a_cut_costs_more_than_a_stop() -> None:
    stop, cut = (_run(how=how).faults for how in ("stop", "cut"))
    assert stop is not None
    assert cut is not None
    assert (stop["down_s"], cut["down_s"]) == pytest.approx((2.0, 0.25 * (2**4 - 1)))
