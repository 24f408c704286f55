"""The race at other targets, and at other ratios of examples and bandwidths."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.reports.figures.levels import draw_break_even, draw_levels, rank_levels
from paceline.reports.folders import ReportSources, read_sources
from paceline.reports.page import by_other_models, render
from paceline.sim.records.folder import write_results
from paceline.sim.records.run import Evaluation, Run
from paceline.sim.records.summary import SchemeFacts, Tuned, TuningTrial, verdict_of
from tests.support.made_runs import made_bounds, made_run, made_scenario

LOSS = "stop: {target: {metric: train_loss, value: 0.5}}\n"


def falling(label: str, *scores: tuple[float, float]) -> Run:
    """A run whose loss is known at these times, the last of which meets the target."""
    steps = (Evaluation(i, time_s, 0, {"train_loss": loss}) for i, (time_s, loss) in enumerate(scores))
    return replace(made_run(label, reached_s=scores[-1][0]), evaluations=tuple(steps))


def test_the_first_depends_on_the_level(tmp_path: Path) -> None:
    """a is fast at first: at a loss of 1.5 after 1 s, b after 1.5 s; at 0.5 after 9 s, b after 6 s."""
    runs = [
        falling("a", (0.0, 2.5), (0.5, 2.0), (1.0, 1.5), (9.0, 0.5)),
        falling("b", (0.0, 2.5), (1.0, 2.0), (1.5, 1.5), (6.0, 0.5)),
    ]
    summary = write_results(tmp_path / "r", made_scenario("s", LOSS), "s", runs)
    (study,) = read_sources([tmp_path / "r"])
    assert summary["equal"] is not None
    found = rank_levels(study.main, summary["equal"], 0.5)
    first = found.drop_duplicates("level").set_index("level")["first"]
    # a is at L after 1 + 8 (1.5 - L) s, b after 1.5 + 4.5 (1.5 - L) s: level at a loss of 1.5 - 1/7.
    assert set(first[first.index > 1.5 - 1 / 7]) == {"a"}
    assert set(first[first.index < 1.5 - 1 / 7]) == {"b"}
    assert found["level"].max() <= 2.0
    at_target = found[found["level"] == 0.5].set_index("label")["ratio"]
    assert at_target.to_dict() == pytest.approx({"a": 1.5, "b": 1.0})
    picture = draw_levels(study)
    assert picture is not None
    assert picture.data.equals(found)


Curve = list[tuple[float, float]]
"""Losses and the seconds to them."""

RATES = (0.1, 0.2, 0.4)


def straight(end_s: float | None) -> Curve:
    """From a loss of 2.5 straight to the target; never there: to 1.5 in 4 s."""
    return [(2.5, 0.0), (1.5, 4.0) if end_s is None else (0.5, end_s)]


def tuned(label: str, *curves: Curve, keep: bool = True) -> Tuned:
    """A trial for each rate; the second rate is chosen. ``keep``: whether levels are known."""
    trials = [
        TuningTrial(
            values={"optimizer.lr": rate}, seed=-1, score=None,
            time_to_target_s=curve[-1][1] if curve[-1][0] == 0.5 else None,
        )
        for rate, curve in zip(RATES, curves, strict=False)
    ]  # fmt: skip
    for trial, curve in zip(trials, curves, strict=True):
        if keep:
            trial["levels"] = [[*each] for each in curve]
    chosen = trials[1 % len(trials)]["values"]
    return Tuned(label=label, chosen=chosen, at_edge=[], metric="train_loss", trials=trials)


def raced(folder: Path, *tuning: Tuned) -> ReportSources:
    """At any loss all_reduce takes twice the time of b, in the one repeat."""
    runs = [
        falling("all_reduce", (0.0, 2.5), (2.0, 2.1), (10.0, 0.5)),
        falling("b", (0.0, 2.5), (1.0, 2.1), (5.0, 0.5)),
    ]
    write_results(folder, made_scenario("s", LOSS), "s", runs, tuning=tuning)
    (study,) = read_sources([folder])
    return study


def ranked(study: ReportSources) -> pd.DataFrame:
    equal = study.main.results.summary["equal"]
    assert equal is not None
    return rank_levels(study.main, equal, 0.5)


BENT: Curve = [(2.5, 0.0), (1.5, 3.0), (0.5, 12.0)]
"""Down to 1.5 in 3 s, and in 9 s more to 0.5."""


def test_bands_are_ratios_at_the_same_rates_with_all_reduce_at_its_best(tmp_path: Path) -> None:
    """all_reduce at its best is at L after 5 (2.5 - L) s; b after 4, 2.5 and 3 (2.5 - L) s, bent at 1.5.

    At the third rate b is at L after 3 + 9 (1.5 - L) s below 1.5, and later than all_reduce below 1.
    """
    study = raced(
        tmp_path / "r",
        tuned("all_reduce", straight(20.0), straight(10.0), straight(40.0)),
        tuned("b", straight(8.0), straight(5.0), BENT),
    )
    found = ranked(study)
    assert set(found["first"]) == {"b"}
    of_b, behind = (found[found["label"] == label] for label in ("b", "all_reduce"))
    assert of_b[["ratio", "low", "high"]].to_numpy().tolist() == [[1.0, 1.0, 1.0]] * 100
    assert behind["ratio"].tolist() == pytest.approx([2.0] * 100)
    assert behind["high"].tolist() == pytest.approx([2.0] * 100)
    level = behind["level"]
    at_bend = (5 * (2.5 - level)) / (3 + 9 * (1.5 - level))
    expected = at_bend.where(level < 1.5, 5 / 3).clip(upper=10 / 8)
    assert behind["low"].tolist() == pytest.approx(expected.tolist())
    assert behind["settled_by_rates"].tolist() == (level > 1.0).tolist()
    orders = verdict_of(study.main.results.summary, "simulated")["rates"]
    ends = orders["behind"]["all_reduce"]
    assert ends == [10 / 8, 10 / 5, 10 / 12]
    assert behind[["low", "high"]].iloc[-1].tolist() == [min(x for x in ends if x), max(x for x in ends if x)]


def test_the_figure_has_bands_and_a_pale_strip_where_the_order_is_open(tmp_path: Path) -> None:
    study = raced(
        tmp_path / "r",
        tuned("all_reduce", straight(20.0), straight(10.0), straight(40.0)),
        tuned("b", straight(8.0), straight(5.0), straight(None)),
    )
    picture = draw_levels(study)
    assert picture is not None
    assert picture.svg.count("opacity: 0.16") == 2
    assert picture.svg.count("opacity: 0.25") == 1
    assert picture.data["settled_by_rates"].tolist()[-1] is False
    assert picture.data["low"].min() == 0.0  # at the third rate b, the first of the repeats, never arrives
    assert "The strip is pale unless three rates agree" in render([tmp_path / "r"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["without levels", "cut off", "one scheme"])
def test_without_levels_of_whole_trials_the_figure_is_as_without_tuning(tmp_path: Path, kind: str) -> None:
    curves = straight(20.0), straight(10.0), straight(40.0)
    tuning = [tuned(label, *curves, keep=kind != "without levels") for label in ("all_reduce", "b")]
    if kind == "cut off":
        tuning = [Tuned(**each, cut_off=True) for each in tuning]
    plain = draw_levels(raced(tmp_path / "plain"))
    picture = draw_levels(raced(tmp_path / "r", *(tuning[:1] if kind == "one scheme" else tuning)))
    assert plain is not None
    assert picture is not None
    assert picture.svg == plain.svg
    assert picture.data.equals(plain.data)
    assert list(picture.data) == ["level", "first", "label", "ratio"]
    assert "A band holds" not in render([tmp_path / "r"])


END_S = st.floats(1.0, 100.0) | st.none()


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(END_S, END_S), min_size=1, max_size=3), st.booleans())
def test_a_band_of_one_rate_or_of_equal_curves_has_no_width(
    tmp_path_factory: pytest.TempPathFactory, ends: list[tuple[float | None, float | None]], alike: bool
) -> None:
    of_rates = [ends[0]] * len(ends) if alike else ends
    curves = [[straight(end_s) for end_s in each] for each in zip(*of_rates, strict=True)]
    tuning = [tuned(label, *own) for label, own in zip(("all_reduce", "b"), curves, strict=True)]
    found = ranked(raced(tmp_path_factory.mktemp("law") / "r", *tuning))
    assert (found["low"] <= found["high"]).all()
    assert (found.loc[found["label"] == "b", ["low", "high"]] == 1.0).all(axis=None)
    if alike or len(ends) == 1:
        assert (found["low"] == found["high"]).all()
    settled = found[found["settled_by_rates"]]
    assert (settled["low"] >= 1.0).all()
    assert len(ends) == 3 or settled.empty


def test_the_ratio_by_another_scored_model_stands_beside_the_verdicts(tmp_path: Path) -> None:
    """The averaged model of a is at the target after 20 of 40 steps, that of b after 30 of 40."""

    def scored(label: str, mean_at: int) -> Run:
        losses = ((0, 2.0, 2.0), (mean_at, 1.0, 0.5), (40, 0.5, 0.4))
        scores = [
            Evaluation(n, n / 4, 0, {"train_loss_on_workers": w, "train_loss": m}) for n, w, m in losses
        ]
        return replace(made_run(label, reached_s=10.0), evaluations=tuple(scores))

    text = made_scenario("s", "evaluate: {on: mean}\n" + LOSS.replace("0.5", "0.5, on: workers"))
    runs = [scored("a", 20), scored("b", 30)]
    write_results(tmp_path / "r", text, "s", runs)
    (study,) = read_sources([tmp_path / "r"])
    assert study.main.results.summary["verdict"]["break_even"]["here"]["median"] == 1.0
    assert by_other_models(study) == ["By the mean of the workers' models, the ratio of examples is 0.667."]
    write_results(tmp_path / "one", text, "s", [scored("a", 20), falling("b", (0.0, 2.0), (10.0, 0.6))])
    assert by_other_models(read_sources([tmp_path / "one"])[0]) == []


def test_there_is_no_figure_without_a_target_or_a_second(tmp_path: Path) -> None:
    write_results(tmp_path / "one", made_scenario("s", LOSS), "s", [falling("a", (0.0, 2.0), (9.0, 0.5))])
    timed = [made_run(label, reached_s=None) for label in "ab"]
    write_results(tmp_path / "timed", made_scenario("t"), "t", timed)
    assert [draw_levels(study) for study in read_sources([tmp_path / "one", tmp_path / "timed"])] == [
        None,
        None,
    ]


def test_the_map_is_the_verdicts_ratio_at_the_scenarios_bandwidth_and_follows_the_clock_elsewhere(
    tmp_path: Path,
) -> None:
    """a takes 0.1 s a step, b 0.4 s; at a tenth of the bandwidth a takes thrice as long, b 4.5 times."""
    runs = [made_run("a", reached_s=15.0, steps=150), made_run("b", reached_s=40.0, steps=100)]
    steps_s = {"a": [[0.1, 0.33], [1.0, 0.11]], "b": [[0.1, 1.89], [1.0, 0.42]]}
    facts = {
        label: SchemeFacts(does="Nothing.", bounds={**made_bounds(), "by_bandwidth": each})
        for label, each in steps_s.items()
    }
    write_results(tmp_path / "r", made_scenario("s", LOSS), "s", runs, facts=facts)
    write_results(tmp_path / "unknown", made_scenario("t", LOSS), "t", runs)
    known, unknown = read_sources([tmp_path / "r", tmp_path / "unknown"])
    picture = draw_break_even(known)
    assert picture is not None
    assert picture.data.to_dict("list") == {"bandwidth": [0.1, 1.0], "examples": pytest.approx([6.0, 4.0])}
    assert "these runs" in picture.svg
    assert draw_break_even(unknown) is None
