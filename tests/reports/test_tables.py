from __future__ import annotations

from rich.console import Console

from paceline.reports.tables import render_summary
from paceline.sim.records.equal_terms import Goal
from paceline.sim.records.summary import Summary, summarise
from tests.support.made_runs import made_run

TARGET = Goal(metric="test_accuracy", value=0.95)


def lines(summary: Summary, width: int = 100) -> list[str]:
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(render_summary(summary))
    return [line.rstrip() for line in captured.get().splitlines()]


def test_golden() -> None:
    runs = []
    for seed in range(5):
        runs.append(made_run("sync", seed, reached_s=30.0 + seed, steps=300, num_bytes=4_000_000))
        runs.append(made_run("local [b]x[/b]", seed, reached_s=10.0 + seed))
        runs.append(made_run("late", seed, reached_s=None, wall_s=60.0))
        runs.append(made_run("gone", seed, reached_s=None, status="diverged", shares=(1, 0, 0)))
    assert lines(summarise("s", runs, TARGET)) == [
        "                    time to    vs                 compute /",
        "scheme               target  best steps sent   comm. / wait status",
        "local [b]x[/b]         12 s 1.00x   100 1 kB 50 / 25 / 25 % reached 5/5",
        "                   10 to 14",
        "sync                   32 s  2.7x   300 4 MB 50 / 25 / 25 % reached 5/5",
        "                   30 to 34",
        "late                 > 60 s     -   100 1 kB 50 / 25 / 25 % reached 0/5",
        "gone                      -     -   100 1 kB  100 / 0 / 0 % diverged 5/5",
    ]


def test_two_sources_are_told_apart() -> None:
    found = lines(summarise("s", [made_run("a"), made_run("a", reached_s=20.0, source="measured")], TARGET))
    assert [line.split()[:2] for line in found[2:]] == [["a", "simulated"], ["a", "measured"]]
    assert [line.split()[2:4] for line in found[2:]] == [["10", "s"], ["20", "s"]]


def test_without_a_target() -> None:
    found = lines(summarise("s", [made_run("a", reached_s=None)]))
    assert found[2].split()[:3] == ["a", "-", "-"]
    assert found[2].endswith("completed")


def test_some_repeats_reached_it() -> None:
    runs = [made_run("a", seed, reached_s=10.0 + seed) for seed in range(3)]
    runs += [made_run("a", seed, reached_s=None, wall_s=60.0) for seed in (3, 4)]
    found = lines(summarise("s", runs, TARGET))
    assert "12 s" in found[2]
    assert "reached 3/5" in found[2]
    assert "10 to ∞" in found[3]
