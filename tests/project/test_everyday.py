"""The bars of everyday commands, on made-up seconds."""

from __future__ import annotations

from benchmarks.everyday import BESIDE, IN_FOLDER, LIMITS, bars_of


def test_a_bar_is_the_median_of_the_multiples_within_rounds() -> None:
    rounds = [
        {BESIDE: 1.0, "check two-sites": 2.0, "list": 0.4},
        {BESIDE: 4.0, "check two-sites": 12.0, "list": 0.8},  # a slower machine, for both
        {BESIDE: 2.0, "check two-sites": 4.8, "list": 0.8},
    ]
    sites, listed = bars_of(rounds)
    assert sites.what == "`paceline check two-sites` beside `import torch`, processor"
    assert (sites.limit, sites.measured, sites.met) == ("at most 2.50 times", "2.40 times", True)
    assert sites.detail == "4.80 s"
    assert (listed.limit, listed.measured, listed.met) == ("at most 0.35 times", "0.40 times", False)


def test_what_writes_files_has_a_limit() -> None:
    assert IN_FOLDER.keys() <= LIMITS.keys()
