"""When a random run that is followed ends, and how well it then knows a step."""

from __future__ import annotations

import math
from typing import Any

import pytest

from paceline.reports.tables import beside_steps
from paceline.sim.experiments.costs import step_cost as step_costs
from paceline.sim.experiments.costs import watch as watches
from paceline.sim.experiments.costs.step_cost import follow_whole
from paceline.sim.experiments.costs.watch import Followed, Watch
from paceline.sim.records.accounting import PaceMarks
from paceline.sim.scenario.schema import resolve_scenario


def followed(durations_s: list[float], next_look: float) -> Followed:
    """One worker's steps of these durations, or the first of them."""
    watch = Watch(
        PaceMarks(1, 1, True), lambda complete, work: complete >= len(durations_s), False, next_look
    )
    time_s = 0.0
    for step, duration_s in enumerate(durations_s):
        time_s += duration_s
        watch.publish(0, step, time_s, step)
        if watch.is_over(step):
            return watch.followed(step)
    raise AssertionError


def test_the_error_is_that_of_the_means_of_twelve_parts() -> None:
    found = followed([9.0, 9.0, 9.0, 9.0, *[1.0, 3.0] * 6], math.inf)
    assert found.step_s == 2.0
    # of twelve numbers, six are 1 and six 3: the deviation is sqrt(12 / 11), the error that over 2 sqrt(12)
    assert found.error == pytest.approx(1 / (2 * math.sqrt(11)))


def test_a_run_ends_when_the_error_is_small_and_is_not_looked_at_before() -> None:
    alternating = [1.0, 1.01] * 500
    assert followed(alternating, 48).span.last == 48  # batches of three: 1.003 and 1.007 s
    assert followed(alternating, 200.5).span.last == 201
    uneven = [1.0] * 30 + [2.0] * 970
    assert followed(uneven, 48).span.last > 70  # nearly a fourth of it lies behind the change
    too_few = followed([1.0, 2.0, 3.0], 1)
    assert (too_few.span.last, too_few.error) == (3, math.inf)


def test_the_error_of_a_step_is_told() -> None:
    rows: list[dict[str, Any]] = [{"label": "a", "step_error": 0.00184}, {"label": "b", "step_error": None}]
    assert "Standard error of a step: at most 0.18 %." in beside_steps(rows)
    assert beside_steps([{"label": "a", "step_error": 0.0}]) == []


SLOW: dict[str, dict[str, Any]] = {
    "jitter": {"compute": {"time": "50 ms", "jitter": {"lognormal": {"cv": 0.05}}}},
    "seldom": {"stragglers": [{"probability": 0.02, "slowdown": 1.1}]},
    "periods": {"stragglers": [{"markov": {"slow": "5 steps", "fast": "50 steps"}, "slowdown": 1.03}]},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", SLOW)
def test_a_random_step_is_as_well_known_as_is_said(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network = {"latency": "1 ms", "bandwidth": "10 Gbit/s"}
    written = {
        "name": "s",
        "workload": {"timing_only": True, "payload": "1 MB", "batch_size": 8},
        "schemes": [{"local_sgd": {"period": 4}}],
        "stop": {"max_iterations": 400},
        "cluster": {"workers": 4, "compute": {"time": "50 ms"}, "network": network} | SLOW[kind],
    }
    wanted = resolve_scenario(written, None, ())
    monkeypatch.setattr(step_costs, "ENOUGH_WORK", 30_000)
    soon = follow_whole(wanted, wanted.schemes[0])
    monkeypatch.setattr(watches, "STANDARD_ERROR", 0.0)
    late = follow_whole(wanted, wanted.schemes[0])
    assert 0 < soon.error <= 0.002
    assert soon.work < late.work / 2
    assert soon.step_s == pytest.approx(late.step_s, rel=4 * math.hypot(soon.error, late.error))
    rare = {"jitter": 0, "seldom": 100 / (4 * 0.02), "periods": 100 / (4 / 55)}[kind]
    assert 4 * soon.span.last >= rare
