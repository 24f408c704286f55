from __future__ import annotations

import math

import numpy as np
import pytest

from paceline.sim.records.ranking import chances, find_winner

INF = math.inf


def times(**columns: list[float]) -> dict[str, dict[int, float]]:
    return {label: dict(enumerate(column)) for label, column in columns.items()}


def test_the_paired_ratio_decides_and_not_the_medians() -> None:
    # a is the faster one on four seeds of five, and has the larger median.
    found = times(a=[1.0, 4.0, 5.0, 6.0, 7.0], b=[2.0, 4.5, 4.9, 7.0, 8.0])
    assert np.median(list(found["a"].values())) > np.median(list(found["b"].values()))
    assert find_winner(found) == "a"
    assert find_winner(dict(reversed(found.items()))) == "a"


def test_whoever_ties_is_first_by_its_median_time() -> None:
    # On the one seed that they share they are equal.
    assert find_winner({"a": {0: 5.0, 1: 9.0}, "b": {0: 5.0, 2: 4.0}}) == "b"
    assert find_winner({"a": {0: 5.0}, "b": {1: 4.0}}) == "b"
    assert find_winner(times(a=[INF, 1.0, 1.0], b=[1.0, 1.0, 1.0])) == "b"


def test_in_a_circle_the_median_time_decides() -> None:
    # Each is beaten by the one before it on two seeds of three; the medians are 2, 2 and 1.9.
    found = times(a=[1.0, 2.0, 3.0], b=[2.0, 3.0, 1.0], c=[3.0, 1.0, 1.9])
    assert find_winner(found) == "c"


def test_who_mostly_fails_takes_no_part() -> None:
    assert find_winner(times(lucky=[1.0, INF, INF], steady=[50.0, 50.0, 50.0])) == "steady"
    assert find_winner(times(a=[1.0, INF, INF], b=[INF, INF, INF])) is None
    assert find_winner({}) is None


def test_chances_by_hand() -> None:
    # a wins three of five races: the median ratio of a resample is its if it holds them three times or more,
    # with five draws at 0.6 each in 68.3 %.
    found = chances(np.array([[1.0, 1.0, 1.0, 9.0, 9.0], [5.0, 5.0, 5.0, 5.0, 5.0]]))
    assert found == pytest.approx([0.683, 0.317], abs=0.015)
    # Ahead on each seed, by little beside what the seeds differ: sure all the same, of pairs.
    seeds = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
    assert chances(np.stack([seeds, 1.01 * seeds])) == pytest.approx([1.0, 0.0])
    assert chances(np.stack([seeds, seeds])) == pytest.approx([0.5, 0.5])


def test_chances_of_those_who_never_arrive() -> None:
    never, half = [INF] * 6, [1.0, 1.0, 1.0, INF, INF, INF]
    assert chances(np.array([never, never])).tolist() == [0.0, 0.0]
    # Six draws at a half each: the median is finite if four are (with three it is halfway to infinity).
    assert chances(np.array([half, never])) == pytest.approx([22 / 64, 0.0], abs=0.015)


def test_the_order_of_the_schemes_says_nothing() -> None:
    columns = np.random.default_rng(1).lognormal(size=(4, 8))
    assert chances(columns[::-1])[::-1] == pytest.approx(chances(columns))
    assert chances(columns).sum() == pytest.approx(1.0)


def test_few_seeds_say_nothing_about_chance() -> None:
    with pytest.raises(ValueError, match="4 seeds say nothing"):
        chances(np.ones((2, 4)))
