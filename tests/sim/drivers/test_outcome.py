"""What a run that ended by meeting its target says of its end."""

from __future__ import annotations

import pytest

from paceline.sim.experiments.simulate import simulate
from paceline.sim.records.run import Run
from paceline.sim.records.summarise import summarise
from paceline.sim.scenario.schema import Scenario, parse

SCENARIO = """\
name: first-score
workload: {{task: digits-mlp, batch_size: 32, optimizer: {{lr: {lr}}}}}
cluster:
  workers: 4
  compute: {{time: 10 ms, jitter: {{lognormal: {{cv: {cv}}}}}}}
  stragglers: [{{workers: [3], slowdown: {slowdown}}}]
  network: {{latency: 1 ms}}
evaluate: {{every: {every} steps, on: mean}}
schemes: [{{local_sgd: {{period: {period}}}}}]
stop: {{max_iterations: 100, target: {{metric: test_accuracy, value: {target}}}}}
gradients: batched
"""


def scenario(
    period: int, slowdown: float, target: float, every: int = 10, lr: float = 0.1, cv: float = 0.0
) -> Scenario:
    return parse(SCENARIO.format(period=period, slowdown=slowdown, target=target, every=every, lr=lr, cv=cv))


def simulated(asked: Scenario) -> Run:
    (run,) = simulate(asked)
    return run


LONG_PERIOD = scenario(period=100, slowdown=10, target=0.5)
"""Three workers are ten times as fast as the fourth."""
NOISY = scenario(period=5, slowdown=3, target=0.7, every=1, lr=0.5, cv=0.5)
"""Scores go up and down, since every model is scored."""


@pytest.mark.parametrize("asked", [LONG_PERIOD, NOISY])
def test_a_run_ends_with_a_score_that_meets_its_target(asked: Scenario) -> None:
    run = simulated(asked)
    target = asked.stop.target
    assert target is not None
    summary = summarise("s", [run])
    assert (summary["runs"][0]["final"]["test_accuracy"] or 0.0) >= target.value
    (first,) = [e for e in run.evaluations if e.time_s == run.time_to_target_s]
    assert (first.metrics["test_accuracy"] or 0.0) >= target.value
    assert summary["summary"][0]["steps_to_target"] == first.step
    low_s, high_s = run.bracket_s or (0.0, 0.0)
    assert high_s == run.time_to_target_s
    assert any(
        e.time_s == low_s and (e.metrics["test_accuracy"] or 0.0) < target.value for e in run.evaluations
    )


def test_a_straggler_does_not_hold_back_the_score_of_the_others() -> None:
    """Scored step by step, the target was met with the slow worker's 30th step, after 3 s."""
    run = simulated(LONG_PERIOD)
    assert run.time_to_target_s is not None
    assert run.time_to_target_s < 0.4
    assert run.evaluations[-1].steps[:3] == (run.evaluations[-1].steps[0],) * 3
    assert run.evaluations[-1].steps[3] <= 4


def test_a_run_without_its_target_is_scored_at_its_end() -> None:
    run = simulated(scenario(period=100, slowdown=10, target=0.99, every=30))
    assert not run.reached_target
    assert [each.step for each in run.evaluations] == [0, 30, 60, 90, 100]
