"""Small inputs whose winner came out wrong."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from paceline.sim.experiments.simulate import simulate
from paceline.sim.records.run import Run
from paceline.sim.scenario.schema import parse

TWO_GPUS = """\
name: two-gpus
seed: 1
workload:
  task: digits-mlp
  batch_size: 16
  payload: 140 MB
  optimizer: {adamw: {lr: 0.01}, schedule: {warmup: 20 steps}}
cluster:
  workers: 2
  compute: {time: 160 ms}
  network: {latency: 5 us, bandwidth: 100 Gbit/s}
schemes: [all_reduce, diloco: {period: 100}]
stop: {target: {metric: train_loss, value: 0.063}, max_iterations: 500}
"""


def times_to_target(text: str, *changes: str) -> dict[str, float]:
    """Label -> seconds to the target; infinite where it was not reached."""
    runs: list[Run] = list(simulate(parse(text, "scenario", list(changes))))
    return {run.label: run.time_to_target_s or math.inf for run in runs}


def test_a_model_that_nobody_holds_wins_no_race() -> None:
    """Between two averages the mean of the workers' models is better than what DiLoCo then publishes."""
    of_mean, published = times_to_target(TWO_GPUS, "evaluate.on=mean"), times_to_target(TWO_GPUS)
    assert of_mean["diloco"] < of_mean["all_reduce"]
    assert published["all_reduce"] == of_mean["all_reduce"]
    assert published["diloco"] == pytest.approx(400 * 0.16, rel=0.01), "its fourth average"


@pytest.mark.slow
def test_an_outer_model_that_gets_worse_with_every_round_never_arrives() -> None:
    """Of the mean of its workers' models DiLoCo needs 1.3 times the steps of all-reduce."""
    text = Path(__file__).with_name("seldom.yaml").read_text(encoding="utf-8")
    target = "stop.target={metric: test_loss, value: 2.0}"
    found = times_to_target(text, target)
    assert found["DiLoCo 500"] == math.inf
    assert 1.6 < found["DiLoCo 100"] / found["DDP"] < 2.2
