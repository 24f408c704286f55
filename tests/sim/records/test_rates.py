"""Orders of schemes at three learning rates."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.sim.records.rates import find_orders, seconds_to_levels

GRID = [0.1, 0.2, 0.4, 0.8]


def at(*times: float) -> dict[float, float]:
    return dict(zip(GRID, times, strict=True))


def test_levels_between_scores_are_interpolated_and_a_dip_is_none() -> None:
    times, scores = np.array([0.0, 1.0, 2.0, 4.0]), np.array([0.1, 0.5, 0.3, 0.9])
    found = seconds_to_levels(times, scores, np.array([0.05, 0.3, 0.5, 0.7, 0.9, 0.91]))
    assert found.tolist() == pytest.approx([0.0, 0.5, 1.0, 3.0, 4.0, np.inf])


def test_all_reduce_is_held_at_its_best_rate() -> None:
    times = {"ddp": at(40, 10, 12, 99), "diloco": at(9, 8, 5, 1)}
    orders = find_orders(times, "diloco", 0.2, "ddp")
    assert orders["rates"] == [0.1, 0.2, 0.4]
    assert orders["behind"] == {"ddp": [10 / 9, 10 / 8, 10 / 5]}
    assert orders["settled"]
    assert orders["text"] == (
        "diloco is first at learning rates of 0.1 and 0.2 and 0.4 alike (ddp held at its best, 0.2)."
    )


def test_an_order_that_turns_with_the_rate_is_open() -> None:
    times = {"ddp": at(40, 10, 12, 99), "diloco": at(20, 11, 5, 1)}
    orders = find_orders(times, "diloco", 0.2, "ddp")
    assert not orders["settled"]
    assert orders["first"] == ["ddp", "ddp", "diloco"]
    assert orders["text"] == (
        "Open by learning rate: ddp first at 0.1 and 0.2, diloco first at 0.4 (ddp held at its best, 0.2)."
    )


def test_a_best_rate_at_the_end_of_the_list_settles_nothing() -> None:
    times = {"ddp": at(1, 2, 3, 4), "diloco": at(9, 9, 9, 9)}
    orders = find_orders(times, "ddp", 0.1, "ddp")
    assert orders["rates"] == [0.1, 0.2]
    assert not orders["settled"]
    assert "the best, 0.1, is at the end of the list" in orders["text"]


def test_three_rates_all_count_wherever_the_best_one_is() -> None:
    times = {"ddp": {0.1: 30.0, 0.2: 20.0, 0.4: 10.0}, "diloco": {0.1: 9.0, 0.2: 8.0, 0.4: 9.0}}
    orders = find_orders(times, "diloco", 0.4, "ddp")
    assert orders["rates"] == [0.1, 0.2, 0.4]
    assert orders["settled"]


def test_a_tie_at_a_rate_settles_nothing() -> None:
    times = {"local": at(9, 5, 4, 1), "diloco": at(9, 6, 5, 1)}
    orders = find_orders(times, "local", 0.2, None)
    assert orders["first"] == [None, "local", "local"]
    assert not orders["settled"]
    assert find_orders({**times, "diloco": at(10, 6, 5, 1)}, "local", 0.2, None)["settled"]


def test_a_rate_at_which_nobody_arrives_settles_nothing() -> None:
    times = {"local": at(8, 5, math.inf, 1), "diloco": at(10, 6, math.inf, 1)}
    orders = find_orders(times, "local", 0.2, None)
    assert orders["first"] == ["local", "local", None]
    assert orders["behind"] == {"diloco": [10 / 8, 6 / 5, None]}
    assert not orders["settled"]
    assert orders["text"] == "Open by learning rate: local first at 0.1 and 0.2, nobody first at 0.4."


def test_a_first_that_does_not_arrive_at_a_rate_leaves_others_nothing_to_wait_for() -> None:
    times = {"local": at(9, 5, math.inf, 1), "diloco": at(9, math.inf, 7, 1)}
    assert find_orders(times, "local", 0.2, None)["behind"] == {"diloco": [1.0, None, 0.0]}


@given(
    st.lists(st.lists(st.floats(1, 1e6) | st.just(math.inf), min_size=4, max_size=4), min_size=2, max_size=4),
    st.sampled_from(GRID),
    st.booleans(),
)
def test_an_order_is_settled_where_the_first_is_behind_nobody_at_three_rates(
    columns: list[list[float]], best: float, is_held: bool
) -> None:
    times = {f"s{number}": at(*column) for number, column in enumerate(columns)}
    orders = find_orders(times, "s1", best, "s0" if is_held else None)
    ratios = [each for own in orders["behind"].values() for each in own]
    lost = any(each is not None and each < 1 for each in ratios)
    rates = [best if is_held and label == "s0" else rate for label in times for rate in orders["rates"]]
    assert len(rates) == len(times) * len(orders["rates"])
    if orders["settled"]:
        assert not lost
        assert 1 not in ratios
        assert best in GRID[1:3]
        assert all(math.isfinite(times["s1"][rate]) for rate in orders["rates"])
    elif len(orders["rates"]) == 3 and all(math.isfinite(times["s1"][rate]) for rate in orders["rates"]):
        assert lost or 1 in ratios
