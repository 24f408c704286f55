"""The race at other targets, and at other ratios of examples and bandwidths."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from paceline.reports.figures.levels import draw_levels, rank_levels, seconds_to_levels
from paceline.reports.figures.ratio_map import draw_break_even
from paceline.reports.folders import read_sources
from paceline.reports.page import by_other_models
from paceline.sim.records.folder import write_results
from paceline.sim.records.run import Evaluation, Run
from paceline.sim.records.summary import SchemeFacts
from tests.support.made_runs import made_bounds, made_run, made_scenario

LOSS = "stop: {target: {metric: train_loss, value: 0.5}}\n"


def test_levels_between_scores_are_interpolated_and_a_dip_is_none() -> None:
    times, scores = np.array([0.0, 1.0, 2.0, 4.0]), np.array([0.1, 0.5, 0.3, 0.9])
    found = seconds_to_levels(times, scores, np.array([0.05, 0.3, 0.5, 0.7, 0.9, 0.91]))
    assert found.tolist() == pytest.approx([0.0, 0.5, 1.0, 3.0, 4.0, np.inf])


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
