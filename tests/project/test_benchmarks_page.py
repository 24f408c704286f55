"""The page of ``make bench``: medians, ratios within a round, and why a peer could not be run."""

from __future__ import annotations

import sys

import pandas as pd
import pytest

from benchmarks.speed.children import Child, ChildError
from benchmarks.speed.clock import ClockFigures
from benchmarks.speed.page import write_page
from benchmarks.speed.ways import WAYS
from benchmarks.speed.work import Work

SERVES = """
from benchmarks.speed.children import serve

serve(lambda steps: print(steps) if steps < 9 else 1 / 0)
"""


def made_blocks() -> pd.DataFrame:
    """Three rounds; the machine is twice as slow in the second, for everybody."""
    rates = {"lockstep_gossip": 900.0, "raw_vmap": 1000.0, "gossipy": 100.0}
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
    page = write_page(
        "a machine", made_blocks(), [Work(64, 64)], 40, errors, clocks, [("messages", "many\n")]
    )
    assert "| one-peer gossip | Paceline, lockstep | 900 | 0.90 | 1.00 | 1.00 |  | 0.25 GiB |" in page
    assert "| one-peer gossip | gossipy | 100 | 0.10 | 9.00 | 9.00 | 5 | 0.25 GiB |" in page
    assert "APPFL vsim (local SGD, averaged every 10 steps) could not be run: no such package" in page
    assert "| gossip | lockstep | 200 | 0.5 s | 30.2 s |" in page
    assert "| gossip | SimGrid | could not be run: none | | |" in page


def test_a_child_does_blocks_on_order_and_its_end_says_why() -> None:
    child = Child([sys.executable, "-c", SERVES], {})
    child.wait_until_ready()
    done = child.run(5)
    assert done.seconds > 0
    assert done.gib > 0
    with pytest.raises(ChildError, match="ZeroDivisionError: division by zero"):
        child.run(9)
    child.close()


def test_the_model_has_as_many_parameters_as_it_says() -> None:
    work = Work(2, 64)
    assert work.parameters == sum(each.numel() for each in work.module().parameters()) == 4810
