"""Published losses of seldom averaging: the table, and what is interpolated."""

from __future__ import annotations

import math
from collections import defaultdict

import pytest

from benchmarks.large_models import seldom_averaging
from benchmarks.large_models.published import PublishedRun, published_runs, ratio_at


def test_every_row_is_whole_and_no_run_stands_twice() -> None:
    settings = defaultdict[tuple[object, ...], int](int)
    for run in published_runs():
        assert run.mark in ("S", "O")
        assert run.unit in ("loss", "perplexity")
        assert run.period > 1
        assert run.workers > 1
        assert 10 < run.tokens / run.parameters < 2000 or run.study.startswith("ft-diloco")
        assert 0.97 < run.loss_ratio < 1.1
        assert run.begins in ("a trained model [S]", "random [M]", "not read")
        assert (run.begins == "a trained model [S]") == ("trained before" in run.study)
        settings[run.study, run.method, run.parameters, run.workers, run.period] += 1
    assert max(settings.values()) == 1


def run_of(period: int, score: float, unit: str = "loss", each_step: float = 2.0) -> PublishedRun:
    return PublishedRun("s", "S", "diloco", 1e6, 2, period, 1e8, "0.7", unit, score, each_step, "random [M]")


def test_a_ratio_by_hand() -> None:
    runs = [run_of(10, 2.2), run_of(1000, 2.4)]
    assert ratio_at(runs, 10) == (1.1, (10,))
    between = ratio_at(runs, 100)
    assert between is not None
    assert between[0] == pytest.approx(1.15)
    assert list(between[1]) == [10, 1000]
    assert ratio_at(runs, 9) is None
    assert ratio_at(runs, 1001) is None
    assert ratio_at([], 10) is None
    assert run_of(10, math.exp(3), "perplexity", math.exp(2)).loss_ratio == pytest.approx(1.5)


@pytest.mark.parametrize(("period", "error"), [(50, 0.0014), (200, 0.0029)])
def test_losses_that_were_predicted_before_they_were_looked_at(period: int, error: float) -> None:
    runs = seldom_averaging.study("ft-diloco")
    assert period not in {run.period for run in runs}
    predicted = seldom_averaging.predicted_loss(runs, period)
    assert predicted == pytest.approx(seldom_averaging.OPENED[period], rel=error)


def test_each_period_of_a_study_from_the_others() -> None:
    for run, near, far in seldom_averaging.left_out():
        assert math.log(near) == pytest.approx(math.log(run.score), rel=0.005)
        assert math.log(far) == pytest.approx(math.log(run.score), rel=0.005)
