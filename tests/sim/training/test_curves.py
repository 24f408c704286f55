"""Curves from files of every format, and the points at which a run is scored by them."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.sim.errors import InputError
from paceline.sim.records.verdict import Value
from paceline.sim.training.curves.curve import Curve, CurveFile
from paceline.sim.training.curves.points import CurveScorer, find_points, smooth
from paceline.sim.training.curves.read import read_curves
from paceline.sim.training.scoring import Target
from paceline.sim.training.snapshots import Published
from tests.support.event_files import event, event_file, simple, tensor

LOSSES = {0: 2.5, 100: 1.5, 200: 1.25}
UNDER: dict[str, Value] = {"workers": 4, "batch_size": 32}


def read(path: Path, **given: object) -> list[Curve]:
    conditions = given.pop("conditions", UNDER)
    return read_curves(path, CurveFile.model_validate({"file": "f", "conditions": conditions, **given}))


def rows() -> list[dict[str, object]]:
    return [{"scheme": "ring", "seed": 7, "step": step, "eval_loss": loss} for step, loss in LOSSES.items()]


def check(curve: Curve, scheme: str = "ring", seed: int = 7) -> None:
    assert (curve.scheme, curve.seed) == (scheme, seed)
    assert curve.known("eval_loss") == LOSSES
    assert (curve.under["workers"], curve.under["batch_size"]) == (4, 32)


def test_csv_with_conditions_as_columns(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    pd.DataFrame(rows()).assign(workers=4, batch_size=32, period=16).to_csv(path, index=False)
    (curve,) = read(path, conditions={})
    check(curve)
    assert curve.under["period"] == 16


def test_a_parquet_that_unfolds_without_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pd.DataFrame({name: [0.0] * (2**21 + 1) for name in "abcd"}).to_parquet(path)
    with pytest.raises(InputError, match=r"unfolds from \d+ bytes to 8388612 values; at most 8388608"):
        read(path)


@pytest.mark.parametrize("name", ["a.parquet", "A.PARQUET"])
def test_parquet(name: str, tmp_path: Path) -> None:
    pd.DataFrame(rows()).to_parquet(tmp_path / name)
    check(read(tmp_path / name)[0])


def test_json_lines_with_other_events_between(tmp_path: Path) -> None:
    lines = [{"event": "start", "config": {"lr": 0.1}}, *rows(), {"event": "end"}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    check(read(tmp_path / "a.jsonl")[0])


def test_two_scores_at_different_steps(tmp_path: Path) -> None:
    lines = [*rows(), {"scheme": "ring", "seed": 7, "step": 50, "train_loss": math.nan}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (curve,) = read(tmp_path / "a.jsonl")
    check(curve)
    assert curve.known("train_loss") == {50: math.inf}
    assert Curve.model_validate(curve.model_dump(mode="json")) == curve


def test_wandb_export_of_two_runs(tmp_path: Path) -> None:
    text = "Step,h25 - eval_loss,h25 - eval_loss__MIN,h25 - eval_loss__MAX,h500 - eval_loss\n"
    text += "0,2.5,2.5,2.5,2.5\n50,,,,2.0\n100,1.5,1.5,1.5,\n200,1.25,1.25,1.25,1.75\n"
    (tmp_path / "wandb.csv").write_text(text)
    first, second = read(tmp_path / "wandb.csv")
    check(first, "h25", 0)
    assert (second.scheme, second.known("eval_loss")) == ("h500", {0: 2.5, 50: 2.0, 200: 1.75})
    (chosen,) = read(tmp_path / "wandb.csv", run="h25", scheme="ring", seed=7)
    check(chosen)


def test_wandb_history(tmp_path: Path) -> None:
    lines = [{"_step": s, "_runtime": 3.5 * s, "_timestamp": 1e9, "eval_loss": v} for s, v in LOSSES.items()]
    (tmp_path / "h.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (curve,) = read(tmp_path / "h.jsonl", scheme="ring", seed=7)
    check(curve)
    assert list(curve.scores) == ["eval_loss"]


@pytest.mark.parametrize("form", ["simple", "tensor", "double", "content"])
def test_event_file(tmp_path: Path, form: str) -> None:
    def make(tag: str, value: float) -> bytes:
        if form == "simple":
            return simple(tag, value)
        return tensor(tag, value, 2 if form == "double" else 1, content=form == "content")

    events = [event(step, make("eval_loss", loss)) for step, loss in LOSSES.items()]
    picture = event(100, b"\x0a\x03pic" + b"\x22\x02ab", make("lr", 0.5))
    (tmp_path / "ring").mkdir()
    (tmp_path / "ring" / "events.out.tfevents.1.host").write_bytes(event_file([*events, picture]))
    (curve,) = read(tmp_path, seed=7)  # the folder of all runs
    check(curve)
    assert curve.known("lr") == {100: 0.5}


@pytest.mark.parametrize("axis", ["examples", "tokens"])
def test_examples_and_tokens_are_those_of_all_workers(tmp_path: Path, axis: str) -> None:
    each = 4 * 32 * (1 if axis == "examples" else 512)
    table = pd.DataFrame(rows())
    table.assign(**{axis: table["step"] * each}).drop(columns="step").to_csv(tmp_path / "a.csv", index=False)
    check(read(tmp_path / "a.csv", tokens_per_example=512)[0])


@pytest.mark.parametrize("axis", ["examples", "tokens"])
def test_a_loggers_own_count_gives_way_to_examples_and_tokens(tmp_path: Path, axis: str) -> None:
    each = 4 * 32 * (1 if axis == "examples" else 512)
    table = pd.DataFrame(rows())
    table = table.assign(**{axis: table["step"] * each}).assign(_step=range(3)).drop(columns="step")
    table.to_json(tmp_path / "a.jsonl", orient="records", lines=True)
    check(read(tmp_path / "a.jsonl", tokens_per_example=512)[0])


def test_a_logger_counts_where_tokens_cannot_be_steps(tmp_path: Path) -> None:
    table = pd.DataFrame(rows()).rename(columns={"step": "_step"}).assign(tokens=range(3))
    table.to_json(tmp_path / "a.jsonl", orient="records", lines=True)
    check(read(tmp_path / "a.jsonl")[0])


def curve(label: str, points: dict[float, float]) -> Curve:
    return Curve(
        scheme=label, seed=0, under=UNDER, steps=tuple(points), scores={"loss": tuple(points.values())}
    )


def test_points_are_a_curves_own_up_to_a_score_that_is_not_finite() -> None:
    own = curve("dense", {0: 3, 10.25: 2, 20: 1, 40: math.inf})
    points = find_points(own, "loss", 4, Target("loss", 1.5, True, on="mean"))
    assert points.totals == (0, 41, 80, 160)
    assert [each["loss"] for each in points.scores] == [3, 2, 1, None]
    assert points.met == 2
    assert points.between == pytest.approx((10.25, 20))
    assert points.score_at(50) == 2 - 9 / 39
    assert points.divergence == "loss is not finite at step 40 of its curve"
    assert find_points(own, "loss", 4, Target("loss", 0.5, True, on="mean")).met is None


def test_noise_is_smoothed_and_leaves_the_crossing_open() -> None:
    noisy = curve("noisy", {0: 3, 2: 0.9, 4: 1.5, 6: 0.9, 8: 1.1, 10: 0.8, 12: 0.9})
    points = find_points(noisy, "loss", 1, Target("loss", 1.0, True, on="mean"))
    assert (points.met, points.between) == (3, (0, 10))  # 0.9 and 1.1 have a mean of 1.0
    rising = find_points(
        curve("up", {0: 0.1, 1: 0.7, 2: 0.5, 3: 0.9}), "loss", 1, Target("loss", 0.7, False, on="mean")
    )
    assert (rising.met, rising.between) == (3, (0, 3))


@given(
    scores=st.lists(st.floats(0.1, 9.0), min_size=1, max_size=12),
    falling=st.booleans(),
)
def test_smoothed_scores_never_get_worse_and_end_with_the_best(scores: list[float], falling: bool) -> None:
    even, best = smooth(scores, falling), (min if falling else max)(scores)
    assert even[-1] == best == scores[len(even) - 1]
    assert all((a > b - 1e-9) if falling else (a < b + 1e-9) for a, b in pairwise(even))
    assert sum(even) == pytest.approx(sum(scores[: len(even)]))


def scored(most: int, value: float) -> CurveScorer[int]:
    """A scorer of two workers in step that end after ``most`` steps of a second."""
    own = curve("a", {0: 3, 1: 2, 2: 1, 6: 0.5})
    points = find_points(own, "loss", 2, Target("loss", value, True, on="mean"))
    scorer = CurveScorer[int](
        None, None, 1, "mean", Target("loss", value, True, on="mean"), lambda _: [], points=points
    )
    scorer.begin([0, 0])
    for step in range(most):
        for rank in range(2):
            scorer.publish(Published(rank, step, float(step + 1), 0))
    scorer.finish(float(most), {0: 0, 1: 0}, None)
    return scorer


def test_a_crossing_stays_where_it_was_first() -> None:
    scorer = scored(8, 1.0)
    assert (scorer.reached_s, scorer.bracket_s, scorer.over) == (2.0, (1.0, 2.0), True)
    assert [evaluation.time_s for evaluation in scorer.evaluations] == [0.0, 1.0, 2.0, 6.0]


def test_a_run_that_ends_between_two_points_is_scored_on_the_line() -> None:
    met, early = scored(4, 0.8), scored(3, 0.8)  # the line is at 0.8 after 3.6 steps
    assert (met.reached_s, met.bracket_s) == (4.0, (2.0, 4.0))
    assert met.evaluations[-1].metrics == {"loss": 0.75}
    assert early.reached_s is None
    assert [evaluation.time_s for evaluation in early.evaluations] == [0.0, 1.0, 2.0]


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.xlsx").write_text("x")
    with pytest.raises(InputError, match="no known format"):
        read(tmp_path / "a.xlsx")
