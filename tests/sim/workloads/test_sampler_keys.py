"""The sum tree that keys are drawn from in proportion to their weights."""

from __future__ import annotations

import math
import sys
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.sim.workloads.sampler import FAN_OUT, SumTree, WeightedKeys


@given(st.lists(st.tuples(st.integers(0, 19), st.floats(0, 1e6)), max_size=60), st.floats(0, 0.999999))
def test_the_tree_is_a_list_of_weights(changes: list[tuple[int, float]], uniform: float) -> None:
    keys, naive = WeightedKeys(20), np.ones(20)
    for key, weight in changes:
        keys.change(key, weight)
        naive[key] = weight
    assert keys.total == pytest.approx(naive.sum(), rel=1e-12)
    assert [keys.weight(k) for k in range(20)] == naive.tolist()
    assert len(keys.tree.rows) <= 2 * np.log2(20 + 1)
    drawn = keys.draw(uniform)
    assert 0 <= drawn < 20
    assert naive[drawn] > 0 or naive.sum() == 0


@pytest.mark.parametrize("length", [1, 8, 9, 37, 64, 65, 600])
def test_each_sum_is_that_of_the_places_below(length: int) -> None:
    tree = SumTree()
    for k in range(length):
        tree.append(float(k))
    for k in range(0, length, 3):
        tree.change(k, 1 / (k + 1))
    rows = tree.rows
    for below, above in pairwise(rows):
        assert list(above) == [sum(below[k : k + FAN_OUT]) for k in range(0, len(below), FAN_OUT)]
    assert len(rows[-1]) <= FAN_OUT
    assert len(tree.rows) == max(1, math.ceil(math.log(length, FAN_OUT) - 1e-9))
    assert tree.total == sum(rows[-1])
    assert tree.total == pytest.approx(sum(tree.rows[0][k] for k in range(length)))


def test_a_target_that_rounding_has_left_beyond_the_end_is_at_the_last_weight() -> None:
    tree = SumTree()
    for weight in (1.0, 2.0, 0.0, 3.0, *[0.0] * 40):
        tree.append(weight)
    assert tree.place_at(6.0) == tree.place_at(5.999) == 3


def test_draws_are_in_proportion_to_weights() -> None:
    keys = WeightedKeys(6)
    for key, weight in ((4, 3.0), (0, 0.0), (5, 0.5)):
        keys.change(key, weight)
    grid = (np.arange(60_000) + 0.5) / 60_000
    counts = np.bincount([keys.draw(u) for u in grid], minlength=6)
    expected = np.array([0.0, 1, 1, 1, 3, 0.5]) / 6.5
    np.testing.assert_allclose(counts / 60_000, expected, atol=1e-4)
    np.testing.assert_allclose([keys.probability(k) for k in range(6)], expected)


def test_memory_is_taken_for_visited_keys_only() -> None:
    keys = WeightedKeys(10**12)
    for k in range(100):
        keys.change(k * 10**9, 2.0)
    assert len(keys.tree.rows) == 3
    assert (
        sum(sys.getsizeof(part) for part in (keys._places, keys._others, keys._entries, keys._keys)) < 60_000
    )
    assert keys.total == 10**12 + 100


def test_where_all_weights_are_zero_all_are_as_likely() -> None:
    """Interpolation: every gradient is 0 at the optimum."""
    keys = WeightedKeys(4)
    for k in range(4):
        keys.change(k, 0.0)
    assert [keys.draw(u) for u in (0.0, 0.3, 0.6, 0.9)] == [0, 1, 2, 3]
    assert keys.probability(2) == 0.25


@pytest.mark.parametrize("number", [1000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_a_draw_and_a_change_go_through_as_many_rows_as_the_tree_is_high(number: int) -> None:
    """Less than twice as many at a million as at a thousand."""
    keys = WeightedKeys(number)
    for k in range(number):
        keys.change(k, 1.0)
    assert len(keys.tree.rows) == {1000: 4, 1_000_000: 7}[number]
