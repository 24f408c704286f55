"""The study of outer steps: crossings, ratios and its rows."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from benchmarks import outer_steps, outer_steps_page
from benchmarks.outer_steps import (
    KEYS,
    LEVELS,
    VARIANTS,
    moves,
    ratios,
    read_rows,
    row_of,
    scenario,
    variant,
    variant_moves,
    variant_schemes,
)
from benchmarks.outer_steps_page import MARK, PAGE, generated, move_lines, page_lines
from paceline.sim.records.carry.break_even import ADAMW
from paceline.sim.scenario.entries import RATES
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
    assert ratios(rows, "95 %") == {}  # a third rate might be better
    rows += [row(1, "all_reduce", 0, 0.012, 250)]
    assert ratios(rows, "95 %") == {(8, "1/0", 20): {0.003: 3.0, 0.006: math.inf}}


def of_levels(row: dict[str, object], *steps: float) -> dict[str, object]:
    return {**row, **dict(zip(LEVELS, steps, strict=True))}


def test_a_move_is_between_ratios_that_differ_in_one_thing() -> None:
    rows = [of_levels(row(1, "all_reduce", 0, rate, 0), 100, 200, 400) for rate in RATES]
    rows += [of_levels(row(8, "1/0", 20, 0.003, 0), 200, 400, math.inf)]
    rows += [of_levels(row(8, "1/0", 20, 0.006, 0), 100, 200, math.inf)]
    rows += [of_levels(row(8, "1/0", 500, 0.006, 0), 300, 200, 400)]
    assert moves(rows, "rate") == pytest.approx([2, 2])
    assert moves(rows, "period") == pytest.approx([1, 3, math.inf])
    assert moves(rows, "seed") == []


def test_a_variant_moves_ratios_at_its_own_best_rate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "variants.csv"
    file.write_text(
        "variant,label,rate,90 %,95 %,98 %,end\n"
        "as it is,all_reduce,0.003,200,300,400,1\nas it is,all_reduce,0.006,100,150,200,1\n"
        "as it is,gossip,0.006,100,150,200,1\n"
        "SGD,all_reduce,0.2,50,100,150,1\nSGD,gossip,0.2,100,50,,1\n"
    )
    for module in (outer_steps, outer_steps_page):
        monkeypatch.setattr(module, "VARIANT_ROWS", file)
    assert variant_moves("SGD") == pytest.approx([2, 2, math.inf])
    assert list(move_lines([]))[2:] == ["| SGD | 3 | 2.00 | never |"]


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_changes_one_thing(name: str) -> None:
    def resolved(name: str) -> Any:
        wanted = variant(name, 0.006, variant_schemes())
        return resolve_scenario(wanted, None, (), None).model_dump(mode="json")

    base, own = resolved("as it is"), resolved(name)
    same = {key for key in base if base[key] == own[key]}
    assert {"cluster", "schemes", "evaluate"} <= same
    assert len(VARIANTS[name].get("rates", RATES)) == 3


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


def test_the_page_is_made_of_the_rows() -> None:
    assert PAGE.read_text(encoding="utf-8").partition(MARK)[2] == generated()


def test_the_factors_of_adamw_are_those_of_the_variants() -> None:
    middle, rare = outer_steps_page.named_factors()
    assert (round(middle, 2), round(rare, 2)) == (ADAMW.moved, ADAMW.moved_rarely)
