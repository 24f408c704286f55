"""docs/proxies.md and the sentence of a verdict are made of the study's rows; its parts by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.carry_over import analysis
from benchmarks.carry_over.analysis import Place
from benchmarks.carry_over.noise import Noise, read
from benchmarks.carry_over.page import MARK, PAGE, compared_tasks, generated, named_moves
from benchmarks.carry_over.runs import Cell, Row, Table
from benchmarks.carry_over.study import (
    HELD_OUT,
    REFERENCE,
    SCHEMES,
    TASKS,
    Trainer,
    best_rate,
    climb,
    crossing,
    scored_steps,
)
from paceline.sim.records.carry import noise
from paceline.sim.records.carry.break_even import SGD
from paceline.sim.records.run import Evaluation
from paceline.sim.seeds import Floats
from tests.support.made_runs import made_run

CELL = Cell("logistic", "iid", 8)


@pytest.mark.slow
def test_the_page_and_the_sentence_are_made_of_the_rows() -> None:
    table = Table()
    _, _, below = PAGE.read_text().partition(MARK)
    assert below == generated(table)
    logs = analysis.log_steps(table, tuple(TASKS))
    moved = named_moves(logs)
    assert (round(moved.median, 2), round(moved.rare, 2)) == (SGD.moved, SGD.moved_rarely)
    assert compared_tasks(logs) == SGD.compared
    assert f"{TASKS[HELD_OUT].parameters:,}" == SGD.largest
    fitted, known = analysis.fit(logs, read()), [each for each in read().values() if each.resolved]
    assert [tuple(fitted[scheme, 90].round(3)) for scheme in analysis.OTHERS] == [*noise.RULE.values()]
    means = [each.rule for task in TASKS if (each := analysis.errors(logs, read(), task)) is not None]
    assert np.exp(np.mean(means)) - 1 == pytest.approx(noise.ERROR, abs=0.005)
    ranges = [(min(values), max(values)) for values in zip(*((x.u, x.v) for x in known), strict=True)]
    assert all(a <= low and high <= b for (low, high), (a, b) in zip(ranges, noise.REACH, strict=True))


@pytest.mark.slow
def test_a_row_is_found_again(tmp_path: Path) -> None:
    """The first tuning runs of the smallest task, simulated anew."""
    written, anew = Table(), Table(tmp_path / "rows.csv")
    key = next(key for key in written.rows if key[:2] == (CELL, REFERENCE))
    known = written.rows[key]
    found = Trainer(anew).steps(CELL, REFERENCE, known.rate, known.seed, known.cap)[0]
    assert found == pytest.approx((known.steps_70, known.steps_90), rel=0.02)
    assert Table(tmp_path / "rows.csv").rows == anew.rows


def test_steps_are_interpolated_between_evaluations() -> None:
    losses = {0: 4.0, 10: 2.0, 20: 1.0, 30: 3.0}
    scores = tuple(Evaluation(k, 0.1 * k, 0, {"train_loss": x}) for k, x in losses.items())
    run = replace(made_run("a"), evaluations=scores)
    assert crossing(run, 1.25) == pytest.approx(17.5)
    assert crossing(run, 4.0) == 0
    assert crossing(run, 0.5) == math.inf


def test_a_climb_ends_where_both_neighbours_are_no_better() -> None:
    tried: list[int] = []

    def merit(rate: int) -> float:
        tried.append(rate)
        return math.inf if rate > 1 else (rate + 3.0) ** 2

    assert climb(merit, 3, 1) == -3
    assert sorted(tried) == sorted(set(tried))
    assert climb(lambda rate: math.inf, 0, 1) == 0


def row(rate: int, seed: int, steps_70: float, steps_90: float) -> Row:
    return Row("logistic", "iid", 8, REFERENCE, rate, seed, 500, steps_70, steps_90)


def test_each_level_has_its_rate_and_is_scored_on_other_seeds(tmp_path: Path) -> None:
    table = Table(tmp_path / "rows.csv")
    for first in (1, 101):
        table.add([row(2, first + i, 10.0 + i, math.inf) for i in range(3)])
        table.add([row(1, first + i, 20.0 + i, 40.0 + first) for i in range(3)])
    table.add([row(0, 1 + i, 5.0, 5.0) for i in range(3)])  # not scored
    assert [best_rate(table, CELL, REFERENCE, place) for place in (0, 1)] == [2, 1]
    assert scored_steps(table, CELL, REFERENCE, 0) == [10.0, 11.0, 12.0]
    assert scored_steps(table, CELL, REFERENCE, 1) == [141.0] * 3
    assert scored_steps(table, CELL, "local 4", 1) is None


def test_a_ratio_is_a_median_in_which_a_miss_is_slowest() -> None:
    logs = {REFERENCE: np.log([10.0, 10.0, 10.0]), "a": np.log([20.0, np.inf, 5.0])}
    logs["b"] = np.log([np.inf, np.inf, 10.0])
    assert analysis.ratio(logs, "a") == pytest.approx(math.log(2))
    assert analysis.ratio(logs, "b") is None
    assert analysis.ratio(logs, "c") is None


def test_moves_are_between_ratios_of_the_same_pair() -> None:
    """One pair of schemes, at 2 and at 4 times all-reduce's steps: a move by 2."""
    places = [Place(task, "iid", 1, 90) for task in ("logistic", "digits-mlp")]
    logs = {
        place: {REFERENCE: np.zeros(3), "local 4": np.full(3, math.log(factor))}
        for place, factor in zip(places, (2.0, 4.0), strict=True)
    }
    (move,) = analysis.moves(logs, analysis.between_tasks)
    assert move.tasks == ("logistic", "digits-mlp")
    assert (move.size, move.by_seeds) == pytest.approx((math.log(2), 0.0))
    assert analysis.moves(logs, analysis.between_partitions) == []
    found = analysis.spread([move, move])
    assert (found.median, found.rare, *found.rare_interval) == pytest.approx((2.0,) * 4)


def test_a_rule_that_holds_is_fitted_without_error() -> None:
    logs: dict[Place, dict[str, Floats]] = {}
    noise = {}
    for number, task in enumerate(TASKS):
        for place in (Place(task, "iid", k, level) for k in range(3) for level in (70, 90)):
            u, v = 2.0 ** (number - place.noise), 0.5 * number + place.noise
            b = place.cell.batch
            noise[place.cell, place.level] = Noise(task, "iid", b, place.level, 8 * b * u, v, 1.0, 9, 1)
            value = 0.3 + 0.2 * math.log(u) + 0.4 * math.log1p(v)
            logs[place] = {x: np.full(3, value if x != REFERENCE else 0.0) for x in SCHEMES}
    found = analysis.errors(logs, noise, "text-kjv")
    assert found is not None
    assert found.rule == pytest.approx(0.0, abs=1e-9)
    assert found.rule_wins
    assert found.equal > found.rule < found.proxy
