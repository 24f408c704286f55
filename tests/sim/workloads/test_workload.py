"""Workloads: the examples that a score takes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from paceline.sim.errors import KeyedError
from paceline.sim.experiments.prepare import prepare, resolve
from paceline.sim.experiments.simulate import simulate
from paceline.sim.scenario.schema import Scenario, dump, parse
from paceline.sim.workloads import find_task, workload
from paceline.sim.workloads.supervised import supervised
from paceline.sim.workloads.workload import Workload

CPU = torch.device("cpu")


def scenario(task: str = "digits-mlp", **evaluate: Any) -> Scenario:
    return Scenario.model_validate(
        {
            "name": "scored", "workload": {"task": task, "batch_size": 4, "optimizer": {"lr": 0.1}},
            "cluster": {
                "workers": 3, "compute": {"time": "10 ms"},
                "network": {"latency": "1 ms", "bandwidth": "1 Gbit/s"},
            },
            "schemes": ["all_reduce", {"local_sgd": {"period": 2}}],
            "stop": {"max_iterations": 4}, "evaluate": {"every": "2 steps", **evaluate},
        }
    )  # fmt: skip


def scored(seed: int, **evaluate: Any) -> Workload:
    wanted = resolve(scenario(**evaluate), CPU)
    problem = prepare(wanted, wanted.schemes[0], seed).problem
    assert problem is not None
    return problem.workload


def test_a_score_takes_the_examples_that_the_seed_draws() -> None:
    few, again, other = (scored(seed, examples=20) for seed in (1, 1, 2))
    x = few.start
    assert few.score(x) == again.score(x)
    assert few.score(x) != other.score(x)
    whole = find_task("digits-mlp").build(find_task("digits-mlp").options(), 1)
    assert few.score(x) != whole.score(x)
    assert scored(1, examples=10_000).score(x) == whole.score(x) == scored(1).score(x)


def test_examples_are_drawn_from_all_of_the_training_set() -> None:
    """Also where a score takes only its first ones by default."""
    train = torch.arange(9.0).unsqueeze(1), torch.zeros(9, 1)
    whole = supervised(
        "t", torch.nn.Linear(1, 1), torch.nn.functional.mse_loss, train, None, ("train_loss",), scored=2
    )
    x = torch.tensor([1.0, 0.0])  # weight and bias: an example's loss is the square of its number
    assert whole.score(x) == {"train_loss": 0.5}
    assert whole.scored is not None
    assert whole.scored.most == 2
    assert whole.scored.on_drawn(100, 1)(x)["train_loss"] == pytest.approx(sum(k**2 for k in range(9)) / 9)
    ones = {whole.scored.on_drawn(1, seed)(x)["train_loss"] for seed in range(100)}
    assert ones == {float(k**2) for k in range(9)}


def test_the_mean_over_draws_is_the_score_of_all() -> None:
    task = find_task("digits-mlp")
    whole = task.build(task.options(), 1)
    assert whole.scored is not None
    drawn = [whole.scored.on_drawn(50, seed)(whole.start)["train_loss"] for seed in range(200)]
    mean = torch.tensor(drawn, dtype=torch.float64)
    error = mean.std().item() / 200**0.5
    assert mean.mean().item() == pytest.approx(whole.score(whole.start)["train_loss"], abs=4 * error)


def test_a_large_model_is_scored_on_fewer_and_the_resolved_scenario_says_on_how_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert resolve(scenario(), CPU).evaluate.examples is None
    parameters = len(scored(1).start)
    monkeypatch.setattr(workload, "SCORED_NUMBERS", 100 * parameters)
    resolved = resolve(scenario(), CPU)
    assert resolved.evaluate.examples == 100
    assert parse(dump(resolved)) == resolved
    monkeypatch.setattr(workload, "SCORED_NUMBERS", parameters)
    assert resolve(scenario(), CPU).evaluate.examples == workload.LEAST_SCORED
    assert resolve(scenario(examples=7), CPU).evaluate.examples == 7


def test_both_drivers_and_all_schemes_score_the_same_examples() -> None:
    wanted = scenario(examples=30)
    runs = {engine: [*simulate(wanted, engine=engine)] for engine in ("event", "lockstep")}
    for event, lockstep in zip(runs["event"], runs["lockstep"], strict=True):
        assert [each.metrics for each in event.evaluations] == [each.metrics for each in lockstep.evaluations]
    first = {run.evaluations[0].metrics["train_loss"] for run in runs["event"]}
    assert len(first) == 1  # of the first model, which all share


def test_a_task_that_is_scored_as_a_whole_refuses_a_number() -> None:
    with pytest.raises(KeyedError, match="'quadratic' is always scored on all its examples") as caught:
        resolve(scenario("quadratic", examples=5), CPU)
    assert caught.value.at == ("evaluate", "examples")
