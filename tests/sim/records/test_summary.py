from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from paceline.sim.errors import InputError
from paceline.sim.records.run import Pace
from paceline.sim.records.scenario_facts import Goal
from paceline.sim.records.summarise import summarise
from paceline.sim.records.summary import SchemeFacts, SchemeSummary, ranking
from paceline.sim.records.verdict import BEYOND_CHANCE
from tests.support.made_runs import made_run

TARGET = Goal(metric="test_accuracy", value=0.95)


def row_of(rows: list[SchemeSummary], label: str) -> SchemeSummary:
    return next(row for row in rows if row["label"] == label)


def test_one_run_of_each_has_a_winner_and_no_interval() -> None:
    found = summarise("s", [made_run("slow", reached_s=30.0), made_run("fast", reached_s=10.0)])
    assert found["winner"] == "fast"
    assert row_of(found["summary"], "slow")["ratio_to_best"] == {"median": 3.0, "low": None, "high": None}
    slow, fast = found["summary"]
    assert slow["label"] == "slow"  # in order of appearance
    assert slow["time_to_target_s"] == {"median": 30.0, "low": None, "high": None}
    assert slow["ratio_to_best"]["median"] == 3.0
    assert fast["ratio_to_best"]["median"] == 1.0
    assert slow["p_win"] is None
    assert fast["steps_to_target"] == 100.0


def test_a_run_row_has_the_documented_fields() -> None:
    run = made_run("a", seed=3, reached_s=10.0, num_bytes=77)
    (row,) = summarise("s", [run])["runs"]
    assert row == {
        "scheme": "a",
        "label": "a",
        "seed": 3,
        "source": "simulated",
        "reached_target": True,
        "time_to_target_s": 10.0,
        "steps_to_target": 100,
        "wall_clock_s": 10.0,
        "iterations": 100.0,
        "final": {"train_loss": 0.5, "test_accuracy": 0.95, "consensus_distance": 0.1},
        "bytes_sent": 77,
        "time_s": {"compute": 5.0, "communicate": 2.5, "wait": 2.5},
        "status": "completed",
        "digest": "00" * 32,
        "rows": {"evaluations": 3, "operations": 0},
    }


def test_a_run_that_trained_nothing_has_null_scores() -> None:
    run = replace(made_run("a", reached_s=None), evaluations=())
    found = summarise("s", [run])
    assert found["runs"][0]["final"] == {
        "train_loss": None,
        "test_accuracy": None,
        "consensus_distance": None,
    }
    assert found["winner"] == "a"  # alone, by its time per step
    assert found["verdict"]["text"] == "a takes 100 ms a step"


TIMES = [10.0, 12.0, 17.0, 19.0, 25.0]


def test_medians_and_intervals_over_repeats() -> None:
    runs = [made_run("a", seed, reached_s=time) for seed, time in enumerate(TIMES)]
    runs += [made_run("b", seed, reached_s=2 * time) for seed, time in enumerate(TIMES)]
    found = summarise("s", runs)
    assert row_of(found["summary"], "a")["time_to_target_s"] == {"median": 17.0, "low": 10.0, "high": 25.0}
    assert row_of(found["summary"], "b")["time_to_target_s"] == {"median": 34.0, "low": 20.0, "high": 50.0}
    # Twice as long on every seed: paired, the ratio is certain although the times overlap.
    assert row_of(found["summary"], "b")["ratio_to_best"] == {"median": 2.0, "low": 2.0, "high": 2.0}
    assert found["paired"] == 5
    assert [(row["wins"], row["p_win"]) for row in found["summary"]] == [(5.0, 5.5 / 6), (0.0, 0.5 / 6)]


def test_the_chance_to_win_follows_the_races() -> None:
    # a wins three of five races.
    runs = [made_run("a", seed, reached_s=time) for seed, time in enumerate([1.0, 1.0, 1.0, 9.0, 9.0])]
    runs += [made_run("b", seed, reached_s=5.0) for seed in range(5)]
    found = summarise("s", runs)
    assert found["winner"] == "a"
    assert row_of(found["summary"], "a")["p_win"] == pytest.approx(3.5 / 6)
    assert row_of(found["summary"], "b")["p_win"] == pytest.approx(2.5 / 6)
    assert [row["wins"] for row in found["summary"]] == [3.0, 2.0]
    # Four races say nothing about chance.
    few = summarise("s", [run for run in runs if run.seed < 4])
    assert [row["p_win"] for row in few["summary"]] == [None, None]


def test_races_count_where_all_took_part_and_ties_are_shared() -> None:
    runs = [made_run("a", seed, reached_s=time) for seed, time in enumerate([1.0, 2.0, 3.0])]
    runs += [made_run("b", seed, reached_s=time) for seed, time in enumerate([1.0, 5.0, None])][:2]
    found = summarise("s", runs)
    assert found["paired"] == 2
    assert [row["wins"] for row in found["summary"]] == [1.5, 0.5]
    assert [row["p_win"] for row in found["summary"]] == [None, None]
    nobody = [made_run(label, reached_s=None) for label in ("a", "b")]
    assert [row["wins"] for row in summarise("s", nobody, TARGET)["summary"]] == [0.0, 0.0]


def test_scores_at_equal_time_and_bytes() -> None:
    runs = [made_run("a", reached_s=10.0, num_bytes=500), made_run("b", reached_s=18.0, num_bytes=800)]
    found = summarise("s", runs, {"metric": "test_accuracy", "value": 0.95})
    assert found["equal"] == {"metric": "test_accuracy", "falling": False, "time_s": 10.0, "bytes": 500.0}
    # b's second score is that of 9 s, after 400 bytes.
    expected = [{"median": 0.95, "low": None, "high": None}, {"median": 0.5, "low": None, "high": None}]
    assert [row["score_at_equal_time"] for row in found["summary"]] == expected
    assert [row["score_at_equal_bytes"] for row in found["summary"]] == expected


def test_a_censored_run_counts_as_infinitely_late() -> None:
    runs = [made_run("a", seed, reached_s=10.0 + seed) for seed in range(3)]
    runs += [made_run("a", seed, reached_s=None, wall_s=60.0) for seed in (3, 4)]
    row = summarise("s", runs)["summary"][0]
    assert row["time_to_target_s"] == {"median": 12.0, "low": 10.0, "high": None}
    assert row["at_least_s"] is None
    assert (row["runs"], row["reached"]) == (5, 3)


def test_who_mostly_fails_does_not_win_however_fast_its_luck() -> None:
    runs = [made_run("lucky", 0, reached_s=1.0)]
    runs += [made_run("lucky", seed, reached_s=None, wall_s=60.0) for seed in (1, 2)]
    runs += [made_run("steady", seed, reached_s=50.0) for seed in (0, 1, 2)]
    found = summarise("s", runs)
    assert found["winner"] == "steady"
    lucky = row_of(found["summary"], "lucky")
    assert lucky["time_to_target_s"] == {"median": None, "low": None, "high": None}
    assert lucky["at_least_s"] == 60.0
    assert lucky["ratio_to_best"]["median"] is None


def test_nobody_reached_it() -> None:
    runs = [made_run("a", reached_s=None, wall_s=60.0), made_run("b", reached_s=None, wall_s=60.0)]
    found = summarise("s", runs, {"metric": "test_accuracy", "value": 0.99})
    assert found["winner"] is None
    assert found["target"] == {"metric": "test_accuracy", "value": 0.99}
    assert [row["at_least_s"] for row in found["summary"]] == [60.0, 60.0]


def test_a_diverged_run_has_no_lower_bound() -> None:
    run = made_run("a", reached_s=None, wall_s=5.0, status="diverged", message="the loss is not finite")
    found = summarise("s", [run])
    assert found["summary"][0]["at_least_s"] is None
    assert found["summary"][0]["diverged"] == 1
    assert found["runs"][0]["final"]["train_loss"] is None
    assert found["runs"][0]["message"] == "the loss is not finite"


def test_sources_are_summarised_apart_and_the_first_decides() -> None:
    runs = [made_run("a", reached_s=10.0), made_run("b", reached_s=20.0)]
    runs.append(made_run("a", reached_s=40.0, source="measured"))
    runs.append(made_run("b", reached_s=30.0, source="measured"))
    found = summarise("s", runs)
    assert found["winner"] == "a"
    assert [(r["source"], r["label"], r["ratio_to_best"]["median"]) for r in found["summary"]] == [
        ("simulated", "a", 1.0),
        ("simulated", "b", 2.0),
        ("measured", "a", 40.0 / 30.0),
        ("measured", "b", 1.0),
    ]


def test_steps_to_target_end_where_the_target_was_met() -> None:
    # A real run of fixed length goes on: the target was met at its middle evaluation.
    run = made_run("a", reached_s=5.0, wall_s=10.0, steps=100, source="measured")
    assert summarise("s", [run])["summary"][0]["steps_to_target"] == 50.0
    # In an older record workers that were ahead were scored once more at that instant.
    met = run.evaluations[1]
    run = replace(run, evaluations=(*run.evaluations[:2], replace(met, step=70), *run.evaluations[2:]))
    assert summarise("s", [run])["summary"][0]["steps_to_target"] == 50.0


def test_ranking_puts_those_without_a_time_last() -> None:
    runs = [made_run("gone", reached_s=None, status="diverged"), made_run("never", reached_s=None)]
    runs += [made_run("late", reached_s=9.0), made_run("soon", reached_s=3.0)]
    found = [row["label"] for row in ranking(summarise("s", runs)["summary"])]
    assert found == ["soon", "late", "never", "gone"]


def test_the_same_seed_twice_is_an_error() -> None:
    with pytest.raises(InputError, match="two simulated runs of 'a' have seed 0"):
        summarise("s", [made_run("a"), made_run("a")])


def test_no_runs() -> None:
    found = summarise("s", [])
    assert (found["runs"], found["summary"], found["winner"]) == ([], [], None)


times = st.one_of(st.none(), st.floats(0.1, 1e4))


@settings(max_examples=50)
@given(st.lists(st.tuples(times, times, times), min_size=2, max_size=4), st.permutations(range(3)))
@example([(None, 2.0, 1.0), (None, 1.0, 2.0), (2.0, 1.0, None)], [0, 1, 2])  # all medians and ratios tie
@example([(None, 1.0, 3.0), (1.0, None, 3.0), (2.0, 1.0, None)], [0, 1, 2])  # none beats the first
def test_laws_of_any_summary(columns: list[tuple[float | None, ...]], order: list[int]) -> None:
    runs = [
        made_run(f"s{i}", seed, reached_s=time, wall_s=2e4)
        for i, column in enumerate(columns)
        for seed, time in enumerate(column)
    ]
    found = summarise("s", runs, TARGET)
    json.dumps(found, allow_nan=False)
    assert found["verdict"]["first"] == found["winner"]
    if found["verdict"]["settled"]:  # three repeats settle what is too far apart for chance, and nothing else
        factor = found["verdict"]["factor"]
        assert factor is None or factor > BEYOND_CHANCE
    known = {r["label"]: r["time_to_target_s"]["median"] for r in found["summary"]}
    reached = {label: median for label, median in known.items() if median is not None}
    if not reached:
        assert found["winner"] is None
        return
    assert found["winner"] is not None
    assert ranking(found["summary"], found["winner"])[0]["label"] == found["winner"]
    ratios = [row["ratio_to_best"] for row in found["summary"] if row["label"] in reached]
    beaten = any(ratio["median"] is not None and ratio["median"] < 1 for ratio in ratios)
    assert not beaten or reached[found["winner"]] == min(reached.values())
    for row in found["summary"]:
        interval = row["time_to_target_s"]
        if interval["median"] is not None and interval["low"] is not None:
            assert interval["low"] <= interval["median"]
            assert interval["high"] is None or interval["median"] <= interval["high"]
    assert sum(row["p_win"] or 0.0 for row in found["summary"]) <= 1 + 1e-9
    # The order in which the repeats of a scheme were run says nothing.
    shuffled = [runs[3 * i + k] for i in range(len(columns)) for k in order]
    assert summarise("s", shuffled, TARGET)["summary"] == found["summary"]


def test_one_repeat_settles_no_order_that_faults_have_made() -> None:
    first, second = made_run("first", reached_s=10.0), made_run("second", reached_s=30.0)
    assert summarise("s", [first, second])["verdict"]["settled"]
    hit = replace(second, time_s=replace(second.time_s, down=second.wall_clock_s / 2))  # 15 s without
    assert not summarise("s", [first, hit])["verdict"]["settled"]


def test_one_repeat_settles_no_order_that_few_draws_have_made() -> None:
    facts = {each: SchemeFacts(does="", bounds=None, draws=each == "first") for each in ("first", "second")}
    pace = Pace(time_s=10.0, steps=(20.0, 20.0), averages=(3.0, 5.0), bytes_sent=1.0)
    first, second = (
        replace(made_run(each, reached_s=s), pace=pace) for each, s in [("first", 10.0), ("second", 30.0)]
    )
    assert not summarise("s", [first, second], facts=facts)["verdict"]["settled"]
    first = replace(first, pace=replace(pace, averages=(3.0, 20.0)))
    assert summarise("s", [first, second], facts=facts)["verdict"]["settled"]
