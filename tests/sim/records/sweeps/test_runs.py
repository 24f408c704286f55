"""``runs.parquet`` of a sweep: one row for each run, with the values that its setting changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import paceline
from paceline.sim.records.sweeps.content import tabulate_runs
from tests.paceline.test_command_line import TINY, run

SAME = (
    "label", "scheme", "seed", "status", "reached_target", "time_to_target_s", "steps_to_target", "step_s",
    "wall_clock_s", "iterations", "bytes_sent",
)  # fmt: skip
GRID = ("--grid", "cluster.network.latency=1 ms,2 s", "--grid", "seed=3,4")
STOP = "stop={max_iterations: 20, target: {metric: suboptimality, value: 0.5}}"


@pytest.mark.slow
@pytest.mark.usefixtures("little_work", "undrawn")
def test_every_row_is_the_run_of_its_settings_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny, out, page = tmp_path / "tiny.yaml", tmp_path / "out", tmp_path / "page.html"
    tiny.write_text(TINY)
    assert run(monkeypatch, capsys, "sweep", tiny, *GRID, "--set", STOP, "--out", out)[0] == 0
    table = pd.read_parquet(out / "runs.parquet")
    rows = [dict(row) for _, row in table.iterrows()]
    settings = json.loads((out / "sweep.json").read_text())["settings"]
    summaries = [(each, json.loads((out / each["folder"] / "summary.json").read_text())) for each in settings]
    runs = [(each, own) for each, summary in summaries for own in summary["runs"]]
    assert len(rows) == len(runs) > 4
    for row, (each, own) in zip(rows, runs, strict=True):
        assert row["setting"] == each["folder"]
        assert row["set.seed"] == each["set"]["seed"]
        assert f"{row['cluster.network.latency'] * 1000:g} ms" in {"1 ms", "2000 ms"}
        assert {name: row[name] if pd.notna(row[name]) else None for name in SAME} == {
            name: own[name] for name in SAME
        }
        assert {name: row[f"{name}_s"] for name in own["time_s"]} == own["time_s"]
        known = {name: score for name, score in own["final"].items() if score is not None}
        assert {name: row[f"final.{name}"] for name in known} == known
    assert run(monkeypatch, capsys, "report", out, "--out", page)[0] == 0
    assert (tmp_path / "page-files" / "runs.parquet").read_bytes() == (out / "runs.parquet").read_bytes()
    assert pq.read_schema(out / "runs.parquet").field("cluster.network.latency").type == "double"
    in_python = paceline.sweep(
        tiny, {"cluster.network.latency": ["1 ms", "2 s"], "seed": [3, 4]}, changes=[STOP], progress=False
    )
    pd.testing.assert_frame_equal(in_python.runs, table)


VALUES = {
    "whole": st.integers(-(2**40), 2**40),
    "number": st.floats(-1e6, 1e6),
    "time": st.integers(1, 999).map(lambda ms: f"{ms} ms"),
    "mixed": st.sampled_from(["sgd", 3, None, True, [1], {"a": 2}, "1 ms"]),
}


@given(st.fixed_dictionaries({name: st.lists(own, min_size=1, max_size=4) for name, own in VALUES.items()}))
def test_values_keep_their_order_and_kind(drawn: dict[str, list[Any]]) -> None:
    number = min(map(len, drawn.values()))
    drawn["mixed"][0] = "1 MB"
    settings = [{key: values[place] for key, values in drawn.items()} for place in range(number)]
    own: Any = {
        "label": "one", "scheme": "all_reduce", "seed": 0, "status": "completed", "reached_target": False,
        "time_to_target_s": None, "wall_clock_s": 1.0, "iterations": 2.0, "bytes_sent": 3,
        "time_s": {"compute": 0.5, "communicate": 0.25, "wait": 0.25}, "final": {"train_loss": None},
    }  # fmt: skip
    summaries: Any = [{"runs": [own | {"seed": seed} for seed in range(2)]}] * number
    columns = tabulate_runs([f"{n:04d}" for n in range(number)], settings, summaries).to_pydict()
    assert columns["seed"] == [0, 1] * number
    assert columns["final.train_loss"] == columns["step_s"] == [None] * 2 * number
    assert columns["whole"] == [value for each in settings for value in [each["whole"]] * 2]
    assert columns["number"] == [value for each in settings for value in [each["number"]] * 2]
    assert columns["time"] == pytest.approx([int(each["time"][:-3]) / 1e3 for each in settings for _ in "ab"])
    if number > 1:
        mixed = [each["mixed"] for each in settings for _ in "ab"]
        assert columns["mixed"] == [v if isinstance(v, str) else json.dumps(v) for v in mixed]
