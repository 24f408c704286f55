"""The learning board: pairs, regrets and its files."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.learning.__main__ import (
    FOLDER,
    MARK,
    PAGE,
    Predicted,
    Table,
    page_lines,
    read_predicted,
    read_tables,
)
from paceline.sim.scenario.entries import PROXY, RATES
from paceline.sim.scenario.schema import load

SEEDS = range(5)


def scheme(label: str, steps: float, *by_rate: float, held: bool = False) -> Predicted:
    repeats = {seed: steps + seed for seed in SEEDS}
    return Predicted(label, repeats, dict(zip(RATES, by_rate, strict=True)), held)


DDP = scheme("ddp", 100, 150, 100, 120, held=True)
FAST, TURNED = scheme("fast", 80, 99, 80, 70), scheme("turned", 90, 101, 90, 60)
TABLE = Table(
    "t", [DDP, FAST, TURNED], {"ddp": 1, "fast": 2, "turned": 2}, {"ddp": 2.0, "fast": 2.1, "turned": 2.3}
)


def test_a_pair_is_settled_where_repeats_and_all_rates_agree() -> None:
    assert FAST.is_surely_before(DDP)
    assert not TURNED.is_surely_before(DDP)
    assert not DDP.is_surely_before(FAST)
    assert TABLE.settled() == [("fast", "ddp")]


def test_who_does_not_arrive_is_behind() -> None:
    never = Predicted("never", dict.fromkeys(SEEDS, math.inf), dict.fromkeys(RATES, math.inf), False)
    assert DDP.is_surely_before(never)
    assert not never.is_surely_before(DDP)


def test_a_regret_is_the_loss_above_the_best_one_and_ties_share() -> None:
    assert TABLE.regret({"ddp": 3, "fast": 1, "turned": 2}) == pytest.approx(0.1)
    assert TABLE.regret(TABLE.rule) == 0
    assert TABLE.regret(dict.fromkeys(TABLE.measured, 0)) == pytest.approx(0.4 / 3)


def test_a_regret_in_steps_is_the_share_of_the_best_time() -> None:
    steps = replace(TABLE, in_steps=True)
    assert steps.regret({"ddp": 2, "fast": 1, "turned": 3}) == pytest.approx(0.05)
    assert "| 5% | 0% |" in list(page_lines([steps]))[2]


def test_the_page_counts_settled_and_wrong_pairs() -> None:
    assert list(page_lines([TABLE]))[2] == (
        "| t | before | 3 | ddp | fast | 0.1000 nats | 0.0000 nats | 0.1333 nats | 1 of 3 | 1 |"
    )


def test_totals_count_each_source_once_and_fresh_ones_by_themselves() -> None:
    better = replace(TABLE, measured={"ddp": 2.0, "fast": 2.0, "turned": 2.0}, source="b", is_fresh=True)
    lines = list(page_lines([TABLE, TABLE, better, replace(TABLE, in_steps=True)]))
    assert lines[7:12] == [
        "- Opened since: mean regret of n = 1 sources in 1 tables: 0.0000 nats, of the rule 0.0000 nats, "
        "of equal steps 0.0000 nats.",
        "- Opened since: of 3 pairs 1 are settled (33%), 0 of them wrong: 0%, 95 % interval 0% to 79%.",
        "- Opened at any time: mean regret of n = 2 sources in 3 tables: 0.0500 nats, of the rule "
        "0.0000 nats, of equal steps 0.0667 nats.",
        "- Opened at any time: mean regret of n = 1 sources in 1 tables: 5%, of the rule 0%, of equal "
        "steps 7%.",
        "- Opened at any time: of 12 pairs 4 are settled (33%), 3 of them wrong: 75%, 95 % interval "
        "30% to 95%.",
    ]


def test_pairs_that_are_open_are_no_share() -> None:
    lines = list(page_lines([replace(TABLE, predicted=[DDP, TURNED], is_fresh=True)]))
    assert "- Opened since: of 1 pairs 0 are settled (0%)." in lines


@pytest.mark.parametrize(
    "folder", sorted({path.parent for path in FOLDER.glob("*/scenario*.yaml")}), ids=lambda x: x.name
)
def test_a_table_is_of_the_recipe_and_its_rows_are_of_its_schemes(folder: Path) -> None:
    scenarios = [load(path) for path in folder.glob("scenario*.yaml")]
    labels = {entry.label for scenario in scenarios for entry in scenario.schemes}
    for scenario in scenarios:
        assert scenario.workload.task == PROXY
        assert scenario.tune is not None
        assert scenario.tune.grid == {"optimizer.lr": RATES}
    if (folder / "predicted.csv").exists():
        assert {each.label for each in read_predicted(folder / "predicted.csv")} == labels


def test_the_page_has_the_tables_of_the_files() -> None:
    below = PAGE.read_text(encoding="utf-8").split(MARK)[1]
    assert below.strip() == "\n".join(page_lines(list(read_tables())))


def test_measured_rows_are_of_the_predictions() -> None:
    for path in FOLDER.glob("*/measured.csv"):
        labels = {each.label for each in read_predicted(path.with_name("predicted.csv"))}
        with path.open(newline="") as file:
            assert {row["label"] for row in csv.DictReader(file)} <= labels
