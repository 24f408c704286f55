from __future__ import annotations

import csv
import doctest
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pandas as pd
import pytest

import paceline
from paceline.reports import assumptions, words
from paceline.reports.sweep_tables import LEAD
from paceline.reports.tables import AMOUNTS, brackets, decides
from paceline.sim.records.run import FaultCost, Run, Status, TimeShare
from paceline.sim.records.scenario_facts import Goal, TransportRecord
from paceline.sim.records.summarise import summarise
from paceline.sim.records.summary import SchemeFacts, Tuned, TuningTrial
from tests.support.made_runs import made_bounds, made_run

TARGET = Goal(metric="test_accuracy", value=0.95)


def test_the_examples_in_the_docstrings() -> None:
    assert doctest.testmod(words) == (0, doctest.testmod(words).attempted)
    assert doctest.testmod(assumptions) == (0, 1)
    assert doctest.testmod(words).attempted >= 4


@pytest.mark.parametrize(
    ("value_s", "text"),
    [(0, "0 s"), (2.5e-6, "2.50 µs"), (0.04, "40 ms"), (119.0, "119 s"), (120.0, "2 min"), (7200.0, "2 h")],
)
def test_durations(value_s: float, text: str) -> None:
    assert words.duration(value_s) == text


def test_one_unit_for_several_times() -> None:
    assert words.time_unit([0.5, 90.0]) == ("ms", 1e-3)
    assert words.time_unit([]) == ("s", 1.0)


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (2.5e18, "2,500 PB")]
)
def test_sizes(value: float, text: str) -> None:
    assert words.size(value) == text


def cheap_and_slow() -> list[Run]:
    # 0.1 s a step: half of it compute; against 0.4 s a step, of which 0.05 s compute and 0.3 s wait.
    fast = made_run("local", reached_s=12.0, steps=120, shares=(0.5, 0.4, 0.1))
    slow = made_run("sync", reached_s=40.0, steps=100, shares=(0.125, 0.125, 0.75))
    return [slow, fast]


def test_the_winner_its_factor_and_why() -> None:
    found = summarise("s", cheap_and_slow(), TARGET)
    assert words.verdict(found) == "local first, 3.3x as fast as sync, by one repeat"
    assert words.medians(found) == "local reaches a test accuracy of 0.95 after 12 s, sync after 40 s."
    assert words.why(found) == (
        "local needs 20 % more steps than sync (120 instead of 100), but each costs 4.0x less: "
        "in a step a worker waits 10 ms instead of 300 ms."
    )
    assert words.confidence(found) == "One repeat: how much of this is chance is not known."


def test_where_nothing_is_random_nothing_is_chance() -> None:
    runs = [made_run(label, reached_s=None, steps=50) for label in ("a", "b")]
    facts = {x: SchemeFacts(does="It averages.", bounds=made_bounds(random=False)) for x in ("a", "b")}
    tie = summarise("s", runs, None, (), facts)
    assert words.verdict(tie) == "a and b tie by time per step"
    assert words.confidence(tie) is None


def test_fewer_but_dearer_steps() -> None:
    few = made_run("few", reached_s=20.0, steps=40, shares=(0.2, 0.8, 0.0))
    many = made_run("many", reached_s=30.0, steps=100, shares=(0.5, 0.5, 0.0))
    assert words.why(summarise("s", [few, many], TARGET)) == (
        "few needs 60 % fewer steps than many (40 instead of 100), but each costs 67 % more: "
        "in a step a worker communicates for 400 ms instead of 150 ms."
    )


def test_as_many_steps_of_the_same_cost() -> None:
    runs = [made_run("a", reached_s=10.0), made_run("b", reached_s=10.1, steps=101)]
    assert words.why(summarise("s", runs, TARGET)) == (
        "a needs as many steps as b (100 instead of 101), and each costs about the same (100 ms)."
    )
    assert words.medians(summarise("s", [runs[0], made_run("b", reached_s=10.0)], TARGET)) == (
        "a reaches a test accuracy of 0.95 after 10 s, b after 10 s."
    )


def test_how_sure_it_is() -> None:
    times = [10.0, 12.0, 17.0, 18.0, 19.0]
    runs = [made_run("a", seed, reached_s=time) for seed, time in enumerate(times)]
    runs += [made_run("b", seed, reached_s=2 * time) for seed, time in enumerate(times)]
    found = summarise("s", runs, TARGET)
    assert words.verdict(found) == "a first, 2.0x as fast as b (2.0 to 2.0)"
    assert words.medians(found) == (
        "a reaches a test accuracy of 0.95 after 17 s, b after 34 s (medians of 5 repeats)."
    )
    assert words.confidence(found) == (
        "a was first in 5 of 5 paired repeats, so that its chance to be first once more is 92 %."
    )
    few = summarise("s", [*runs[:3], *runs[5:8]], TARGET)
    assert words.confidence(few) == "a was first in 3 of 3 paired repeats."


def test_a_winner_whose_median_is_not_the_smallest() -> None:
    runs = [made_run("a", seed, reached_s=time) for seed, time in enumerate([1.0, 4.0, 5.0, 6.0, 7.0])]
    runs += [made_run("b", seed, reached_s=time) for seed, time in enumerate([2.0, 4.5, 4.9, 7.0, 8.0])]
    assert words.medians(summarise("s", runs, TARGET)) == (
        "a reaches a test accuracy of 0.95 after 5 s, b after 4.90 s (medians of 5 repeats); "
        "on the same seeds a is ahead."
    )


def test_an_order_that_the_repeats_do_not_settle() -> None:
    runs = [made_run("a", seed, reached_s=time) for seed, time in enumerate([10.0, 11.0, 13.0, 18.0, 19.0])]
    runs += [made_run("b", seed, reached_s=time) for seed, time in enumerate([15.0, 16.0, 17.0, 9.0, 9.0])]
    found = summarise("s", runs, TARGET)
    assert words.verdict(found).startswith("not settled: a or b; ")
    assert words.confidence(found) == (
        "a was first in 3 of 5 paired repeats, so that its chance to be first once more is 58 %."
    )


def test_only_one_gets_there() -> None:
    runs = [made_run("a", reached_s=10.0), made_run("b", reached_s=None, wall_s=60.0)]
    found = summarise("s", runs, TARGET)
    assert words.medians(found) == (
        "Only a reaches a test accuracy of 0.95, after 10 s; the others had up to 6.0x that time."
    )
    assert words.why(found) == "A step of a costs 6.0x less than one of b: " + (
        "in a step a worker computes for 50 ms instead of 300 ms."
    )


def test_nobody_gets_there() -> None:
    runs = [made_run("a", reached_s=None), made_run("b", reached_s=None)]
    found = summarise("s", runs, TARGET)
    assert words.verdict(found) == "no scheme reached the target"
    assert words.medians(found) == "a came nearest to a test accuracy of 0.95, with 0.800."
    assert words.why(summarise("s", runs, TARGET)) is None
    assert words.confidence(summarise("s", runs, TARGET)) is None


def test_no_target() -> None:
    runs = [made_run("a", reached_s=None, steps=50), made_run("b", reached_s=None, steps=100)]
    found = summarise("s", runs)
    assert words.verdict(found) == "not settled by time per step: b or a; at least 4 more repeats would tell"
    assert words.medians(found) == "A step takes 100 ms under b and 200 ms under a."


def test_one_scheme_or_none() -> None:
    found = summarise("s", [made_run("a")], TARGET)
    assert words.verdict(found) == "a reaches the target after 10 s"
    assert words.medians(found) == "a reaches a test accuracy of 0.95 after 10 s."
    assert words.verdict(summarise("s", [])) == "nothing was run"
    assert words.medians(summarise("s", [])) is None


def test_who_is_waited_for() -> None:
    bounds = made_bounds(waiting=0.5)
    assert words.bound(bounds) == ("50 % waiting for worker 2, 25 % computing, 20 % bandwidth, 5 % latency")
    assert "waiting for workers 1, 2 and 5," in words.bound({**bounds, "waits_for": [1, 2, 5]})
    assert "waiting for 5 slow workers," in words.bound({**bounds, "waits_for": [1, 2, 3, 4, 5]})
    assert "waiting for whoever is late," in words.bound({**bounds, "slow_workers": 0.1})


def test_failures_are_named() -> None:
    runs = [made_run("a", 0, reached_s=None, status="partial", message="worker 2 died"), made_run("a", 1)]
    runs += [made_run("b", 0, reached_s=None, status="diverged", message="the loss is not finite")]
    assert words.failures(summarise("s", runs, TARGET)) == [
        "a broke off in 1 of 2 repeats (worker 2 died).",
        "b diverged (the loss is not finite).",
    ]


def test_how_old_scored_models_are() -> None:
    metrics = pd.DataFrame({"step": [0, 10, 20], "steps": [[0, 0, 0], [10, 5, 5], [20, -1, 15]]})
    assert assumptions.staleness(metrics) == pytest.approx((10 / 3 + 2.5) / 2)
    assert assumptions.staleness(metrics[["step"]]) is None


def test_schemes_with_one_choice_share_a_sentence() -> None:
    runs = [made_run(label) for label in ("a", "b", "c")]
    trials = [TuningTrial(values={"optimizer.lr": 0.1}, seed=1, time_to_target_s=None, score=None)] * 4
    tuning = [
        Tuned(label=label, chosen={"optimizer.lr": lr}, at_edge=edge, metric="train_loss", trials=trials)
        for label, lr, edge in (("a", 0.1, []), ("b", 0.4, ["optimizer.lr"]), ("c", 0.1, []))
    ]
    assert words.tuning(summarise("s", runs, TARGET, tuning)) == [
        "a and c each run with optimizer.lr 0.1, the best of 4 trials.",
        "b runs with optimizer.lr 0.4, the best of 4 trials; optimizer.lr at the edge of the grid: a better "
        "value may lie beyond.",
    ]


def test_late_contributions_are_named_for_the_worst_and_summed_up_for_the_others() -> None:
    assert assumptions.left_out([]) == ""
    assert assumptions.left_out([[[0, 5], [0, 5]]]) == "late contributions left out: none"
    run = [[k, 10] for k in range(7)]
    assert assumptions.left_out([run, run]) == (
        "late contributions left out: 60 % of worker 6, 50 % of worker 5, 40 % of worker 4, "
        "30 % of worker 3, at most 20 % of the others"
    )
    never_chosen = [[0, 0], [1, 2]]
    assert (
        assumptions.left_out([never_chosen])
        == "late contributions left out: 50 % of worker 1, none of the others"
    )


def test_schemes_without_all_reduce_are_told_of_none() -> None:
    carried = TransportRecord(name="ideal", hosts="tuned", all_reduce="ring", not_validated=[])

    def said(*exchanges: tuple[str, ...] | None) -> str:
        runs = [replace(made_run(f"s{i}"), exchanges=each) for i, each in enumerate(exchanges)]
        return " ".join(assumptions.transport(summarise("s", runs, TARGET, transport=carried)))

    assert "all-reduce" not in said(("mix",), ("send", "receive"))
    assert said(("mix",), ("all_reduce",)).endswith("; its all-reduce is ring.")
    assert said(None).endswith("; its all-reduce is ring.")  # an older record, in which it may be


def test_a_wide_bracket_is_shown() -> None:
    """That of the run with the widest, once for each scheme."""
    runs = [
        replace(made_run("large", seed, reached_s=high_s), bracket_s=(low_s, high_s))
        for seed, (low_s, high_s) in enumerate([(30.0, 40.0), (25.8, 37.9), (39.5, 40.0)])
    ]
    known = replace(made_run("small"), bracket_s=(9.9, 10.0))
    summary = summarise("s", [*runs, known, made_run("older")], TARGET)
    assert brackets(summary, "all") == brackets(summary, None) == []
    assert brackets(summary, "every 10 steps") == [
        "large, simulated: the target was met between 25.8 s and 37.9 s; models are kept every 10 steps."
    ]


def failing(seed: int, reached_s: float | None) -> Run:
    """A run of 40 s, a quarter of which faults took."""
    share = TimeShare(15.0, 10.0, 5.0, down=10.0)
    cost = FaultCost(outages=2, down_s=6.0, repeated_s=4.0, writing_s=0.0)
    run = made_run("a", seed, reached_s=reached_s, wall_s=40.0)
    return replace(run, time_s=share, faults=cost)


@pytest.mark.parametrize(
    ("missed", "runs", "text"),
    [
        (0, 9, ""),
        (1, 10, " In 9 of 10 draws it is at the target within 9 s."),
        (2, 10, " It is at the target in 8 of 10 draws."),
        (2, 20, " In 9 of 10 draws it is at the target within 18 s."),
    ],
)
def test_goodput_and_how_surely_the_target_is_met(missed: int, runs: int, text: str) -> None:
    made = [failing(seed, None if seed < missed else float(runs - seed)) for seed in range(runs)]
    summary = summarise("s", made, TARGET)
    assert summary["summary"][0]["goodput"] == 0.75
    assert words.faults(summary) == [
        f"a: goodput 75 % of that without faults: 2 outages, 6 s without work, 4 s of work repeated.{text}"
    ]


def test_the_glossary_has_every_column_cost_and_status() -> None:
    """The throughput's and the preview's columns too; each term once, with a meaning."""
    path = Path(words.__file__).with_name("glossary.csv")
    rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    terms = [term for row in rows for term in row["term"].split(", ")]
    assert len(set(terms)) == len(terms)
    assert all(row["meaning"] and row.keys() == {"term", "unit", "meaning"} for row in rows)
    columns = {*AMOUNTS[True], *AMOUNTS[False], decides(True), decides(False), LEAD, "even at", "vs best"}
    columns |= {"tokens/s", "computes", "goodput", "hours", "random", "cost to target", "cost of a step"}
    held = {"parameters", "gradients", "optimiser", "anchors", "outer momentum", "in flight"}
    known = columns | held | set(words.COSTS.values()) | {"compute", "communicate", "wait"}
    assert known | set(get_args(Status)) - {"completed"} <= set(terms)


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["", "cluster.compute.encoding={qsgd: 1 GB/s}"])
def test_who_is_first_by_free_encoding_is_told(encoding: str) -> None:
    scheme = "all_reduce: {compression: {qsgd: {bits: 8}}}"
    changes = [
        f"schemes=[all_reduce, {{{scheme}}}]", "cluster.network.bandwidth=10 Mbit/s",
        "stop={max_iterations: 60, target: {metric: suboptimality, value: 5}}", *filter(None, [encoding]),
    ]  # fmt: skip
    study = paceline.simulate("quadratic", changes=changes, progress=False)
    said = words.beside_verdict(study.totals, "simulated")
    first = study.winner
    assert first is not None
    assert "qsgd" in first or "compression" in first
    free = [each for each in said if each.startswith(f"{first} is first without the time to encode")]
    assert len(free) == (not encoding)
