"""What docs/papers/svm.md says of real processes."""

from __future__ import annotations

from pathlib import Path

from benchmarks.svm_real import SCENARIO, RealRow, page, read_rows, rows_of, write_rows
from paceline.sim.records.comparison import compare
from paceline.sim.scenario.schema import load
from tests.support.made_runs import made_run

MADE = [
    RealRow("MSF 1", 1, 4.0, 4.0, True, 0.5),
    RealRow("MSF 1", 2, 4.0, 4.0, True, 0.5),
    RealRow("MSF 8", 1, 1.02, 1.0, True, 0.5),
    RealRow("MSF 8", 2, 0.94, 1.0, False, 0.5),
]


def test_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    write_rows(MADE, tmp_path / "rows.csv")
    assert read_rows(tmp_path / "rows.csv") == MADE


def test_the_bars_are_about_all_runs() -> None:
    text = page(MADE)
    assert "mean error 2.00 % (bar: 1 %, missed), worst 6.00 % (bar: 5 %, missed)" in text
    assert "| MSF 8 | 0.98 s | 1.00 s | -6.00 to +2.00 % |" in text
    assert "3 of 4 runs went through the predicted models" in text
    assert "predicted: 4.08 (MSF 8); measured: 4.00 (MSF 8)" in text


def test_a_comparison_gives_a_row_for_each_run() -> None:
    predicted, measured = (
        [made_run("MSF 8", seed, reached_s=reached_s) for seed in (1, 2)] for reached_s in (2.0, 2.5)
    )
    rows = rows_of(compare("svm", predicted, measured), 1.5)
    assert [(row.label, row.seed, row.load) for row in rows] == [("MSF 8", 1, 1.5), ("MSF 8", 2, 1.5)]
    assert rows[0].measured_s == measured[0].wall_clock_s


def test_what_has_not_been_measured_is_not_claimed(tmp_path: Path) -> None:
    assert "Not yet measured" in page(read_rows(tmp_path / "rows.csv"))


def test_the_scenario_is_measured_with_enough_seeds_for_an_interval() -> None:
    scenario = load(SCENARIO)
    assert [entry.label for entry in scenario.schemes] == ["MSF 1", "MSF 8", "MSF 32"]
    assert scenario.repeats == 5
