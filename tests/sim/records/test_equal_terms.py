from __future__ import annotations

from dataclasses import replace

from paceline.sim.records.run import Evaluation, Run
from paceline.sim.records.scenario_facts import Goal
from paceline.sim.records.summarise import equal_terms, score_at
from paceline.sim.records.summary import Equal
from tests.support.made_runs import made_run

TARGET = Goal(metric="test_accuracy", value=0.95)


def test_the_winner_says_when_and_how_much() -> None:
    fast = [made_run("fast", seed, reached_s=10.0 + seed, num_bytes=100 + seed) for seed in range(3)]
    slow = [made_run("slow", seed, reached_s=30.0, num_bytes=500) for seed in range(3)]
    found = equal_terms([*fast, *slow], TARGET, fast)
    assert found == {"metric": "test_accuracy", "falling": False, "time_s": 11.0, "bytes": 101.0}
    # After 11 s the slow one has been scored at 0 s only: its next score is that of 15 s.
    assert _median(slow, found, "time_s") == 0.1
    # 101 bytes are less than half of 500.
    assert _median(slow, found, "bytes_sent") == 0.1
    # Of the fast ones two have arrived; the third, 12 s, stood at 0.5.
    assert _median(fast, found, "time_s") == 0.95


def test_without_a_winner_the_first_to_end_does() -> None:
    runs = [
        made_run("a", reached_s=None, wall_s=60.0, num_bytes=10),
        made_run("b", reached_s=None, wall_s=90.0, num_bytes=30),
        made_run("gone", reached_s=None, wall_s=2.0, status="diverged"),
    ]
    found = equal_terms(runs, TARGET, [])
    assert found == {"metric": "test_accuracy", "falling": False, "time_s": 60.0, "bytes": 10.0}
    assert _median(runs[:1], found, "time_s") == 0.8
    assert _median(runs[1:2], found, "time_s") == 0.5


def test_a_falling_metric_and_one_that_is_not_finite() -> None:
    goal = Goal(metric="train_loss", value=0.4)
    runs = [made_run("a", reached_s=None), made_run("gone", reached_s=None, status="diverged")]
    found = equal_terms(runs, goal, [])
    assert found == {"metric": "train_loss", "falling": True, "time_s": 10.0, "bytes": 1000.0}
    assert _median(runs[:1], found, "time_s") == 0.5
    assert _median(runs[1:], found, "time_s") is None  # it diverged, and counts as worst


def test_nothing_scored_or_nothing_sent() -> None:
    untrained = replace(made_run("a"), evaluations=())
    assert equal_terms([untrained], None, []) is None
    alone = made_run("a", reached_s=None, num_bytes=0)
    found = equal_terms([alone], None, [])
    assert found == {"metric": "test_accuracy", "falling": False, "time_s": 10.0, "bytes": None}
    assert score_at([alone], found, "bytes_sent") is None


def test_a_target_that_is_met_at_the_start() -> None:
    start = Evaluation(0, 0.0, 0, {"test_accuracy": 0.96})
    run = replace(made_run("a", reached_s=0.0), evaluations=(start,))
    found = equal_terms([run], TARGET, [run])
    assert found is not None
    assert (found["time_s"], found["bytes"]) == (0.0, None)


def _median(runs: list[Run], equal: Equal | None, by: str) -> float | None:
    assert equal is not None
    found = score_at(runs, equal, "time_s" if by == "time_s" else "bytes_sent")
    assert found is not None
    return found["median"]
