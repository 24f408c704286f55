"""Chance that is told from a followed step by what the slowest worker computes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from paceline.sim.experiments.costs.control import ControlVariate, control_of
from paceline.sim.experiments.costs.step_cost import follow_whole, whole_job
from paceline.sim.experiments.prepare import prepare
from paceline.sim.scenario.schema import Scenario, resolve_scenario

RARE: dict[str, Any] = {"stragglers": [{"probability": 0.05, "slowdown": 12}], "compute": {"time": "1 s"}}


def scenario(scheme: object, **cluster: Any) -> Scenario:
    return resolve_scenario(
        {
            "name": "s", "workload": {"timing_only": True, "payload": "1 kB", "batch_size": 8},
            "stop": {"max_iterations": 9}, "schemes": [scheme], "collectives": {"all_reduce": "ring"},
            "cluster": {"workers": 4, "network": {"latency": "0 ms", "bandwidth": "10 Gbit/s"}, **cluster},
        },
        None,
        (),
    )  # fmt: skip


def test_chance_is_told_from_a_step_that_follows_the_slowest() -> None:
    """Parts of two cycles each, their steps 3 s and twice what computing took beyond its mean."""
    beyond_s = np.array([1.0, 3.0, -1.0, 1.0, 0.0, 4.0, 2.0, -2.0])
    steps_s = [3 + 2 * beyond_s[k : k + 2].mean() for k in (0, 2, 4, 6)]
    chance_s, error_s = ControlVariate(beyond_s, 0.0).corrected(0, steps_s, range(0, 9, 2))
    assert (chance_s, error_s) == pytest.approx((2 * beyond_s.mean(), 0.0))
    later_s, _ = ControlVariate(beyond_s, 0.0).corrected(1, steps_s, range(0, 9, 2))
    assert later_s == pytest.approx(2 * beyond_s[1:].mean())
    _, of_mean_s = ControlVariate(beyond_s, 0.1).corrected(0, steps_s, range(0, 9, 2))
    assert of_mean_s == pytest.approx(0.2)


def test_a_run_beyond_what_was_drawn_has_no_control() -> None:
    assert ControlVariate(np.zeros(7), 0.0).corrected(0, [1.0, 1.0, 1.0, 1.0], range(0, 9, 2)) == (
        0.0,
        math.inf,
    )


@pytest.mark.parametrize("scheme", ["all_reduce", {"local_sgd": {"period": 4}}])
def test_rare_slow_periods_of_a_short_run_count_as_often_as_they_come(scheme: object) -> None:
    """The slowest of four workers, by what they draw: 1 s, or 12 s, a step of each."""
    wanted = scenario(scheme, **RARE)
    (entry,) = wanted.schemes
    step = follow_whole(wanted, entry)
    cycle = whole_job(wanted, entry).cycle
    free = np.random.default_rng(1).random((4, 40_000, cycle)) < 0.05
    exact_s = (1 + 11 * free).mean(axis=2).max(axis=0).mean()
    assert step.error < 0.015
    assert step.step_s == pytest.approx(exact_s, rel=3 * step.error)


@pytest.mark.parametrize("compute", [{"time": "1 s"}, {"trace": {"durations": ["1 s", "2 s"]}}])
def test_what_is_not_drawn_or_unlike_later_has_none(compute: dict[str, object]) -> None:
    wanted = scenario("all_reduce", compute=compute)
    assert control_of(prepare(wanted, wanted.schemes[0], wanted.seed)) is None


def test_workers_that_do_not_keep_step_have_none() -> None:
    wanted = scenario("ad_psgd", **RARE)
    assert control_of(prepare(wanted, wanted.schemes[0], wanted.seed)) is None
