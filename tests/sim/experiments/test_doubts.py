"""Values that can hardly be meant."""

from __future__ import annotations

import pytest

from paceline.sim.experiments.simulate import doubts
from paceline.sim.scenario.schema import parse

PLAIN = """
name: plain
workload: {task: digits-mlp, batch_size: 16, optimizer: {lr: 0.1}}
cluster:
  workers: 4
  compute: {time: 10 ms}
  network: {latency: 5 ms, bandwidth: 100 Mbit/s}
schemes: [all_reduce, {local_sgd: {period: 8}}]
stop: {max_iterations: 40, max_time: 1 min, target: {metric: test_accuracy, value: 0.9}}
"""


def doubts_of(*changes: str) -> list[str]:
    return list(doubts(parse(PLAIN, changes=changes)))


def test_a_usual_scenario_has_none() -> None:
    assert doubts_of() == []
    assert doubts_of("workload={timing_only: true, payload: 1 MB}", "stop={max_iterations: 40}") == []


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("workload.batch_size=4000", "workload.batch_size: 4,000 is more than a worker's 359 examples"),
        ("schemes.1.local_sgd.period=41", "schemes.1.period: 41 steps are more than the run's 40 at most"),
        (
            "schemes.1.local_sgd.period={by: time, steps: 41}",
            "schemes.1.period: 41 steps are more than the run's 40 at most",
        ),
        ("stop.max_time=9 ms", "stop.max_time: 9 ms is over before the first gradient, which takes 10 ms"),
        ("stop.target.value=1.0", "stop.target.value: 1 is as good as test_accuracy can be; few runs get"),
    ],
)
def test_a_value_that_can_hardly_be_meant_is_named_once(change: str, sentence: str) -> None:
    (only,) = doubts_of(change)
    assert only.startswith(sentence)


def test_the_last_value_that_can_be_meant_is_not_named() -> None:
    assert doubts_of("workload.batch_size=1400", "workload.partition={kind: replicated}") == []
    assert doubts_of("workload.batch_size=359", "schemes.1.local_sgd.period=40", "stop.max_time=400 ms") == []
