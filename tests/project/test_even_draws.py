"""What docs/papers/leader-sgd.md says of chance."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest

from benchmarks.even_draws import laws_of_most, most_over_share, page
from benchmarks.papers import MARK, ROOT


@pytest.mark.parametrize(("rounds", "workers"), [(1, 3), (4, 2), (5, 3), (3, 5)])
def test_the_law_is_that_of_all_draws(rounds: int, workers: int) -> None:
    most = [max(Counter(draws).values()) for draws in product(range(workers), repeat=rounds)]
    expected = [sum(each <= m for each in most) / len(most) for m in range(rounds + 1)]
    assert [float(law) for law in laws_of_most(rounds, workers)] == pytest.approx(expected, abs=1e-15)


def test_the_median_is_the_first_that_half_of_all_runs_stay_below() -> None:
    """14 rounds among 16: at most 2 in 34 % of all runs, at most 3 in 86 %."""
    laws = [float(law) for law in laws_of_most(14, 16)]
    assert [round(law, 3) for law in laws[1:5]] == [0.0, 0.338, 0.856, 0.981]
    assert most_over_share(14, 16) == pytest.approx((3 * 16 / 14, 2 * 16 / 14, 4 * 16 / 14))


def test_the_page_ends_with_it() -> None:
    text = (ROOT / "docs" / "papers" / "leader-sgd.md").read_text(encoding="utf-8")
    assert text.partition(MARK)[2].endswith(f"\n\n{page()}")
