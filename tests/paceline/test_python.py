"""The Python interface: scenarios in, data frames out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

import paceline
from paceline.reports.figures.drawing import Picture
from paceline.reports.page import build
from paceline.sim.errors import InputError
from paceline.sim.records import folder
from paceline.sim.scenario.schema import load, parse
from tests.sim.scenario.test_schema import FLAT
from tests.support import own_tasks

SCENARIO: dict[str, Any] = {
    "name": "mine",
    "workload": {"batch_size": 8, "optimizer": {"lr": 0.1}},
    "cluster": {
        "workers": 2,
        "compute": {"time": "10 ms"},
        "network": {"latency": "5 ms", "bandwidth": "100 Mbit/s"},
    },
    "schemes": ["all_reduce", {"local_sgd": {"period": 4}}],
    "stop": {"target": {"metric": "train_loss", "value": 0.69}, "max_iterations": 40},
    "gradients": "looped",
}


def simulate(scenario: Any = SCENARIO, **options: Any) -> Any:
    return paceline.simulate(scenario, progress=False, **options)


def test_frames_are_those_of_the_result_folder(tmp_path: Path) -> None:
    study = simulate(task=own_tasks.classify)
    study.save(tmp_path / "out")
    written = folder.read_results(tmp_path / "out")
    assert written.summary == study.totals
    pd.testing.assert_frame_equal(written.metrics, study.metrics, check_categorical=False)
    pd.testing.assert_frame_equal(written.events, study.events, check_categorical=False)
    with pytest.raises(InputError, match="is there already"):
        study.save(tmp_path / "out")


def test_the_summary_is_ranked() -> None:
    study = simulate(task=own_tasks.classify)
    assert list(study.summary.index) == ["local_sgd", "all_reduce"]
    assert study.winner == "local_sgd"
    assert study.summary["ratio_to_best"].iloc[0] == 1.0
    assert study.summary["ratio_to_best"].iloc[1] > 1.0
    assert study.summary.dtypes["time_to_target_low_s"] == "float64"
    times = study.summary[["compute_s", "communicate_s", "wait_s"]].sum(axis=1)
    assert times.to_numpy() == pytest.approx(study.summary["wall_clock_s"].to_numpy())


def test_a_notebook_shows_a_table() -> None:
    scenario = {**SCENARIO, "schemes": [{"local_sgd": {"period": 4, "label": "<b>rare</b>"}}]}
    shown = simulate(scenario, task=own_tasks.classify)._repr_html_()
    assert "<td>&lt;b&gt;rare&lt;/b&gt;</td>" in shown
    assert "&lt;b&gt;rare&lt;/b&gt; reaches the target after" in shown
    nowhere = {**scenario, "stop": {"target": {"metric": "train_loss", "value": 1e-9}, "max_iterations": 2}}
    assert "no scheme reached the target" in simulate(nowhere, task=own_tasks.classify)._repr_html_()


def test_the_report_is_that_of_the_result_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Picture, "svg", property(lambda picture: picture.data.to_csv()))
    study = simulate(task=own_tasks.classify)
    study.save(tmp_path / "results")
    page = tmp_path / "report.html"
    build([tmp_path / "results"], page)
    written = page.read_bytes()
    assert study.report(page) == page
    assert page.read_bytes() == written
    (tmp_path / "mine.html").write_text("mine")
    with pytest.raises(InputError, match="it is no report"):
        study.report(tmp_path / "mine.html")


def test_the_plot_has_a_curve_for_each_scheme(tmp_path: Path) -> None:
    scenario = {**SCENARIO, "evaluate": {"every": "2 steps"}, "stop": {"max_iterations": 12}}
    study = simulate(scenario, task=own_tasks.classify)
    figure = study.plot()
    (axes,) = figure.axes
    curves = [line for line in axes.lines if len(line.get_xdata()) > 1]
    for label, curve in zip(study.summary.index, curves, strict=True):
        scored = study.metrics[study.metrics["label"] == label]
        assert curve.get_ydata() == pytest.approx(scored["train_loss"].to_numpy())
    assert [text.get_text() for text in figure.legends[0].texts] == ["all_reduce", "local_sgd"]
    assert axes.get_xlabel().startswith("wall clock")
    assert len({curve.get_color() for curve in curves}) == 2
    assert "consensus" in study.plot("consensus_distance").axes[0].get_ylabel()
    with pytest.raises(InputError, match="there is no 'train_los'; did you mean 'train_loss'"):
        study.plot("train_los")
    figure.savefig(tmp_path / "loss.png")
    clock_only = {**SCENARIO, "workload": {"timing_only": True, "payload": "1 MB"}}
    with pytest.raises(InputError, match="no loss is known of mine: nothing was trained"):
        simulate({**clock_only, "stop": {"max_iterations": 3}}).plot()


def test_a_function_inside_a_function_and_one_that_is_defined_anew() -> None:
    def build_with(width: int) -> Any:
        def build() -> Any:
            inputs = torch.arange(40.0).view(20, 2) / 40
            return nn.Linear(2, width), nn.functional.mse_loss, (inputs, torch.zeros(20, width))

        return build

    sizes = [simulate(task=build_with(width)).metrics["bytes_sent"].max() for width in (1, 2, 1)]
    assert sizes[0] == sizes[2] == sizes[1] / 2


def test_a_task_takes_the_place_of_the_scenarios(tmp_path: Path) -> None:
    text = FLAT.replace("max_iterations: 100", "max_iterations: 2").replace(
        "digits-mlp", "digits-mlp\n  hidden: 7"
    )
    (tmp_path / "f.yaml").write_text(text.replace("  hidden: 7\n", ""), encoding="utf-8")
    for scenario in (parse(text), tmp_path / "f.yaml", str(tmp_path / "f.yaml")):
        study = simulate(scenario, task=own_tasks.classify, changes=["workload.width=3", "repeats=2"])
        assert study.scenario.workload.task == "tests.support.own_tasks:classify"
        assert study.scenario.workload.options.model_dump() == {"width": 3, "slope": 0.1}
        assert len(study.runs) == 4
    assert simulate(parse(text)).scenario.workload.options.model_dump() == {"hidden": 7}


def test_load_is_that_of_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text(FLAT, encoding="utf-8")
    assert paceline.load(tmp_path / "f.yaml", ["seed=3"]) == load(tmp_path / "f.yaml", ["seed=3"])


def test_what_is_wrong_is_said() -> None:
    with pytest.raises(
        InputError, match=r"^task: workload.task: 'given:.*lambda': returned an int; it must return"
    ):
        simulate(task=lambda: 3)
    with pytest.raises(
        InputError, match=r"^scenario: must be what load returns, a path, or a mapping, not 5"
    ):
        simulate(5)
    with pytest.raises(InputError, match=r"workload.task: is missing"):
        simulate()


def test_progress_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    paceline.simulate(SCENARIO, task=own_tasks.classify, changes=["stop={max_iterations: 2}"])
    assert capsys.readouterr().out == ""
