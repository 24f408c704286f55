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
    assert whole.scored.on_drawn(100, 1)[0](x)["train_loss"] == pytest.approx(sum(k**2 for k in range(9)) / 9)
    ones = {whole.scored.on_drawn(1, seed)[0](x)["train_loss"] for seed in range(100)}
    assert ones == {float(k**2) for k in range(9)}


def test_the_mean_over_draws_is_the_score_of_all() -> None:
    task = find_task("digits-mlp")
    whole = task.build(task.options(), 1)
    assert whole.scored is not None
    drawn = [whole.scored.on_drawn(50, seed)[0](whole.start)["train_loss"] for seed in range(200)]
    mean = torch.tensor(drawn, dtype=torch.float64)
    error = mean.std().item() / 200**0.5
    assert mean.mean().item() == pytest.approx(whole.score(whole.start)["train_loss"], abs=4 * error)


def of_squares(number: int, test: int = 4, scored: int = 2048) -> Workload:
    """Examples 0, 1, 2, ...: at ``ONE`` the loss of each is the square of its number."""
    sets = [(torch.arange(float(n)).unsqueeze(1), torch.zeros(n, 1)) for n in (number, test)]
    names, loss = ("train_loss", "test_loss"), torch.nn.functional.mse_loss
    return supervised("t", torch.nn.Linear(1, 1), loss, sets[0], sets[1], names, scored=scored)


ONE = torch.tensor([1.0, 0.0])


def sliced(workload: Workload, metric: str, x: torch.Tensor = ONE) -> tuple[int, list[float]]:
    assert workload.slices is not None
    return workload.slices(x, metric)


def test_slices_of_few_examples_are_their_own_losses() -> None:
    number, means = sliced(of_squares(9), "train_loss")
    assert (number, sorted(means)) == (9, [0.0, 1.0, 4.0, 9.0, 16.0, 25.0, 36.0, 49.0, 64.0])
    number, means = sliced(of_squares(9), "test_loss")
    assert (number, sorted(means)) == (4, [0.0, 1.0, 4.0, 9.0])
    assert sorted(sliced(of_squares(9, scored=3), "train_loss")[1]) == [0.0, 1.0, 4.0]  # as the score does


def test_slices_of_many_examples_have_their_score_in_the_mean_and_are_mixed() -> None:
    number, means = sliced(of_squares(64), "train_loss")
    assert (number, len(means)) == (64, 16)
    assert sum(means) / 16 == of_squares(64).score(ONE)["train_loss"] == sum(k**2 for k in range(64)) / 64
    assert means != sorted(means)
    assert max(means) < 61**2  # the last four, which a slice in the set's order has
    assert sliced(of_squares(64), "train_loss") == (number, means)  # under every seed


def test_slices_of_an_accuracy_are_shares_of_right_answers() -> None:
    few = scored(1, examples=64)
    number, means = sliced(few, "test_accuracy", few.start)
    assert (number, len(means)) == (64, 16)
    assert all((4 * each).is_integer() for each in means)
    assert sum(means) / 16 == few.score(few.start)["test_accuracy"]


@pytest.mark.slow
def test_the_standard_error_falls_with_the_root_of_the_examples() -> None:
    """And is the one that the scores of many draws have."""

    def errors(examples: int) -> tuple[float, float]:
        drawn = [scored(seed, examples=examples) for seed in range(40)]
        x = drawn[0].start
        scores = torch.tensor([each.score(x)["train_loss"] for each in drawn], dtype=torch.float64)
        means = torch.tensor([sliced(each, "train_loss", x)[1] for each in drawn], dtype=torch.float64)
        return (means.var(dim=1) / 16).mean().sqrt().item(), scores.std().item()

    small, large = errors(32), errors(128)
    assert small[0] == pytest.approx(2 * large[0], rel=0.1)
    assert small[0] == pytest.approx(small[1], rel=0.3)  # 40 draws know it to 11 %, 4 times that is rare
    assert large[0] == pytest.approx(large[1], rel=0.4)


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
