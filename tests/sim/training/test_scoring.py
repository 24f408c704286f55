"""What is scored, on examples small enough to do by hand."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from paceline.sim.config.settings import Settings
from paceline.sim.training.scoring import Scorer, Target, recorded, score_models
from paceline.sim.workloads.workload import Facts, Task, Workload


def _score(x: Tensor) -> Mapping[str, float]:
    """The loss is x squared; the accuracy is highest at 3, where the loss is not lowest."""
    return {"train_loss": x.item() ** 2, "test_accuracy": 1 - abs(x.item() - 3) / 10}


def _never(x: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
    raise AssertionError("nothing is trained here")


def _no_workload(options: Settings, seed: int) -> Workload:
    raise AssertionError("nothing is built here")


WORKLOAD = Workload(
    task="square",
    start=torch.zeros(1),
    loss=_never,
    inputs=torch.zeros(1, 1),
    targets=torch.zeros(1),
    labels=None,
    segments=(("model", 0, 1),),
    score=_score,
)
TASK = Task(
    "square",
    Settings,
    ("train_loss", "test_accuracy"),
    frozenset({"train_loss"}),
    lambda options, seed: Facts(1, False, ("train_loss", "test_accuracy")),
    _no_workload,
)


def model(value: float) -> Tensor:
    return torch.tensor([value])


def scorer(synchronous: bool, target: Target | None = None, every: int = 1) -> Scorer:
    made = Scorer(WORKLOAD, TASK, 2, every, "mean", synchronous, target)
    made.begin([model(0.0), model(0.0)])
    return made


def test_four_things_are_scored() -> None:
    found = score_models(WORKLOAD, TASK, [model(-1.0), model(2.0), model(5.0)])
    distance = 6**0.5  # of -3, 0 and 3 the root mean square
    assert {on: (s["train_loss"], s["test_accuracy"]) for on, s in found.items()} == {
        "mean": (4.0, 0.9),
        "workers": (10.0, pytest.approx(2.3 / 3)),  # of 1, 4, 25 and of 0.6, 0.9, 0.8
        "worst": (25.0, 0.6),
        "leader": (1.0, 0.6),  # the lowest loss, though it has the lowest accuracy
    }
    assert {s["consensus_distance"] for s in found.values()} == {distance}


def test_a_scheme_may_name_its_leader() -> None:
    found = score_models(WORKLOAD, TASK, [model(1.0), model(2.0)], leader=model(3.0))
    assert found["leader"]["train_loss"] == 9.0
    assert found["leader"]["test_accuracy"] == 1.0


def test_equal_models_are_scored_once() -> None:
    calls = []

    def counted(x: Tensor) -> Mapping[str, float]:
        calls.append(x)
        return _score(x)

    workload = Workload(**{**WORKLOAD.__dict__, "score": counted})
    found = score_models(workload, TASK, [model(2.0)] * 3)
    assert len(calls) == 1
    assert found["mean"] == found["workers"] == found["worst"] == found["leader"]


def test_a_worker_that_has_diverged_is_the_worst_and_not_the_leader() -> None:
    found = score_models(WORKLOAD, TASK, [model(float("nan")), model(1.0)])
    assert [found[on]["train_loss"] for on in ("mean", "workers", "worst", "leader")] == [
        None, None, None, 1.0,
    ]  # fmt: skip


def test_a_row_has_what_counts_under_the_plain_names() -> None:
    found = score_models(WORKLOAD, TASK, [model(0.0), model(2.0)])
    assert recorded(found, "worst") == {
        "train_loss": 4.0, "test_accuracy": 0.7, "consensus_distance": 1.0,
        "train_loss_on_mean": 1.0, "test_accuracy_on_mean": 0.8,
        "train_loss_on_workers": 2.0, "test_accuracy_on_workers": 0.8,
        "train_loss_on_leader": 0.0, "test_accuracy_on_leader": 0.7,
    }  # fmt: skip


def test_a_step_of_a_synchronous_scheme_is_scored_when_all_have_done_it() -> None:
    made = scorer(synchronous=True)
    assert not made.publish(0, 0, 1.0, model(1.0), bytes_sent=10, leader=model(5.0))
    assert not made.publish(0, 1, 2.0, model(9.0), bytes_sent=20)
    assert not made.publish(1, 0, 3.0, model(3.0), bytes_sent=7)
    assert [(e.step, e.time_s, e.bytes_sent) for e in made.evaluations] == [(0, 0.0, 0), (1, 3.0, 17)]
    metrics = made.evaluations[1].metrics
    assert (metrics["train_loss"], metrics["train_loss_on_leader"]) == (4.0, 25.0)


def test_an_asynchronous_scheme_is_scored_when_its_workers_have_done_so_many_steps_on_average() -> None:
    made = scorer(synchronous=False)
    made.publish(0, 0, 1.0, model(1.0), bytes_sent=10, leader=model(5.0))
    made.publish(0, 1, 2.0, model(3.0), bytes_sent=20)
    made.publish(1, 0, 3.0, model(2.0), bytes_sent=5)
    made.publish(0, 2, 4.0, model(4.0), bytes_sent=30)
    assert [(e.step, e.time_s, e.bytes_sent) for e in made.evaluations] == [
        (0, 0.0, 0), (1, 2.0, 20), (2, 4.0, 35),
    ]  # fmt: skip
    assert made.evaluations[2].metrics["train_loss"] == 9.0  # the mean of 4 and 2
    assert made.evaluations[2].metrics["train_loss_on_leader"] == 25.0  # the last one named


def test_the_target_is_that_of_what_it_is_on() -> None:
    for on, reached_s in (("mean", 1.0), ("worst", 2.0), ("leader", 1.0)):
        target = Target("train_loss", 4.0, falling=True, on=on)  # type: ignore[arg-type]
        made = scorer(synchronous=True)
        made.target = target
        made.evaluations.clear()
        for step, models in enumerate([(1.0, 3.0), (0.0, 2.0)]):
            for worker, value in enumerate(models):
                made.publish(worker, step, step + 1.0, model(value))
        assert made.reached_s == reached_s, on


def test_a_run_that_its_target_ends_is_not_scored_again() -> None:
    ended = scorer(synchronous=True, target=Target("test_accuracy", 0.8, falling=False))
    ended.publish(0, 0, 1.0, model(1.0))
    ended.publish(0, 1, 2.0, model(5.0))
    assert ended.publish(1, 0, 3.0, model(1.0))
    ended.finish(2, 3.0, 0, [model(5.0), model(1.0)], None)
    assert [(e.step, e.time_s, e.metrics["train_loss"]) for e in ended.evaluations[1:]] == [(1, 3.0, 1.0)]
    # A real run goes on, and has an end of its own.
    ended.finish(2, 4.0, 0, [model(5.0), model(1.0)], None)
    assert [(e.step, e.time_s) for e in ended.evaluations[1:]] == [(1, 3.0), (2, 4.0)]
