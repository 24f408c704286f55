from __future__ import annotations

import pytest
from rich.console import Console, RenderableType

from paceline.extras.topology.topology_page import comparison_table, record_table
from paceline.reports.tables import render_comparison, render_summary
from paceline.sim.records.comparison import Comparison
from paceline.sim.records.scenario_facts import Goal
from paceline.sim.records.summarise import summarise
from paceline.sim.records.summary import Summary
from tests.support.made_runs import made_run
from tests.support.markup import MARKUP

TARGET = Goal(metric="test_accuracy", value=0.95)


def printed(what: RenderableType, width: int = 100) -> str:
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(what)
    return captured.get()


def lines(summary: Summary) -> list[str]:
    return [line.rstrip() for line in printed(render_summary(summary)).splitlines()]


def test_golden() -> None:
    runs = []
    for seed in range(5):
        runs.append(made_run("sync", seed, reached_s=30.0 + seed, steps=300, num_bytes=4_000_000))
        runs.append(made_run("local [b]x[/b]", seed, reached_s=10.0 + seed))
        runs.append(made_run("late", seed, reached_s=None, wall_s=60.0))
        runs.append(made_run("gone", seed, reached_s=None, status="diverged", shares=(1, 0, 0)))
    assert lines(summarise("s", runs, TARGET)) == [
        "                 time to    vs steps to sent to      compute /",
        "scheme            target  best   target  target   comm. / wait status",
        "local [b]x[/b]      12 s 1.00x      100    1 kB 50 / 25 / 25 % reached 5/5",
        "                10 to 14",
        "sync                32 s  2.7x      300    4 MB 50 / 25 / 25 % reached 5/5",
        "                30 to 34",
        "late              > 60 s     -    > 100  > 1 kB 50 / 25 / 25 % reached 0/5",
        "gone                   -     -        -       -  100 / 0 / 0 % diverged 5/5",
        "",
        "First     local [b]x[/b] first, 2.7x as fast as sync (2.4 to 3.0)",
        "How sure  first in 5 of 5 repeats; gone failed",
        "Turned by local [b]x[/b] needing over 0.89x sync's examples (here 0.33x); equal examples: gone is",
        "          first",
        "Rests on  simulated; no proxy; rates as given",
        "",
        "local [b]x[/b] is first as long as it needs fewer than 0.89 times sync's examples; these runs say",
        "0.33. If all needed equally many: gone first, 1.07x as fast as sync.",
    ]


def test_no_share_is_minus_zero() -> None:
    rounded = made_run("a", shares=(1.0 + 1e-12, -1e-12, 0.0))
    assert "100 / 0 / 0 %" in printed(render_summary(summarise("s", [rounded], TARGET)))


def test_two_sources_are_told_apart() -> None:
    found = lines(summarise("s", [made_run("a"), made_run("a", reached_s=20.0, source="measured")], TARGET))
    assert [line.split()[:2] for line in found[2:4]] == [["a", "simulated"], ["a", "measured"]]
    assert [line.split()[2:4] for line in found[2:4]] == [["10", "s"], ["20", "s"]]
    assert found[5:13] == [
        line
        for source, seconds in (("simulated", 10), ("measured", 20))
        for line in (
            f"First     {source}: a reaches the target after {seconds} s",
            "How sure  one repeat",
            "Turned by not known",
            f"Rests on  {source}; no proxy; rates as given",
        )
    ]


def test_ten_repeats_fit_into_80_columns() -> None:
    made = [made_run("local_sgd period=8", seed, reached_s=7.91 + 0.31 * seed) for seed in range(10)]
    made += [
        made_run("late", seed, reached_s=None, num_bytes=11_700_000, shares=(0.36, 0.54, 0.1))
        for seed in range(10)
    ]
    assert "reached 10/10" in printed(render_summary(summarise("s", made, TARGET)), width=80)


def test_without_a_target_steps_decide() -> None:
    runs = [made_run("a", reached_s=None, steps=50), made_run("b", reached_s=None, steps=100)]
    runs.append(made_run("gone", reached_s=None, status="diverged", wall_s=1.0))
    assert lines(summarise("s", runs)) == [
        "                time per    vs  wall                 compute /",
        "scheme              step  best clock steps sent   comm. / wait status",
        "b                 100 ms 1.00x  10 s   100 1 kB 50 / 25 / 25 % completed",
        "a                 200 ms  2.0x  10 s    50 1 kB 50 / 25 / 25 % completed",
        "gone                   -     -   1 s   100 1 kB 50 / 25 / 25 % diverged",
        "",
        "First     not settled by time per step: b or a; at least 4 more repeats would tell",
        "How sure  one repeat: chance is not known; gone failed",
        "Turned by how many steps each scheme needs: give a target, or curves",
        "Rests on  simulated",
    ]


def test_a_winner_is_bold_only_where_that_is_settled() -> None:
    def bold(repeats: int) -> list[str]:
        runs = [made_run("a", seed, reached_s=10.0 + seed) for seed in range(repeats)]
        runs += [made_run("b", seed, reached_s=20.0 + seed) for seed in range(repeats)]
        console = Console(width=100, force_terminal=True, color_system="standard")
        with console.capture() as captured:
            console.print(render_summary(summarise("s", runs, TARGET)))
        rows = captured.get().splitlines()[2:4]
        return [row for row in rows if "\x1b[1m" in row]

    assert bold(4) == []
    assert len(bold(5)) == 2  # its times and, below them, their interval


def test_some_repeats_reached_it() -> None:
    runs = [made_run("a", seed, reached_s=10.0 + seed) for seed in range(3)]
    runs += [made_run("a", seed, reached_s=None, wall_s=60.0) for seed in (3, 4)]
    found = lines(summarise("s", runs, TARGET))
    assert "12 s" in found[2]
    assert "reached 3/5" in found[2]
    assert "10 to ∞" in found[3]


@pytest.mark.parametrize("label", MARKUP)
def test_a_label_in_the_comparison_is_no_markup(label: str) -> None:
    comparison: Comparison = {
        "cells": [
            {
                "scheme": "all_reduce", "label": label, "seed": 3, "metric": "wall_clock_s",
                "predicted": 1.0, "measured": 1.0, "error_pct": 0.0,
            }
        ],
        "mean_abs_error_pct": 0.0,
        "max_abs_error_pct": 0.0,
        "decision": {
            "winner_predicted": label, "winner_measured": label, "tie": None, "regret_pct": 0.0,
            "kendall_tau": 1.0, "interval_coverage": None,
        },
        "trajectories": [{"label": label, "seed": 3, "same": True, "says": "equal"}],
        "warnings": [f"{label} has one repeat"],
    }  # fmt: skip
    text = printed(render_comparison(comparison))
    assert text.count(label) == 4
    assert f"{label}, seed 3: equal" in text
    assert f"the winner, {label}, was" in text


@pytest.mark.parametrize("name", MARKUP)
def test_a_topology_is_no_markup(name: str) -> None:
    record = {
        "name": name, "workers": 4, "weights": "uniform", "degree": 2, "mean_degree": 2.0, "period": 1,
        "number_of_edges": 4, "second_eigenvalue_modulus": 0.5, "spectral_gap": 0.5, "rate_per_step": 0.5,
        "epsilon": 1e-3, "steps_to_epsilon": 10, "exact_after": None, "transient_iterations": None,
        "directed": False, "column_stochastic": True, "row_stochastic": True, "least_weight": 0.0,
    }  # fmt: skip
    assert f"{name} (uniform)" in printed(comparison_table({"topologies": [record]}))
    assert name in printed(record_table(record))
