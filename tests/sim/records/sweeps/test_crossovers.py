"""Crossovers: where two schemes take equally long."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.sim.records.sweeps.content import crossing, find_crossovers


def summary(times: dict[str, list[float]], settled: bool = True) -> Any:
    first = min(times, key=lambda label: sorted(times[label])[len(times[label]) // 2])
    runs = [
        {"source": "simulated", "label": label, "seed": seed, "time_to_target_s": time_s}
        for label, own in times.items()
        for seed, time_s in enumerate(own)
    ]
    goal = {"metric": "train_loss", "value": 1.0}
    return {"runs": runs, "target": goal, "verdict": {"first": first, "settled": settled}}


def test_a_crossover_has_the_median_over_repeats_and_its_interval() -> None:
    settings = [{"a.latency": f"{ms} ms", "a.bandwidth": [{"b": 1}]} for ms in (30, 10, 40, 5)]
    # Repeat r: the first takes (x + r / 10) s at x ms; the second takes 14 s.
    times = [{"one": [x + 0.1 * r for r in range(9)], "two": [14.0] * 9} for x in (30.0, 10.0, 40.0, 5.0)]
    (found,) = find_crossovers(settings, [summary(each) for each in times])
    assert (found["before"], found["after"], found["between"]) == ("one", "two", ["10 ms", "30 ms"])
    assert found["others"] == {"a.bandwidth": [{"b": 1}]}
    assert found["at"]["median"] == pytest.approx(13.6e-3)
    low, high = found["at"]["low"], found["at"]["high"]
    assert low is not None
    assert high is not None
    assert 13.2e-3 <= low < 13.6e-3 < high <= 14e-3
    assert found["text"].startswith("bandwidth [{b: 1}]: beyond 13.6 ms (13.3 ms to 13.9 ms) of latency, two")


def test_an_interval_beyond_the_sweep_is_not_settled() -> None:
    settings = [{"cluster.workers": n} for n in (4, 8)]
    fives = [[1.0] * 5, [1.0, 3.0, 3.0, 3.0, 1.0]]
    times = [{"one": own, "two": [2.0] * 5} for own in fives]
    (found,) = find_crossovers(settings, [summary(each, settled=False) for each in times])
    assert not found["settled"]
    assert found["at"]["high"] is None
    assert found["text"] == "beyond a value between 4 and 8 (not settled) of workers, two is ahead of one"


def test_words_have_no_crossover() -> None:
    settings = [{"optimizer": name} for name in ("sgd", "adam")]
    times = [{"one": [1.0] * 5, "two": [2.0] * 5}, {"one": [2.0] * 5, "two": [1.0] * 5}]
    assert find_crossovers(settings, [summary(each) for each in times]) == []


@given(
    cost=st.floats(0.1, 10),
    at=st.floats(1.1, 99),
    values=st.lists(st.integers(11, 999).map(lambda tenths: tenths / 10), max_size=6, unique=True),
    inverse=st.booleans(),
)
def test_differences_that_are_linear_are_solved_exactly(
    cost: float, at: float, values: list[float], inverse: bool
) -> None:
    grid = [0.5, *sorted({1.0, *values, 100.0}), 200.0]
    differences = [cost * (1 / at - 1 / x if inverse else x - at) for x in grid]
    assert crossing(grid, differences, inverse=inverse) == pytest.approx((at, at, at))


@given(
    at=st.floats(1.5, 90),
    values=st.lists(
        st.integers(11, 999).map(lambda tenths: tenths / 10), min_size=2, max_size=8, unique=True
    ),
    bend=st.floats(0.2, 5),
    inverse=st.booleans(),
)
def test_a_curve_that_is_bent_to_one_side_is_between_the_bounds(
    at: float, values: list[float], bend: float, inverse: bool
) -> None:
    grid = sorted({1.0, *values, 100.0})
    low, median, high = crossing(grid, [x**bend - at**bend for x in grid], inverse=inverse)
    assert low <= median <= high
    if not inverse:
        assert low * (1 - 1e-9) <= at <= high * (1 + 1e-9)


def test_of_several_crossings_the_next_one_counts() -> None:
    differences = [-1.0, 1.0, -1.0, 1.0]
    values = [0.0, 1.0, 2.0, 3.0]
    assert crossing(values, differences, near=0)[1] == 0.5
    assert crossing(values, differences, near=2)[1] == 2.5
    assert crossing(values, [-math.inf, -1.0, math.inf, math.inf]) == (1.0, 1.5, 2.0)
