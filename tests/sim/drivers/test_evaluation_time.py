"""Evaluations that take time, worked out by hand. All values are exact in binary, so ``==`` is meant."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import paceline
from paceline.extras.replay.verify import verify_replay
from paceline.sim.compute.compute_settings import Straggler
from paceline.sim.experiments.costs.step_cost import step_cost
from paceline.sim.experiments.simulate import simulate
from paceline.sim.records.folder import write_results
from paceline.sim.scenario.schema import Scenario, dump, resolve_scenario
from tests.support.both_drivers import assert_the_same
from tests.support.factory import make_job, scored, simulated

TWICE_AS_SLOW = (Straggler(workers=(1,), slowdown=2.0),)


def scenario(*schemes: Any, **evaluate: Any) -> Scenario:
    written = {
        "name": "s",
        "workload": {"task": "quadratic", "dimension": 4, "batch_size": 4, "optimizer": {"lr": 0.1}},
        "cluster": {"workers": 2, "compute": {"time": "1 s"}, "network": {"latency": "0 s"}},
        "schemes": list(schemes), "stop": {"max_iterations": 8}, "evaluate": {"every": "4 steps", **evaluate},
    }  # fmt: skip
    return resolve_scenario(written, None, ())


def test_every_worker_stops_before_it_publishes_a_model_that_is_evaluated() -> None:
    job = scored(make_job("all_reduce", workers=2, max_iterations=5, every=2), time_s=0.5)
    run = simulated(job)
    assert run.wall_clock_s == 6.0  # five gradients of 1 s, two evaluations
    assert (run.time_s.compute, run.time_s.wait, run.time_s.communicate) == (6.0, 0.0, 0.0)
    assert run.exchanges == ("all_reduce",)
    ends = [(each.step, each.start_s, each.end_s) for each in run.events if each.operation == "evaluate"]
    assert ends == [(1, 2.0, 2.5), (1, 2.0, 2.5), (3, 4.5, 5.0), (3, 4.5, 5.0)]
    assert_the_same(job)


def test_a_score_is_known_once_it_has_taken_its_time() -> None:
    (run,) = simulate(scenario("all_reduce", time="1 s"))
    assert [each.time_s for each in run.evaluations] == [0.0, 5.0, 10.0]


def test_the_others_wait_for_who_evaluates_late() -> None:
    job = make_job("local_sgd", {"period": 2}, workers=2, max_iterations=4, every=4, stragglers=TWICE_AS_SLOW)
    run = simulated(scored(job, time_s=0.5))
    assert run.wall_clock_s == 8.5
    # two steps, 2 s of waiting, two steps, 2 s of waiting, and both evaluate at 8 s
    assert (run.time_s.compute, run.time_s.wait) == ((4.5 + 8.5) / 2, 2.0)


def test_who_waits_for_nobody_evaluates_after_its_own_steps() -> None:
    job = make_job("halos", {"period": 1}, workers=2, max_iterations=None, every=2, stragglers=TWICE_AS_SLOW)
    run = simulated(replace(scored(job, time_s=1.0), max_time_s=9.5))
    ends = [(each.worker, each.end_s) for each in run.events if each.operation == "evaluate"]
    assert ends == [(0, 3.0), (1, 5.0), (0, 6.0), (0, 9.0)]


@pytest.mark.slow
def test_check_counts_whole_cycles_of_steps_and_evaluations() -> None:
    wanted = scenario({"local_sgd": {"period": 3}}, "ad_psgd", time="1 s")
    costs = [step_cost(wanted, entry) for entry in wanted.schemes]
    assert [cost.step_s for cost in costs] == [1.25, 1.25]
    assert [cost.compute_s for cost in costs] == [1.25, 1.25]
    assert [run.step_s for run in simulate(wanted)] == [1.25, 1.25]


def test_a_sweep_tells_settings_of_it_apart() -> None:
    found = paceline.sweep(scenario("all_reduce"), {"evaluate.time": ["0 s", "1 s", "2 s"]}, progress=False)
    assert [run.wall_clock_s for study in found.studies for run in study.runs] == [8.0, 10.0, 12.0]


def test_a_record_of_it_is_replayed(tmp_path: Path) -> None:
    wanted = scenario("all_reduce", "ad_psgd", time="1 s")
    write_results(tmp_path / "r", dump(wanted), wanted.name, list(simulate(wanted)))
    assert [each.same_bits for each in verify_replay(tmp_path / "r")] == [True, True]


@pytest.mark.parametrize("evaluate", [{}, {"time": "0 s"}])
def test_without_time_nothing_is_recorded_of_it(evaluate: dict[str, str]) -> None:
    wanted = scenario("all_reduce", **evaluate)
    (run,) = simulate(wanted)
    assert run.wall_clock_s == 8.0
    assert {each.operation for each in run.events} == {"gradient", "all_reduce", "next_step"}
    assert ("time:" in dump(wanted).split("evaluate:")[1]) == bool(evaluate)
