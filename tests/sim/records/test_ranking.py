from __future__ import annotations

import math

import numpy as np
import pytest

from paceline.sim.records.ranking import chance_to_win, find_winner

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


def test_a_chance_is_never_certain() -> None:
    assert chance_to_win(5.0, 5) == pytest.approx(5.5 / 6)
    assert chance_to_win(0.0, 5) == pytest.approx(0.5 / 6)
    assert chance_to_win(2.5, 5) == 0.5  # five ties of two


@pytest.mark.parametrize("races", [5, 6, 30])
def test_the_chances_of_two_add_up_to_one_and_grow_with_the_wins(races: int) -> None:
    chances = [chance_to_win(wins, races) for wins in range(races + 1)]
    assert chances == sorted(chances)
    assert all(0 < chance < 1 for chance in chances)
    assert np.add(chances, chances[::-1]) == pytest.approx(1.0)
