"""Result folders of hand-made runs, for tests of reports."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from paceline.sim.records.folder import write_results
from paceline.sim.records.run import Event, Run
from tests.support.made_runs import made_event, made_run, made_scenario

SCENARIO = """\
name: four
workload: {task: digits-mlp, payload: 20 MB}
cluster:
  workers: 3
  stragglers: [{workers: [2], slowdown: 3.0}]
  network: {latency: 1 ms, bandwidth: 1 Gbit/s}
schemes: [any]
stop: {target: {metric: test_accuracy, value: 0.9}, max_time: 60 s}
note: <b>bold</b>
"""
EVIL = '<script>alert(1)</script> $x_1$ & "q"'


def events() -> list[Event]:
    """Of a step: a gradient and an all-reduce, and a send beside them, on each of three workers."""
    return [
        event
        for worker in range(3)
        for event in (
            made_event(worker, 0, "gradient", end_s=0.1),
            made_event(worker, 0, "all_reduce", start_s=0.1, peer_s=0.2, end_s=0.3),
            made_event(worker, 0, "send", task=1, start_s=0.1, end_s=0.2),
        )
    ]


def simulated() -> list[Run]:
    """Three repeats each of five schemes: one is never at the target, another diverges."""
    runs = []
    for seed in range(3):
        runs.append(made_run("all_reduce", seed, reached_s=30.0 + seed, steps=50, events=events()))
        runs.append(made_run("gossip ring", seed, reached_s=10.0 + seed, scheme="gossip", events=events()))
        runs.append(made_run(EVIL, seed, reached_s=20.0 + seed, scheme="gossip", events=events()))
        runs.append(made_run("late", seed, reached_s=None, wall_s=60.0, scheme="local_sgd"))
        runs.append(made_run("gone", seed, reached_s=None, status="diverged", message="not finite"))
    return runs


def measured() -> list[Run]:
    """One repeat each of two of them."""
    return [
        made_run("all_reduce", 0, reached_s=31.0, source="measured", steps=50, events=events()),
        made_run("gossip ring", 0, reached_s=12.5, source="measured", scheme="gossip", events=events()),
    ]


def write_made_results(top: Path) -> Path:
    """Write the folders ``simulated``, ``measured``, ``other`` and ``timed`` below ``top``, and return it."""
    write_results(top / "simulated", SCENARIO, "four", simulated())
    write_results(top / "measured", SCENARIO, "four", measured())
    write_results(top / "other", made_scenario("other"), "other", [made_run("all_reduce", reached_s=None)])
    timed = replace(made_run("a", reached_s=None), evaluations=())
    text = made_scenario("timed").replace("{}", "{timing_only: true, payload: 1 GB}", 1)
    write_results(top / "timed", text, "timed", [timed])
    return top
