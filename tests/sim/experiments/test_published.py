"""Published losses of seldom averaging: the table, what is interpolated, and what is refused."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import pytest
from rich.console import Console

from benchmarks.large_models import seldom_averaging
from paceline.reports.tables import render_throughput
from paceline.sim.experiments.costs.published import (
    SIZE_FACTOR,
    PublishedRun,
    published_losses,
    published_runs,
    ratio_at,
)
from tests.support.factory import make_job

FT_DILOCO = 51_192_320


def found(
    parameters: float, workers: int, scheme: str = "diloco", **options: Any
) -> tuple[list[dict[str, Any]], list[str]]:
    return published_losses(make_job(scheme, options, workers=workers), int(parameters))


def test_every_row_is_whole_and_no_run_stands_twice() -> None:
    settings = defaultdict[tuple[object, ...], int](int)
    for run in published_runs():
        assert run.mark in ("S", "O")
        assert run.unit in ("loss", "perplexity")
        assert run.period > 1
        assert run.workers > 1
        assert 10 < run.tokens / run.parameters < 2000 or run.study.startswith("ft-diloco")
        assert 0.97 < run.loss_ratio < 1.1
        settings[run.study, run.method, run.parameters, run.workers, run.period] += 1
    assert max(settings.values()) == 1


def run_of(period: int, score: float, unit: str = "loss", each_step: float = 2.0) -> PublishedRun:
    return PublishedRun("s", "S", "diloco", 1e6, 2, period, 1e8, "0.7", unit, score, each_step)


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


def test_a_study_of_that_very_model() -> None:
    (exact, *_), (text, *_) = found(FT_DILOCO, 2, period=100)
    assert exact["loss_ratio"] == pytest.approx(1.783 / 1.6773)
    assert exact["periods"] == (100,)
    assert text == (
        "published: +6.3 % loss at H = 100 against averaging each step: 51.2 M parameters, 2 workers, "
        "98.3 M tokens, outer rate 0.7; ft-diloco (nicholicaron/ft-diloco) [O]"
    )


def test_the_nearest_size_comes_first_and_says_how_far_it_is() -> None:
    losses, texts = found(124_439_808, 4, period=30)
    assert [round(each["parameters"] / 1e6) for each in losses] == [90, 180]
    assert "90 M parameters (here 1.4 times as many), 4 workers" in texts[0]
    assert "at H = 30 (between 20 and 50) against" in texts[1]


def test_streaming_has_rows_of_its_own() -> None:
    losses, _ = found(1e9, 3, period=50, fragments=2)
    assert [each["study"].partition(" (")[0] for each in losses] == ["Streaming DiLoCo"]
    assert losses[0]["workers"] in (2, 4)
    assert losses[0]["periods"] == (30, 100)


@pytest.mark.parametrize(
    ("parameters", "workers", "options", "text"),
    [
        (FT_DILOCO, 2, {"period": 501}, "no published loss at H = 501 for 2 workers and 51.2 M parameters; "),
        (FT_DILOCO, 2, {"period": 24}, "ft-diloco (nicholicaron/ft-diloco) has H = 25, 100, 500"),
        (FT_DILOCO, 64, {"period": 30}, "no published loss at H = 30 for 64 workers and 51.2 M parameters"),
        (1e6, 2, {"period": 30}, "no published loss at H = 30 for 2 workers and 1 M parameters"),
        (
            10.1e9 * SIZE_FACTOR,
            2,
            {"period": 30},
            "no published loss at H = 30 for 2 workers and 20.2 G para",
        ),
        (1e9, 2, {"period": 8, "scheme": "local_sgd"}, "the table has DiLoCo, and none of local_sgd"),
    ],
)
def test_what_no_study_reaches_is_refused(
    parameters: float, workers: int, options: dict[str, Any], text: str
) -> None:
    losses, texts = found(parameters, workers, **options)
    assert losses == []
    (said,) = texts
    assert text in said


def test_nothing_is_said_where_every_step_averages() -> None:
    assert found(FT_DILOCO, 2, "all_reduce") == ([], [])
    assert found(FT_DILOCO, 2, period=1) == ([], [])
    assert found(FT_DILOCO, 2, "gossip", topology="ring") == ([], [])


def test_schemes_with_the_same_sentence_share_it() -> None:
    step = {"step_s": 1.0, "step_shares": [], "tokens_per_s": 1.0, "utilisation": 1.0, "problem": None,
            "needed_bytes_per_s": []}  # fmt: skip
    answer = {
        "scenario": "s", "workers": 2, "gpus_per_worker": 1, "parameters": 1, "tokens_per_step": 1,
        "tokens": None, "utilisations": [], "knob": "of a host",
        "schemes": [
            step | {"label": "a", "published_text": ["x", "y"]},
            step | {"label": "b", "published_text": ["y"]}, {"label": "c", "problem": "why"},
        ],
    }  # fmt: skip
    console = Console(width=100)
    with console.capture() as shown:
        console.print(render_throughput(answer))
    assert shown.get().endswith("\na: x\n\na, b: y\n")


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
