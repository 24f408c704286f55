"""What is scored, on examples small enough to do by hand."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from paceline.sim.config.settings import Settings
from paceline.sim.records.run import Evaluation, On
from paceline.sim.training.scoring import (
    HandOver,
    KnownScores,
    Scorer,
    Target,
    as_row,
    as_they_are,
    score_models,
)
from paceline.sim.training.snapshots import Published
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
    lambda options, seed: Facts(1, False, ("train_loss", "test_accuracy")),
    _no_workload,
)


def model(value: float) -> Tensor:
    return torch.tensor([value])


ON_MEAN: tuple[On, ...] = ("mean",)
EVERYTHING: tuple[On, ...] = ("mean", "workers", "worst", "leader")


def scorer(target: Target | None = None, every: int = 1, on: On = "mean") -> Scorer[Tensor]:
    """Of two workers that begin at 0."""
    scores = Scorer(WORKLOAD, TASK, every, on, target, as_they_are)
    scores.begin([model(0.0), model(0.0)])
    return scores


def publish(
    scores: Scorer[Tensor],
    worker: int,
    step: int,
    time_s: float,
    value: float | None,
    leader: float | None = None,
    averaged: float | None = None,
    bytes_sent: int = 0,
) -> bool:
    """Publish models of one number each."""
    models = [None if each is None else model(each) for each in (value, leader, averaged)]
    return scores.publish(Published(worker, step, time_s, models[0], bytes_sent, models[1], models[2]))


def test_four_things_can_be_scored() -> None:
    scores = score_models(WORKLOAD, TASK, [model(-1.0), model(2.0), model(5.0)], EVERYTHING)
    distance = 6**0.5  # of -3, 0 and 3 the root mean square
    assert {on: (s["train_loss"], s["test_accuracy"]) for on, s in scores.items()} == {
        "mean": (4.0, 0.9),
        "workers": (10.0, pytest.approx(2.3 / 3)),  # of 1, 4, 25 and of 0.6, 0.9, 0.8
        "worst": (25.0, 0.6),
        "leader": (1.0, 0.6),  # the lowest loss, though it has the lowest accuracy
    }
    assert {s["consensus_distance"] for s in scores.values()} == {distance}


def test_a_scheme_may_name_its_leader() -> None:
    scores = score_models(WORKLOAD, TASK, [model(1.0), model(2.0)], EVERYTHING, leader=model(3.0))
    assert scores["leader"]["train_loss"] == 9.0
    assert scores["leader"]["test_accuracy"] == 1.0


def _counting(calls: list[Tensor]) -> Workload:
    def counted(x: Tensor) -> Mapping[str, float]:
        calls.append(x)
        return _score(x)

    return replace(WORKLOAD, score=counted)


def test_nothing_is_scored_that_nobody_asks_for() -> None:
    calls: list[Tensor] = []
    score_models(_counting(calls), TASK, [model(1.0), model(2.0), model(6.0)], ON_MEAN)
    assert [x.item() for x in calls] == [3.0]
    calls.clear()
    scores = score_models(_counting(calls), TASK, [model(2.0)] * 3, EVERYTHING)
    assert len(calls) == 1, "equal models are scored once"
    assert scores["mean"] == scores["workers"] == scores["worst"] == scores["leader"]


def test_a_worker_that_has_diverged_is_the_worst_and_not_the_leader() -> None:
    scores = score_models(WORKLOAD, TASK, [model(float("nan")), model(1.0)], EVERYTHING)
    assert [scores[on]["train_loss"] for on in EVERYTHING] == [None, None, None, 1.0]


def test_a_row_has_what_counts_under_the_plain_names() -> None:
    pair: tuple[On, ...] = ("worst", "mean")
    scores = score_models(WORKLOAD, TASK, [model(0.0), model(2.0)], pair)
    assert as_row(scores, "worst") == {
        "train_loss": 4.0, "test_accuracy": 0.7, "consensus_distance": 1.0,
        "train_loss_on_mean": 1.0, "test_accuracy_on_mean": 0.8,
    }  # fmt: skip


def test_the_latest_models_are_scored_when_the_sum_of_steps_says_so() -> None:
    scores = scorer(on="leader")
    publish(scores, 0, 0, 1.0, 1.0, leader=5.0, bytes_sent=10)
    publish(scores, 0, 1, 2.0, 3.0, bytes_sent=20)
    publish(scores, 1, 0, 3.0, 2.0, bytes_sent=5)
    publish(scores, 0, 2, 4.0, 4.0, bytes_sent=30)
    assert scores.due_s == 4.0  # what else comes at this instant belongs to it
    scores.settle()
    assert [(e.step, e.time_s, e.bytes_sent, e.steps) for e in scores.evaluations] == [
        (0, 0.0, 0, (0, 0)), (1, 2.0, 20, (2, 0)), (2, 4.0, 35, (3, 1)),
    ]  # fmt: skip
    assert scores.evaluations[2].metrics["train_loss"] == 25.0  # the last leader named
    assert scores.evaluations[2].metrics["consensus_distance"] == 1.0  # of 4 and 2


def test_times_that_differ_by_rounding_are_one_instant() -> None:
    scores = scorer()
    publish(scores, 0, 0, 1.0, 1.0)
    publish(scores, 1, 0, 1.0 + 1e-12, 3.0)
    publish(scores, 0, 1, 1.0 + 2e-12, 5.0)
    publish(scores, 1, 1, 2.0, 7.0)
    scores.settle()
    assert [(e.time_s, e.steps) for e in scores.evaluations[1:]] == [(1.0 + 1e-12, (2, 1)), (2.0, (2, 2))]


def test_steps_of_a_lost_worker_stay_counted_and_its_model_does_not() -> None:
    scores = scorer()
    publish(scores, 0, 0, 1.0, 9.0)
    scores.lose(0, 1.5)
    publish(scores, 1, 0, 2.0, 2.0)
    publish(scores, 1, 1, 3.0, 3.0)
    publish(scores, 1, 2, 4.0, 4.0)
    scores.settle()
    assert [(e.step, e.steps, e.metrics["train_loss"]) for e in scores.evaluations[1:]] == [
        (1, (-1, 1), 4.0), (2, (-1, 3), 16.0),
    ]  # fmt: skip


def test_what_is_not_kept_is_not_scored() -> None:
    scores = scorer()
    publish(scores, 0, 0, 1.0, 1.0)
    publish(scores, 1, 0, 2.0, None)
    scores.settle()
    assert scores.evaluations[1].steps == (1, 0)
    assert scores.evaluations[1].metrics["train_loss"] == 0.25


def test_an_average_is_scored_once_whoever_publishes_it() -> None:
    calls: list[Tensor] = []
    scores = Scorer(_counting(calls), TASK, 1, "averaged", None, as_they_are)
    scores.begin([model(0.0), model(0.0)])
    publish(scores, 0, 0, 1.0, 1.0)
    publish(scores, 0, 1, 2.0, 8.0, averaged=3.0)
    publish(scores, 1, 0, 3.0, 2.0)
    publish(scores, 1, 1, 4.0, 8.0, averaged=3.0)
    scores.settle()
    assert [e.metrics["train_loss"] for e in scores.evaluations] == [0.0, 9.0, 9.0]
    assert [x.item() for x in calls] == [0.0, 3.0]
    assert not scores.without_average()


def test_a_scheme_that_publishes_no_average_is_told() -> None:
    scores = scorer(on="averaged")
    publish(scores, 0, 0, 1.0, 1.0)
    publish(scores, 1, 0, 1.0, 1.0)
    scores.settle()
    assert "the scheme published no average" in scores.without_average()


def test_the_target_is_that_of_what_it_is_on() -> None:
    for on, reached_s in (("mean", 1.0), ("worst", 2.0), ("leader", 1.0)):
        scores = scorer(Target("test_accuracy", 0.85, falling=False, on=on))  # type: ignore[arg-type]
        for step, models in enumerate([(2.0, 6.0), (3.0, 2.0)]):
            for worker, value in enumerate(models):
                publish(scores, worker, step, step + 1.0, value)
        scores.settle()
        assert scores.reached_s == reached_s, on


def test_a_run_that_its_target_ends_is_not_scored_again() -> None:
    scores = scorer(Target("test_accuracy", 0.8, falling=False, on="mean"))
    publish(scores, 0, 0, 1.0, 1.0)
    publish(scores, 1, 0, 3.0, 1.0)
    assert scores.settle()
    finals = {0: model(5.0), 1: model(1.0)}
    scores.finish(3.0, finals, None)
    assert [(e.step, e.time_s, e.metrics["train_loss"]) for e in scores.evaluations[1:]] == [
        (0, 1.0, 0.25), (1, 3.0, 1.0),
    ]  # fmt: skip
    # A real run goes on, and has an end of its own.
    publish(scores, 0, 1, 3.5, 5.0)
    publish(scores, 1, 1, 4.0, 1.0)
    scores.finish(4.0, finals, None)
    assert [(e.step, e.time_s, e.metrics["train_loss"]) for e in scores.evaluations[3:]] == [(2, 4.0, 9.0)]


def test_the_crossing_is_looked_for_between_two_scorings() -> None:
    scores = scorer(Target("train_loss", 100.0, falling=False, on="mean"), every=100)
    for step in range(100):
        for worker in range(2):
            publish(scores, worker, step, step + 1.0, float(step + 1))
    assert scores.settle()
    assert scores.reached_s == 10.0  # 10 squared is 100: the very step
    assert scores.bracket_s == (9.0, 10.0)  # no model was kept in between
    times = [e.time_s for e in scores.evaluations]
    assert times == sorted(times)
    assert times[-1] == 100.0
    assert len(times) < 12  # by bisection


def test_a_bracket_of_two_per_cent_is_narrow_enough() -> None:
    scores = scorer(Target("train_loss", 777.0**2, falling=False, on="mean"), every=1000)
    for step in range(1000):
        for worker in range(2):
            publish(scores, worker, step, step + 1.0, float(step + 1))
    scores.settle()
    low_s, high_s = scores.bracket_s or (0.0, 0.0)
    assert low_s < 777.0 <= high_s == scores.reached_s
    assert 0.0 < high_s - low_s <= 0.02 * high_s


def test_where_nothing_is_kept_in_between_the_bracket_is_given() -> None:
    scores = scorer(Target("train_loss", 100.0, falling=False, on="mean"), every=20)
    for step in range(20):
        for worker in range(2):
            publish(scores, worker, step, step + 1.0, 20.0 if step == 19 else None)
    scores.settle()
    assert (scores.reached_s, scores.bracket_s) == (20.0, (0.0, 20.0))


@given(
    st.integers(2, 4),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=60),
    st.integers(1, 4),
    st.randoms(use_true_random=False),
)
def test_scores_do_not_depend_on_the_order_inside_an_instant(
    workers: int, moves: list[tuple[int, int]], every: int, shuffle: random.Random
) -> None:
    """Whoever comes first at one instant: the same evaluations (a law of the one rule)."""
    time_s, steps = 0.0, [0] * workers
    instants: dict[float, list[Published[Tensor]]] = {}
    for who, pause in moves:
        worker = who % workers
        time_s += pause
        here = instants.setdefault(time_s + 1.0, [])
        here.append(Published(worker, steps[worker], time_s + 1.0, model(float(steps[worker] + 3 * worker))))
        steps[worker] += 1

    def evaluations(permute: bool) -> list[Evaluation]:
        scores = Scorer(WORKLOAD, TASK, every, "worst", None, as_they_are)
        scores.begin([model(0.0)] * workers)
        for here in instants.values():
            order = list(here)
            if permute:  # each worker's own publications stay in order
                ranks = [each.worker for each in here]
                shuffle.shuffle(ranks)
                queues = {rank: [each for each in here if each.worker == rank] for rank in set(ranks)}
                order = [queues[rank].pop(0) for rank in ranks]
            for each in order:
                scores.publish(each)
        scores.settle()
        return scores.evaluations

    assert evaluations(permute=False) == evaluations(permute=True)


ALL_KINDS: tuple[On | None, ...] = ("averaged", "leader", "mean", None)


def of_all(published: On | None, target: Target | None = None) -> Scorer[Tensor]:
    """A scorer of what two workers publish for all, who begin at 0; an all-reduce: 0.5 s, 10 bytes."""
    scores = Scorer(
        WORKLOAD, TASK, 1, "published", target, as_they_are, published=published, hand_over=HandOver(0.5, 10)
    )
    scores.begin([model(0.0), model(0.0)])
    return scores


@pytest.mark.parametrize("published", ALL_KINDS)
def test_published_is_the_model_that_somebody_can_use(published: On | None) -> None:
    scores = of_all(published)
    for step, average in enumerate((None, 3.0, None)):
        for worker in range(2):
            publish(scores, worker, step, 1.0 + step + 0.1 * worker, 2.0 * step + worker, 7.0, average, 100)
    scores.settle()
    row = [(each.time_s, each.bytes_sent, each.metrics["train_loss"]) for each in scores.evaluations[1:]]
    assert (
        row
        == {
            "averaged": [
                (1.1, 200, 0.0),
                (2.1, 200, 9.0),
                (3.1, 200, 9.0),
            ],  # the first models, then the average
            "leader": [(1.1, 200, 49.0), (2.1, 200, 49.0), (3.1, 200, 49.0)],
            "mean": [(1.6, 210, 0.25), (2.6, 210, 6.25), (3.6, 210, 20.25)],  # an all-reduce later
            None: [(1.1, 200, 49.0), (2.1, 200, 9.0), (3.1, 200, 9.0)],  # a leader's, then an average
        }[published]
    )
    assert scores.evaluations[0].time_s == 0.0, "everybody has the first models"


def test_an_average_counts_from_the_worker_that_has_it_first() -> None:
    target = Target("train_loss", 8.0, falling=False, on="published")
    scores = of_all("averaged", target)
    publish(scores, 0, 0, 1.0, 0.0, averaged=3.0)
    publish(scores, 1, 0, 4.0, 0.0, averaged=3.0)
    scores.settle()
    assert (scores.reached_s, scores.bracket_s) == (1.0, (0.0, 1.0))


def test_a_target_of_the_mean_model_is_met_when_it_has_been_handed_over() -> None:
    scores = of_all("mean", Target("train_loss", 8.0, falling=False, on="published"))
    for step in range(4):
        for worker in range(2):
            publish(scores, worker, step, 1.0 + step, float(step))
    scores.settle()
    assert scores.reached_s == 4.5
    assert scores.evaluations[-1].time_s == 4.5


@pytest.mark.parametrize(("published", "missing"), [("averaged", True), ("mean", False), (None, False)])
def test_a_run_without_an_average_says_so(published: On | None, missing: bool) -> None:
    scores = of_all(published)
    for worker in range(2):
        publish(scores, worker, 0, 1.0, 1.0)
    scores.settle()
    assert bool(scores.without_average()) is missing


def _in_slices(calls: list[float]) -> Workload:
    """Slices of two: the score, one less and one more."""

    def slices(x: Tensor, metric: str) -> tuple[int, list[float]]:
        calls.append(x.item())
        return 32, [_score(x)[metric] - 1, _score(x)[metric] + 1]

    return replace(WORKLOAD, slices=slices)


def run_to(
    target: Target, calls: list[float], every: int = 4, known: KnownScores | None = None
) -> Scorer[Tensor]:
    """Two workers whose models are the numbers of their steps, a step a second."""
    scores = Scorer(_in_slices(calls), TASK, every, "mean", target, as_they_are, known=known)
    scores.begin([model(0.0), model(0.0)])
    for step in range(24):
        for worker in range(2):
            publish(scores, worker, step, step + 1.0, float(step + 1), leader=-1.0, averaged=float(step + 1))
    scores.settle()
    return scores


def test_the_model_that_meets_the_target_is_scored_in_slices_and_no_other() -> None:
    calls: list[float] = []
    scores = run_to(Target("train_loss", 100.0, falling=False, on="mean"), calls)
    assert calls == [10.0]
    assert scores.reached_s == 10.0
    # Scored before: at 4 s, at 8 s (the first before 7.5 s, and what follows), and at 9 s by bisection.
    shares, missing = (-0.6, -0.2, -0.1), (16.0 - 100, 64.0 - 100, 81.0 - 100)
    worth = sum(x * x for x in shares) / sum(x * y for x, y in zip(shares, missing, strict=True))
    assert scores.slices == {"examples": 32, "means": [99.0, 101.0], "worth": pytest.approx(worth)}
    plain = scorer(Target("train_loss", 100.0, falling=False, on="mean"), every=4)
    for step in range(24):
        for worker in range(2):
            publish(plain, worker, step, step + 1.0, float(step + 1))
    plain.settle()
    assert (plain.evaluations, plain.slices) == (scores.evaluations, None)  # no score is another


def test_slices_are_of_the_one_model_that_the_target_is_about() -> None:
    calls: list[float] = []
    for on in ("averaged", "leader", "workers", "worst"):
        value = 100.0 if on != "leader" else 1.0
        run_to(Target("train_loss", value, falling=False, on=on), calls)
    assert calls == [10.0, -1.0]
    run_to(Target("train_loss", 10_000.0, falling=False, on="mean"), calls)  # never met
    run_to(Target("train_loss", 0.0, falling=False, on="mean"), calls)  # by the first models
    assert calls == [10.0, -1.0]


def test_slices_of_a_trajectory_are_made_once_for_all_clocks() -> None:
    calls: list[float] = []
    known, target = KnownScores(), Target("train_loss", 100.0, falling=False, on="mean")
    first, second = (run_to(target, calls, known=known) for _ in range(2))
    assert calls == [10.0]
    assert first.slices == second.slices
