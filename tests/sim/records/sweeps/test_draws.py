"""Draws: shares add up, and the input that decides is the one on which the winner depends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.sim.config.units import format_seconds
from paceline.sim.records.sweeps.draws import describe_draws, first_order_index, percent
from paceline.sim.seeds import Floats

RANGES: dict[str, list[str]] = {
    "cluster.network.latency": ["1 ms to 100 ms"],
    "cluster.workers": ["1 to 1000"],
}


def drawn(seed: int, number: int = 200) -> tuple[list[dict[str, Any]], Floats]:
    shares = np.random.default_rng(seed).random((number, 2))
    values = [(format_seconds(1e-3 * 100**a, 6), 1 + int(999 * b)) for a, b in shares]
    return [dict(zip(RANGES, each, strict=True)) for each in values], shares


@settings(max_examples=20)
@given(seed=st.integers(0, 999), cut=st.floats(0.25, 0.75))
def test_the_input_on_which_the_winner_depends_decides(seed: int, cut: float) -> None:
    values, shares = drawn(seed)
    firsts = ["a" if share < cut else "b" for share in shares[:, 0]]
    answer = describe_draws(values, RANGES, firsts)
    assert answer["decides"] == "cluster.network.latency"
    most = answer["inputs"][0]
    assert most["index"] > 0.6
    near = np.sort(np.abs(shares[:, 0] - cut))[5]
    assert abs(np.log(most["at"] / 1e-3) / np.log(100) - cut) <= near + 0.02
    assert (most["below"]["first"], most["above"]["first"]) == ("a", "b")
    assert f"below {most['threshold']} a is first in" in answer["text"]
    assert sum(each["share"] for each in answer["shares"]) == pytest.approx(1)
    assert all(each["low"] <= each["share"] <= each["high"] for each in answer["shares"])


@settings(max_examples=20)
@given(seed=st.integers(0, 999))
def test_no_input_decides_what_is_a_toss_up_or_takes_two(seed: int) -> None:
    values, shares = drawn(seed)
    tossed = ["a" if x < 0.5 else None for x in np.random.default_rng(seed + 1).random(len(values))]
    both = ["a" if (x < 0.5) == (y < 0.5) else "b" for x, y in shares]
    for firsts in (tossed, both):
        answer = describe_draws(values, RANGES, firsts)
        assert answer["decides"] is None
        assert "no single input decides" in answer["text"]


@given(seed=st.integers(0, 99), number=st.integers(1, 60))
def test_the_index_is_a_share_and_takes_any_scale(seed: int, number: int) -> None:
    random = np.random.default_rng(seed)
    values, labels = random.random(number), random.choice(["a", "b", "c"], number).tolist()
    index = first_order_index(values, labels)
    assert 0 <= index <= 1
    assert index == first_order_index(np.exp(9 * values), labels)
    assert first_order_index(values, ["a"] * number) == 0


def test_one_scheme_for_all_draws_is_said_so() -> None:
    answer = describe_draws(drawn(0, 5)[0], RANGES, ["a"] * 5)
    assert answer["text"] == "a first in all that you say is possible"
    assert answer["decides"] is None


def test_a_share_is_neither_nothing_nor_all_where_it_is_not() -> None:
    assert [percent(share) for share in (0, 0.001, 0.83, 0.999, 1)] == ["0 %", "1 %", "83 %", "99 %", "100 %"]
