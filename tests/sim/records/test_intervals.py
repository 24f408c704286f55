from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from paceline.sim.records.intervals import FEWEST, LEVEL, median_ratio, of_median, of_ratio

Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


def test_five_values_by_hand() -> None:
    # The range holds the median in 1 - 2 / 32 = 93.75 % of all cases, and nothing wider is known.
    found = of_median([17.0, 10.0, 12.0, 30.0, 20.0])
    assert found == {"median": 17.0, "low": 10.0, "high": 30.0}


def test_seven_values_by_hand() -> None:
    # From the first to the last: 1 - 2 / 128 = 63/64; from the second to the sixth: 1 - 16 / 128 = 7/8.
    # 95 % is (63/64 - 95/100) / (63/64 - 7/8) = 11/35 of the way down, where the bound stands
    # 6 * 11/35 / (1 + 5 * 11/35) = 11/15 of the way in.
    found = of_median([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])
    assert found["low"] == pytest.approx(1 + 11 / 15, rel=1e-12)
    assert found["high"] == pytest.approx(7 - 11 / 15, rel=1e-12)


def test_six_ratios_by_hand() -> None:
    # 1 - 2 / 64 = 31/32 and 1 - 14 / 64 = 25/32: 95 % is 1/10 of the way down, 5/10 / (1 + 4/10) = 5/14 in.
    ones = dict.fromkeys(range(6), 1.0)
    found = of_ratio({seed: 2.0**seed for seed in range(6)}, ones)
    assert found["median"] == pytest.approx(math.sqrt(4.0 * 8.0))
    assert found["low"] == pytest.approx(2 ** (5 / 14))
    assert found["high"] == pytest.approx(2 ** (5 - 5 / 14))


def test_few_values_say_nothing_about_chance() -> None:
    assert of_median([1.0, 2.0, 3.0, 4.0]) == {"median": 2.5, "low": None, "high": None}
    # The range of n values misses the median if all are above it, or all below.
    assert 1 - 2 ** (1 - (FEWEST - 1)) < 0.9 < 1 - 2 ** (1 - FEWEST)


def test_values_that_never_came_are_infinite_and_stay_in() -> None:
    inf = math.inf
    # Of the resamples 31.7 % hold an infinite value three times or more.
    assert of_median([10.0, 11.0, 12.0, inf, inf]) == {"median": 12.0, "low": 10.0, "high": None}
    assert of_median([10.0, 11.0, inf, inf, inf])["median"] is None


def test_ratios_are_paired_by_seed() -> None:
    slow = {seed: 2 * time for seed, time in enumerate([10.0, 50.0, 20.0, 40.0, 30.0])}
    fast = {seed: time / 2 for seed, time in slow.items()}
    # Twice as long on every seed: the ratio is certain, though the times overlap.
    assert of_ratio(slow, fast) == {"median": 2.0, "low": 2.0, "high": 2.0}
    assert of_ratio({0: 6.0, 7: 1.0}, {0: 2.0, 8: 1.0})["median"] == 3.0
    assert of_ratio({0: 6.0}, {1: 2.0})["median"] is None


def test_neither_is_ahead_where_neither_arrives() -> None:
    never = dict.fromkeys(range(5), math.inf)
    assert of_ratio(never, never) == {"median": 1.0, "low": 1.0, "high": 1.0}
    assert of_ratio(dict.fromkeys(range(5), 1.0), never)["median"] == 0.0


@pytest.mark.parametrize("n", [5, 6, 9, 12, 30, 101])
def test_the_sign_test_of_the_library_holds_it(n: int) -> None:
    # The library's interval stands at order statistics and is wider; ours is less than one of them in.
    values = np.sort(np.random.default_rng(n).lognormal(size=n))
    found = of_median(values.tolist())
    assert found["low"] is not None
    assert found["high"] is not None
    if n == FEWEST:
        assert (found["low"], found["high"]) == (values[0], values[-1])
        return
    library: Any = stats.quantile_test(values, p=0.5).confidence_interval(LEVEL)
    place = values.tolist().index(library.low)
    assert library.low <= found["low"] < values[place + 1]
    assert values[n - place - 2] < found["high"] <= library.high


TIMES = st.floats(0.1, 1e4) | st.just(math.inf)


@given(st.dictionaries(st.integers(0, 20), st.tuples(TIMES, TIMES), min_size=1))
def test_who_is_ahead_does_not_depend_on_who_is_asked(pairs: dict[int, tuple[float, float]]) -> None:
    a, b = ({seed: pair[i] for seed, pair in pairs.items()} for i in (0, 1))
    one, other = median_ratio(a, b), median_ratio(b, a)
    assert one is not None
    assert other is not None
    assert one == pytest.approx(1 / other if other else math.inf)
    found, turned = of_ratio(a, b), of_ratio(b, a)
    for bound, opposite in (("low", "high"), ("high", "low")):
        if found[bound] and turned[opposite]:  # type: ignore[literal-required]
            assert found[bound] == pytest.approx(1 / turned[opposite])  # type: ignore[literal-required]


DRAWS: dict[str, Draw] = {
    "normal": lambda g, shape: g.standard_normal(shape),
    "uniform": lambda g, shape: g.uniform(-1, 1, shape),
    "heavy": lambda g, shape: g.standard_t(3, shape),
    "skewed": lambda g, shape: g.exponential(size=shape) - math.log(2),
}


@pytest.mark.parametrize("repeats", [5, 6, 7, 8, 9, 10, 20])
@pytest.mark.parametrize("name", DRAWS)
def test_intervals_hold_what_they_promise(repeats: int, name: str) -> None:
    """Lognormal times with a part that both schemes share; the logarithm of the true ratio is 0.5."""
    draws, trials, inside = np.random.default_rng(repeats), 1500, 0
    shared = 0.14 * draws.standard_normal((trials, repeats))
    slow = np.exp(0.5 + shared + 0.14 * DRAWS[name](draws, (trials, repeats)))
    for above, below in zip(slow, np.exp(shared), strict=True):
        found = of_ratio(dict(enumerate(above)), dict(enumerate(below)))
        assert found["low"] is not None
        assert found["high"] is not None
        inside += found["low"] <= math.exp(0.5) <= found["high"]
    assert 0.92 <= inside / trials <= 0.965
