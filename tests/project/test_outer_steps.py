"""The study of outer steps: crossings, ratios and its rows."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from benchmarks.outer_steps import KEYS, LEVELS, page_lines, ratios, read_rows, row_of, scenario
from paceline.sim.scenario.schema import resolve_scenario


def test_a_crossing_lies_straight_between_two_scorings() -> None:
    curve = pd.DataFrame({"step": [0, 100, 200, 300], "test_loss": [4.0, 2.0, 1.9, 1.7]})
    row = row_of("0.7/0.9 20", curve)
    assert row == {
        "outer": "0.7/0.9",
        "period": "20",
        "90 %": "150",
        "95 %": "250",
        "98 %": "295",
        "end": "1.7000",
    }
    assert row_of("all_reduce", curve[:3])["98 %"] == ""


def row(workers: int, outer: str, period: int, rate: float, steps: float, seed: int = 1) -> dict[str, object]:
    return {"workers": workers, "outer": outer, "period": period, "rate": rate, "seed": seed, "95 %": steps}


def test_a_ratio_is_over_all_reduce_at_its_best_rate() -> None:
    rows = [row(1, "all_reduce", 0, 0.003, 300), row(1, "all_reduce", 0, 0.006, 200)]
    rows += [row(8, "1/0", 20, 0.003, 600), row(8, "1/0", 20, 0.006, math.inf)]
    assert ratios(rows, "95 %") == {(8, "1/0", 20): {0.003: 3.0, 0.006: math.inf}}


@pytest.mark.parametrize("workers", [1, 8])
def test_its_scenarios_are_valid(workers: int) -> None:
    entries = resolve_scenario(scenario(workers, 0.006, 1), None, (), None).schemes
    assert len(entries) == 9 + (workers == 1)


def test_its_rows_are_each_there_once() -> None:
    rows = read_rows()
    assert len({tuple(row[key] for key in KEYS) for row in rows}) == len(rows)
    assert all(row["90 %"] <= row["95 %"] <= row["98 %"] for row in rows)
    assert set(LEVELS) == {"90 %", "95 %", "98 %"}
    assert len(list(page_lines(rows))) >= 2
