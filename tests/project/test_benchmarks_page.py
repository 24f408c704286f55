"""The page of ``make bench``: medians, ratios within a round, and why a peer could not be run."""

from __future__ import annotations

import sys

import pandas as pd
import pytest

from benchmarks.bars import Part, at_most
from benchmarks.speed import alone
from benchmarks.speed.children import Child, ChildError
from benchmarks.speed.clock import ClockFigures
from benchmarks.speed.page import write_page
from benchmarks.speed.ways import WAYS
from benchmarks.speed.work import Work

SERVES = """
print("an import says something")
from benchmarks.speed.children import serve

serve(lambda steps: print(steps) if steps < 90 else 1 / 0)
"""


def made_blocks() -> pd.DataFrame:
    """Three rounds; the machine is twice as slow in the second, for everybody."""
    rates = {
        "lockstep_gossip": 900.0, "raw_vmap": 1000.0, "gossipy": 100.0, "gloo_gossip": 50.0,
    }  # fmt: skip
    rows = [
        {"way": way, "workers": 64, "parameters": 4810, "steps": 40, "round": number, "seconds": 1.0,
         "gib": 0.25, "rate": rate * speed, "processor_rate": rate, "load": 1.0}
        for number, speed in enumerate((1.0, 0.5, 1.1))
        for way, rate in rates.items()
    ]  # fmt: skip
    return pd.DataFrame(rows)


def test_the_page_has_rates_ratios_and_what_is_missing() -> None:
    errors = {way.name: "no such package" for way in WAYS if way.name not in set(made_blocks()["way"])}
    clocks = [
        ClockFigures("gossip", "lockstep", 100, 0.5, 30.2),
        ClockFigures("gossip", "SimGrid", error="none"),
    ]
    parts = {
        "time alone": Part((at_most("a command", 20, 19.5, "s", "at once"),)),
        "memory": Part((at_most("memory", 4, 4.004, "GiB"),), "| shape |\n"),
    }
    page = write_page("a machine", made_blocks(), [Work(64, 64)], 40, errors, clocks, parts)
    assert "| one-peer gossip | Paceline, lockstep | 900 | 0.90 | 1.00 | 1.00 | 0.25 GiB |" in page
    assert "| one-peer gossip | gossipy | 100 | 0.10 | 9.00 | 9.00 | 0.25 GiB |" in page
    assert "APPFL vsim (local SGD, averaged every 10 steps) could not be run: no such package" in page
    assert "| gossip | lockstep | 200 | 0.5 s | 30.2 s |" in page
    assert "| gossip | SimGrid | could not be run: none | | |" in page
    assert (
        "| Paceline, lockstep, one-peer gossip, of raw vmap | at least 0.85 times | 0.90 times | met |  |"
        in page
    )
    assert (
        "| lockstep beside gossipy, one-peer gossip, 64 workers | at least 5 times | 9 times | met |" in page
    )
    gloo = "lockstep beside a gloo process per worker, one-peer gossip, 64 workers"
    assert f"| {gloo} | at least 20 times | 18 times | **missed** | by processor time 18 times |" in page
    peer = "lockstep beside APPFL vsim, local SGD, averaged every 10 steps"
    assert f"| {peer} | - | not measured: no such package | **missed** |" in page
    assert "| a command | at most 20 s | 19.5 s | met | at once |" in page
    assert "| memory | at most 4 GiB | 4.00 GiB | **missed** |" in page  # by what the two digits do not show
    assert "## Memory\n\n| shape |\n" in page


def test_a_benchmark_that_fails_is_a_bar_that_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(alone.NAMES, "no_such_benchmark", "nothing")
    (bar,) = alone.measure_alone("no_such_benchmark").bars
    assert not bar.met
    assert bar.measured.startswith("could not be measured: ModuleNotFoundError")


def test_a_child_does_blocks_on_order_and_its_end_says_why() -> None:
    child = Child([sys.executable, "-c", SERVES], {})
    child.wait_until_ready()
    done = child.run(5)
    assert done.seconds > 0
    assert done.gib > 0
    with pytest.raises(ChildError, match="ZeroDivisionError: division by zero"):
        child.run(90)
    child.close()


def test_the_model_has_as_many_parameters_as_it_says() -> None:
    work = Work(2, 64)
    assert work.parameters == sum(each.numel() for each in work.module().parameters()) == 4810
