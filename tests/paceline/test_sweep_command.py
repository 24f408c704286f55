"""``paceline sweep``: one line for each setting, kept as it goes on, and nothing done twice."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import paceline
from benchmarks.sudden_death import contents
from paceline.sim.experiments.sweep import grid, summaries
from tests.paceline.test_command_line import TINY, run

pytestmark = pytest.mark.usefixtures("little_work")

GRID = (
    "--grid",
    "cluster.network.latency=1 ms, 2 s",
    "--grid",
    "cluster.network.bandwidth='1 kB/s','1 MB/s'",
)
SETTINGS = [
    {"cluster.network.latency": latency, "cluster.network.bandwidth": bandwidth}
    for latency in ("1 ms", "2 s")
    for bandwidth in ("1 kB/s", "1 MB/s")
]


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY)
    return path


@pytest.mark.slow
def test_each_setting_is_what_it_is_alone(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    code, text, err = run(monkeypatch, capsys, "sweep", tiny, *GRID, "--out", out, "--json")
    assert code == 0, err
    answer = json.loads(text)
    assert answer == json.loads((out / "sweep.json").read_text())
    assert [row["set"] for row in answer["settings"]] == SETTINGS
    for row in answer["settings"][:: len(SETTINGS) - 1]:
        changes = [f"{key}={value}" for key, value in row["set"].items()]
        study = paceline.simulate(tiny, changes=changes, progress=False)
        study.save(tmp_path / row["folder"])
        for file in ("scenario.yaml", "metrics.parquet", "events.parquet"):  # the summary has no bounds
            assert (out / row["folder"] / file).read_bytes() == (tmp_path / row["folder"] / file).read_bytes()
        assert row["winner"] == study.winner
        assert row["verdict"] == study.totals["verdict"]
    code, _, err = run(monkeypatch, capsys, "report", out, "--out", tmp_path / "sweep.html")
    assert code == 0, err
    page = (tmp_path / "sweep.html").read_text()
    assert "under 4 settings" in page
    assert page.count("★") + page.count("☆") == len(SETTINGS) + 2
    assert len(pd.read_csv(tmp_path / "sweep-files" / "table.csv")) == len(SETTINGS) * len(
        answer["settings"][0]["summary"]
    )
    whole = (out / "sweep.json").read_text()
    first, *others = answer["settings"]
    wrong = ({**first, "set": {"seed": 3}}, {**others[-1], "folder": first["folder"]}, others[0])
    for text in (
        "{", '{"version": 1}', '{"version": 1, "settings": [{"folder": "../0001", "set": {}}]}',
        whole.replace('"version": 1', '"version": 99'), whole.replace('"version"', '"version": 1, "version"'),
        *(json.dumps({**answer, "settings": settings}) for settings in ([each, *others] for each in wrong)),
    ):  # fmt: skip
        (out / "sweep.json").write_text(text)
        code, _, err = run(monkeypatch, capsys, "report", out, "--out", tmp_path / "sweep.html")
        assert code == 2
        assert "sweep.json" in err
    (out / "sweep.json").write_text(whole)
    picture = (out / "winners.svg").read_text()
    for label in {row["verdict"]["first"] for row in answer["settings"]}:
        assert f">{label}<" in picture


@pytest.mark.parametrize("target", ["1e9", "1e-9"])
def test_a_page_where_no_scheme_takes_time_to_the_target(
    target: str,
    tiny: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stop = f"stop={{max_iterations: 4, target: {{metric: suboptimality, value: {target}}}}}"
    out, page = tmp_path / "out", tmp_path / "page.html"
    assert run(monkeypatch, capsys, "sweep", tiny, *GRID[:2], "--set", stop, "--out", out)[0] in (0, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        code, _, err = run(monkeypatch, capsys, "report", out, "--out", page)
    assert code == 0, err
    assert "under 2 settings" in page.read_text()
    code, _, err = run(monkeypatch, capsys, "explore", out, "--out", tmp_path / "explored.html")
    assert code == 2
    assert f"it has no summary.json; name one of a sweep, such as {out / '0001'}" in err


def test_the_table_has_a_line_for_each_setting(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    code, text, _ = run(monkeypatch, capsys, "sweep", tiny, *GRID)
    assert code == 0
    _, head, *lines = text.splitlines()
    assert head.split() == ["latency", "bandwidth", "reduce", "gossip", "psgd", "takes"]
    assert [line[:9].strip() for line in lines[:4]] == ["1 ms", "1 ms", "2 s", "2 s"]
    assert all(line.count("★") + line.count("☆") == 1 for line in lines[:4])


def test_a_race_shows_what_equal_steps_would_decide(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stop = "stop={max_iterations: 60, target: {metric: suboptimality, value: 0.5}}"
    monkeypatch.setenv("COLUMNS", "900")
    code, text, _ = run(monkeypatch, capsys, "sweep", tiny, *GRID, "--set", stop)
    assert code == 0
    assert [line.rstrip().endswith("x") for line in text.splitlines()[2:6]] == [True] * 4


def test_a_sweep_over_workers_has_the_steps_between(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stop = "stop={target: {metric: suboptimality, value: 0.1}, max_iterations: 200}"
    command = ("sweep", tiny, "--grid", "cluster.workers=2,8", "--set", stop, "--set", "schemes=[all_reduce]")
    code, text, _ = run(monkeypatch, capsys, *command)
    assert code == 0
    assert "steps by a law" in text
    assert set(
        json.loads(run(monkeypatch, capsys, *command, "--json")[1])["steps_between"]["all_reduce"]
    ) == {"4"}


def test_steps_without_chance_are_settled_as_they_are_alone(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    latencies = {"cluster.network.latency": ["1 ms", "9 ms"]}
    changes = [
        "workload={timing_only: true, payload: 1 MB}", "cluster.compute={time: 10 ms}",
        "schemes=[all_reduce, {gossip: {topology: ring}}]",
    ]  # fmt: skip
    own = paceline.sweep(tiny, latencies, changes=changes, progress=False)
    for row, study in zip(own.totals["settings"], own.studies, strict=True):
        assert "nothing is random" in row["verdict"]["text"]
        assert row["verdict"] == study.totals["verdict"]


RANGED = ("--set", "cluster.network.latency=1 ms to 2 s", "--set", "cluster.network.bandwidth=1 to 900 kB/s")


@pytest.mark.slow
def test_ranges_of_a_scenario_are_drawn_as_those_of_the_command(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    code, text, _ = run(monkeypatch, capsys, "sweep", tiny, *RANGED, "--sample", 3, "--json", "--out", out)
    assert code == 0
    answer = json.loads(text)
    grid = {"cluster.network.latency": ["1 ms..2 s"], "cluster.network.bandwidth": ["1 kB/s..900 kB/s"]}
    own = paceline.sweep(tiny, grid, sample=3, progress=False)
    assert own.totals["settings"] == answer["settings"]
    assert own.totals["draws"]["shares"] == answer["draws"]["shares"]
    assert paceline.sweep(tiny, changes=RANGED[1::2], sample=3, progress=False).totals == answer
    assert sum(each["share"] for each in answer["draws"]["shares"]) == pytest.approx(1)
    code, _, err = run(monkeypatch, capsys, "report", out, "--out", tmp_path / "page.html")
    assert code == 0, err
    page = (tmp_path / "page.html").read_text()
    assert answer["draws"]["text"].split(" of what")[0] in page.replace("\N{NO-BREAK SPACE}", " ")
    assert "1 ms to 2 s" in page
    (out / "sweep.json").write_text(json.dumps({**answer, "ranges": {"cluster.latency": ["1 ms to 2 s"]}}))
    assert run(monkeypatch, capsys, "report", out, "--out", tmp_path / "page.html")[0] == 2


@pytest.mark.slow
def test_draws_in_batches_are_those_of_one_process(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And what a setting of a batch is refused for is one message."""
    monkeypatch.setattr(summaries, "BATCH", 3)
    drawn = ("sweep", tiny, *RANGED, "--sample", 7, "--json")
    together = run(monkeypatch, capsys, *drawn, "--jobs", 2)
    assert together[0] == 0
    assert run(monkeypatch, capsys, *drawn, "--jobs", 1)[1] == together[1]
    wrong = ("--grid", "workload.batch_size=4,4,4,4,4,4,0")  # in one draw, not the first
    code, _, err = run(monkeypatch, capsys, *drawn, *wrong, "--jobs", 2)
    assert code == 2
    assert "--grid workload.batch_size=0" in err
    assert "Traceback" not in err


def test_other_commands_stand_at_the_middle_and_say_so(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    latency = (
        "simulate",
        tiny,
        "--json",
        "--set",
        "schemes=[all_reduce]",
        "--set",
        "cluster.network.latency=",
    )
    code, text, err = run(monkeypatch, capsys, *latency[:-1], f"{latency[-1]}1 ms to 3 ms")
    assert code == 0
    assert "at the middle of what is possible: latency 2 ms (1 ms to 3 ms)" in err
    assert text == run(monkeypatch, capsys, *latency[:-1], f"{latency[-1]}2 ms")[1]


def test_a_range_needs_a_number_of_draws_and_a_sweep_something_that_varies(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    latency = ("--grid", "cluster.network.latency=1 ms to 3 ms")
    for options, message in ((latency, "say how many draws: --sample 256"), ((), "nothing varies")):
        code, _, err = run(monkeypatch, capsys, "sweep", tiny, *options)
        assert (code, message in err) == (2, True)
    code, _, err = run(monkeypatch, capsys, "sweep", tiny, *RANGED, "--grid", "seed=1,2")
    assert code == 0
    assert "at the middle of what is possible: latency 44.7 ms" in err


def test_progress_shows_what_is_prepared_and_summarised(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("paceline.commands.console.LINES_APART_S", 0.0)
    code, _, err = run(monkeypatch, capsys, "sweep", tiny, *GRID, "--out", tmp_path / "out")
    assert code == 0
    for step in ("reading setting", "resolving setting", "making folder", "summarising setting"):
        first = 2 if step == "reading setting" else 1  # the display needs a scenario
        assert [line for line in err.splitlines() if line.startswith(step)] == [
            f"{step} {number} of 4" for number in range(first, 5)
        ]


def test_an_interrupted_sweep_goes_on_to_the_same_bytes(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    original = grid.share_training
    numbers: list[int] = []

    def interrupted(jobs: Any, progress: Any) -> Any:
        numbers.append(len(jobs))
        if len(numbers) == 3:
            raise KeyboardInterrupt
        return original(jobs, progress)

    monkeypatch.setattr("paceline.sim.experiments.sweep.grid.share_training", interrupted)
    command = ("sweep", tiny, *GRID, "--jobs", 1, "--out", tmp_path / "out")
    code, _, err = run(monkeypatch, capsys, *command)
    assert code == 130
    assert "kept in" in err
    code, _, err = run(monkeypatch, capsys, "sweep", tiny, *GRID[:2], "--out", tmp_path / "out")
    assert code == 2
    assert "were begun by 'sweep of 4 settings on cpu', and this is 'sweep of 2 settings on cpu'" in err

    code, _, err = run(monkeypatch, capsys, *command)
    assert code == 0
    assert "8 runs are there" in err
    assert numbers == [4, 4, 4, 0, 0, 4, 4, 4, 4]
    monkeypatch.setattr("paceline.sim.experiments.sweep.grid.share_training", original)
    assert run(monkeypatch, capsys, "sweep", tiny, *GRID, "--out", tmp_path / "whole")[0] == 0
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.mark.slow
def test_a_folder_that_is_taken_is_kept(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    command = ("sweep", tiny, *GRID, "--out", out)
    assert run(monkeypatch, capsys, *command)[0] == 0
    before = contents(out)
    code, _, err = run(monkeypatch, capsys, *command)
    assert code == 2
    assert "is there already: choose another folder, or replace it with --force" in err
    assert contents(out) == before
    assert run(monkeypatch, capsys, *command, "--force")[0] == 0
    assert contents(out) == before
    (out / "mine.txt").write_text("x")
    code, _, err = run(monkeypatch, capsys, *command, "--force")
    assert code == 2
    assert "holds mine.txt, which is no result of a sweep" in err


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ([], "--grid"),
        (["--grid", "cluster.workers"], "--grid cluster.workers: write dotted.key=value,value"),
        (["--grid", "seed=1,2", "--sample", "0"], "sample: it has 0 settings"),
        (["--grid", "=4"], "write dotted.key=value,value"),
        (["--grid", "cluster.workers="], "grid: cluster.workers: write a list of values"),
        (["--grid", "cluster.workers=4]"], "--grid cluster.workers=4]:"),
        (["--grid", "cluster.workers=4", "--grid", "cluster.workers=8"], "stands in the grid already"),
        (["--grid", "cluster.wrokers=4,8"], "workers"),
        (["--grid", "cluster.network.latency=1 ms,5 kg"], "5 kg"),
        (["--grid", f"seed={','.join(map(str, range(10_001)))}"], "10,001 settings"),
    ],
)
def test_bad_input(
    options: list[str],
    text: str,
    tiny: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, _, err = run(monkeypatch, capsys, "sweep", tiny, *options, "--out", tmp_path / "out")
    assert code == 2
    assert text in err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_one_seed_settles_nothing_that_is_random(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    far = ("--set", "stop={max_iterations: 60, target: {metric: suboptimality, value: 0.5}}")
    schemes = ("--set", "schemes=[all_reduce, {local_sgd: {period: 8}}]")
    out, page = tmp_path / "out", tmp_path / "page.html"
    for repeats, settled, stars in ((1, False, "☆"), (5, True, "★")):
        command = (
            "sweep",
            tiny,
            "--grid",
            "cluster.network.latency=1 s,2 s",
            *far,
            *schemes,
            "--set",
            f"repeats={repeats}",
        )
        code, text, _ = run(monkeypatch, capsys, *command, "--out", out, "--force")
        assert code == 0
        assert text.count(stars) == 3  # of the settings, and in the key below
        assert ("settled in 0; in 2 by one repeat" in " ".join(text.lower().split())) is not settled
        run(monkeypatch, capsys, "report", out, "--out", page)
        assert f"settled in {2 * settled}" in page.read_text().replace("\N{NO-BREAK SPACE}", " ")
        code, _, err = run(monkeypatch, capsys, "report", out / "0001", "--out", page.with_name("one.html"))
        assert code == 0, err
        alone = page.with_name("one.html").read_text().replace("\N{NO-BREAK SPACE}", " ")
        assert ("One repeat: how much of this is chance is not known." in alone) is not settled
        rows = json.loads((out / "sweep.json").read_text())["settings"]
        assert [row["settled"] for row in rows] == [settled] * 2
        assert all(row["verdict"]["settled"] for row in rows)


@pytest.mark.parametrize(("between", "said"), [("1 h", True), ("3 s", False)])
def test_runs_that_end_before_the_first_fault_are_named(
    between: str, said: bool, tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    faults = f"cluster.faults=[{{mean_time_between: {between}, back_after: 1 s}}]"
    changes = (faults, "checkpoint={every: 1 s, write: 0.1 s}", "schemes=[all_reduce]")
    rule = [word for change in changes for word in ("--set", change)]
    command = ("sweep", tiny, "--grid", "checkpoint.every=1 s,2 s", *rule)
    code, text, err = run(monkeypatch, capsys, *command)
    assert code == 0, err
    assert ("No fault comes before the runs end in 2 of 2 settings" in " ".join(text.split())) is said
    rows = json.loads(run(monkeypatch, capsys, *command, "--json")[1])["settings"]
    assert ([row["outages"] for row in rows] == [0, 0]) is said
