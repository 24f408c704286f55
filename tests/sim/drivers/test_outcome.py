"""What a run that ended by meeting its target says of its end."""

from __future__ import annotations

import pytest

from paceline.sim.experiments.simulate import simulate
from paceline.sim.records.run import Run
from paceline.sim.records.summary import summarise
from paceline.sim.scenario.schema import Scenario, parse

SCENARIO = """\
name: first-score
workload: {{task: digits-mlp, batch_size: 32, optimizer: {{lr: {lr}}}}}
cluster:
  workers: 4
  compute: {{time: 10 ms, jitter: {{lognormal: {{cv: {cv}}}}}}}
  stragglers: [{{workers: [3], slowdown: {slowdown}}}]
  network: {{latency: 1 ms}}
evaluate: {{every: {every} steps}}
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
"""The three fast workers have done their 100 steps when the slow one meets the target with its 30th."""
NOISY = scenario(period=5, slowdown=3, target=0.7, every=1, lr=0.5, cv=0.5)
"""The models of workers that are ahead score 0.594 at the instant at which 0.708 met the target."""


@pytest.mark.parametrize(("asked", "step"), [(LONG_PERIOD, 30), (NOISY, 12)])
def test_the_score_that_meets_the_target_is_the_last(asked: Scenario, step: int) -> None:
    run = simulated(asked)
    assert run.iterations > step  # of all workers on average: some are ahead
    last = run.evaluations[-1]
    assert (last.step, last.time_s) == (step, run.time_to_target_s)
    summary = summarise("s", [run])
    assert summary["summary"][0]["steps_to_target"] == step
    target = asked.stop.target
    assert target is not None
    assert (summary["runs"][0]["final"]["test_accuracy"] or 0.0) >= target.value


def test_a_run_without_its_target_is_scored_at_its_end() -> None:
    run = simulated(scenario(period=100, slowdown=10, target=0.99, every=30))
    assert not run.reached_target
    assert [each.step for each in run.evaluations] == [0, 30, 60, 90, 100]
