"""What the seconds alone decide: computed by hand, and laws that hold for whatever runs."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.sim.records.carry.break_even import Scope
from paceline.sim.records.scenario_facts import Goal, read_facts
from paceline.sim.records.summarise import summarise, summarise_resolved
from paceline.sim.records.summary import Summary, Tuned
from paceline.sim.records.verdict import BreakEven, find_winner
from tests.support.made_runs import made_run

TARGET = Goal(metric="test_accuracy", value=0.95)
Race = Sequence[tuple[float | None, int]]
"""Seconds to the target and steps, for each seed; None: not reached in 10 s."""


def summary_of(races: dict[str, Race], proxy: str | None = None, choices: str | None = None) -> Summary:
    runs = [
        made_run(label, seed, reached_s=time_s, steps=steps)
        for label, race in races.items()
        for seed, (time_s, steps) in enumerate(race)
    ]
    scope = Scope(unstudied={label: [] for label in races}, periods={})
    return summarise("s", runs, TARGET, proxy=proxy, choices=choices, scope=scope)


def break_even(races: dict[str, Race]) -> BreakEven:
    return summary_of(races)["verdict"]["break_even"]


def test_the_seconds_decide_the_order() -> None:
    """A step takes 0.1 s under a and 0.4 s under b; a needs 150 of them where b needs 100."""
    found = break_even({"a": [(15.0, 150)], "b": [(40.0, 100)], "c": [(90.0, 300)]})
    assert found["text"] == (
        "a is first as long as it needs fewer than 4.0 times b's examples; these runs say 1.50. "
        "If all needed equally many: a first, 3.0x as fast as c."
    )
    assert found["examples"] == {"median": pytest.approx(4.0), "low": None, "high": None}
    assert found["here"] == {"median": pytest.approx(1.5), "low": None, "high": None}
    assert (found["equal_first"], found["equal_second"]) == ("a", "c")
    assert found["equal_factor"] == pytest.approx(3.0)


def test_the_steps_decide_the_order() -> None:
    """A step takes 0.2 s under a and 0.1 s under b, but a needs a quarter of them."""
    text = break_even({"a": [(10.0, 50)], "b": [(20.0, 200)]})["text"]
    assert text == (
        "a is ahead as long as it needs fewer than 0.50 times b's examples; these runs say 0.25. "
        "If all needed equally many: b first, 2.0x as fast as a."
    )


def test_equal_seconds_are_a_tie_if_all_needed_equally_many() -> None:
    text = break_even({"a": [(10.0, 100)], "b": [(30.0, 300)]})["text"]
    assert text.endswith(
        "1.00 times b's examples; these runs say 0.33. If all needed equally many: a and b tie."
    )


def test_repeats_are_paired_as_the_verdict_pairs_them() -> None:
    """Seconds of a step, b over a: 2, 4, 3; steps, a over b: 1/2, 1, 1/3."""
    found = break_even(
        {"a": [(10.0, 100), (20.0, 100), (10.0, 100)], "b": [(40.0, 200), (80.0, 100), (90.0, 300)]}
    )
    assert found["examples"]["median"] == pytest.approx(3.0)
    assert found["here"]["median"] == pytest.approx(0.5)


def test_medians_that_contradict_the_order_are_too_close_to_tell() -> None:
    """Times, b over a: 1.1, 1.1, 0.8; steps, a over b: 1/2, 3, 1; seconds of a step: 0.55, 3.3, 0.8."""
    a, b = [(10.0, 50), (10.0, 300), (10.0, 100)], [(11.0, 100), (11.0, 100), (8.0, 100)]
    text = break_even({"a": a, "b": b})["text"]
    order = "a is ahead as long as it needs fewer than 0.80 times b's examples; these runs say 1"
    assert text.startswith(f"{order}.00, too close to tell. If")


def test_the_phrase_names_proxy_target_model_partition_and_tuning() -> None:
    text = (
        "schemes: [any]\nworkload: {payload: 20 MB, partition: {kind: dirichlet, alpha: 0.3}}\ncluster: {}\n"
        "evaluate: {on: workers}\nstop: {target: {metric: test_accuracy, value: 0.95, on: mean}}\n"
    )
    runs = [made_run("a", reached_s=10.0), made_run("b", reached_s=30.0)]
    tuning = [Tuned(label="a", chosen={"optimizer.lr": 0.1}, at_edge=[], metric="test_accuracy", trials=[])]
    found = summarise_resolved(text, "s", runs, tuning)["verdict"]["break_even"]["text"]
    assert (
        "; this proxy says 1.00 (test accuracy 0.95 of the mean of the workers' models, dirichlet " in found
    )
    assert " 0.3 shards, rates tuned here). If" in found


@pytest.mark.parametrize(
    ("scenario", "phrase"),
    [
        ("", "train loss 0.5 of the mean of the workers' models, iid shards"),
        ("evaluate: {on: workers}", "train loss 0.5 of the workers' models, iid shards"),
    ],
)
def test_the_scored_model_is_the_targets(scenario: str, phrase: str) -> None:
    text = f"workload: {{}}\nstop: {{target: {{metric: train_loss, value: 0.5}}}}\n{scenario}\n"
    assert read_facts(text).choices == phrase


@pytest.mark.parametrize(
    ("second_s", "survives"), [(1.1, "neither"), (1.3, "1.22 and not 1.72"), (2.0, "both")]
)
def test_a_proxys_order_is_held_against_the_moves_between_tasks(second_s: float, survives: str) -> None:
    """Both need 100 steps, so the order survives a move by less than the ratio of their times."""
    races: dict[str, Race] = {"a": [(1.0, 100)], "b": [(second_s, 100)]}
    sentence = f"in one case of ten: this order would survive {survives}; nothing above 814,090 "
    sentence += "parameters was tested."
    assert summary_of(races, proxy="a small one")["verdict"]["break_even"]["text"].endswith(sentence)
    assert "survive" not in break_even(races)["text"]


def test_no_order_is_held_against_moves_where_it_cannot_be_told() -> None:
    a, b = [(10.0, 50), (10.0, 300), (10.0, 100)], [(11.0, 100), (11.0, 100), (8.0, 100)]
    close: dict[str, Race] = {"a": a, "b": b}
    alone: dict[str, Race] = {"a": [(10.0, 100)], "b": [(None, 25)]}
    for races in (close, alone):
        assert "survive" not in summary_of(races, proxy="a small one")["verdict"]["break_even"]["text"]


def test_a_second_that_never_arrives_has_its_seconds_all_the_same() -> None:
    found = break_even({"a": [(10.0, 100)], "b": [(None, 25)]})
    assert found["text"].startswith(
        "a is ahead as long as it needs fewer than 4.0 times b's examples; b never met"
    )
    assert found["here"]["median"] == 0.0


def test_nothing_is_said_where_nobody_arrives_or_races_or_only_seconds_count() -> None:
    assert "break_even" not in summary_of({"a": [(None, 100)], "b": [(None, 50)]})["verdict"]
    assert "break_even" not in summary_of({"a": [(10.0, 100)]})["verdict"]
    timed = [made_run(label, reached_s=None) for label in "ab"]
    assert "break_even" not in summarise("s", timed)["verdict"]


times = st.floats(0.1, 1000.0)
counts = st.integers(1, 10_000)
races = st.lists(st.tuples(times, counts, times, counts), min_size=1, max_size=7)


@given(races)
def test_the_ratio_turns_the_order_round_exactly_when_applied(
    drawn: list[tuple[float, int, float, int]],
) -> None:
    """At a ratio r of examples on every seed, a's times are its seconds a step times r times b's steps."""
    columns = {"a": [(t, n) for t, n, _, _ in drawn], "b": [(t, n) for _, _, t, n in drawn]}
    summary = summary_of(dict(columns))
    first, found = summary["winner"], summary["verdict"]["break_even"]
    assert first is not None
    (second,) = {"a", "b"} - {first}
    limit = found["examples"]["median"]
    assert limit is not None
    second_s = dict(enumerate(time_s for time_s, _ in columns[second]))
    pairs = zip(columns[first], columns[second], strict=True)
    each_s = {seed: time_s / steps * others for seed, ((time_s, steps), (_, others)) in enumerate(pairs)}
    for ratio, ahead in ((limit * (1 - 1e-9), first), (limit * (1 + 1e-9), second)):
        first_s = {seed: ratio * time_s for seed, time_s in each_s.items()}
        assert find_winner({first: first_s, second: second_s}) == ahead


@given(races)
def test_swapped_names_swap_the_sentence(drawn: list[tuple[float, int, float, int]]) -> None:
    a, b = [(t, n) for t, n, _, _ in drawn], [(t, n) for _, _, t, n in drawn]
    names = {"one": "two", "two": "one"}
    here, swapped = summary_of({"one": a, "two": b}), summary_of({"two": a, "one": b})
    if here["verdict"]["factor"] != 1 and here["verdict"]["break_even"]["equal_factor"] != 1:
        text = re.sub("one|two", lambda name: names[name[0]], here["verdict"]["break_even"]["text"])
        assert swapped["verdict"]["break_even"]["text"] == text
