"""The four lines of an answer: short, alike everywhere, and silent about nothing that decides."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.reports.card import LINES, card
from paceline.sim.records.run import UNTIMED_ENCODING, untimed
from paceline.sim.records.scenario_facts import CURVES, TIME_ALONE, Goal, TransportRecord
from paceline.sim.records.summarise import summarise
from tests.support.made_runs import made_run

TARGET = Goal(metric="test_accuracy", value=0.95)
NCCL = TransportRecord(name="nccl", hosts="stock", all_reduce="ring", not_validated=["latency 35 ms"])


def of(repeats: int = 5, **known: Any) -> dict[str, str]:
    runs = [made_run("a", seed, reached_s=10.0 + seed, steps=200) for seed in range(repeats)]
    runs += [made_run("b", seed, reached_s=20.0 + seed) for seed in range(repeats)]
    return dict(card(summarise("s", runs, TARGET, **known)))


def test_a_settled_order() -> None:
    assert of() == {
        "First": "a first, 1.83x as fast as b (1.71 to 2.0)",
        "How sure": "first in 5 of 5 repeats",
        "Turned by": "a needing over 3.7x b's examples (here 2.0x)",
        "Rests on": "simulated; no proxy; rates as given",
    }


def test_one_repeat_is_chance() -> None:
    assert of(1)["How sure"] == "one repeat: chance is not known"


@pytest.mark.parametrize(
    ("known", "rests"),
    [
        ({"proxy": "A small proxy was trained."}, "simulated; a proxy; rates as given"),
        ({"proxy": CURVES}, "simulated; measured curves"),
        ({"proxy": TIME_ALONE}, "simulated; nothing trained"),
        (
            {"transport": NCCL},
            "simulated (NCCL transport, stock hosts); no proxy; rates as given; in part not validated",
        ),
    ],
)
def test_what_it_rests_on(known: dict[str, Any], rests: str) -> None:
    assert of(**known)["Rests on"] == rests


def test_without_a_target_steps_are_missing() -> None:
    runs = [made_run("a", reached_s=None), made_run("b", reached_s=None)]
    assert (
        dict(card(summarise("s", runs)))["Turned by"]
        == "how many steps each scheme needs: give a target, or curves"
    )


def test_encoding_that_takes_no_time_is_named() -> None:
    summary = summarise("s", [made_run("a"), made_run("b")], TARGET)
    assert "encoding" not in dict(card(summary))["Rests on"]
    summary["summary"][1]["leaves_out"] = untimed([UNTIMED_ENCODING])
    assert dict(card(summary))["Rests on"].endswith("; encoding not timed (b)")


def test_failed_schemes_are_named() -> None:
    runs = [made_run("a"), made_run("b", reached_s=None, status="diverged")]
    assert dict(card(summarise("s", runs, TARGET)))["How sure"].endswith("; b failed")


def test_nothing_was_run() -> None:
    assert card(summarise("s", [])) == [(LINES[0], "nothing was run")]
