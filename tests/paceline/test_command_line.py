"""The command line as a user meets it: one clear message and exit status 2 for bad input."""

from __future__ import annotations

import errno
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from typing_extensions import override

import paceline
from paceline.commands.console import Countdown, watching
from paceline.sim.config import files as json_file
from paceline.sim.network import profile as profiles
from paceline.sim.records.folder import read_results
from paceline.sim.scenario.schema import load
from tests.support.made_measurements import TRUE, TWO_SIZES, exact_fit, measurements
from tests.support.made_records import record
from tests.support.markup import MARKUP

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("little_work")

TINY = """
name: tiny
seed: 3
workload: {task: quadratic, dimension: 5, examples: 64, batch_size: 4, optimizer: {lr: 0.1}}
cluster:
  workers: 4
  compute: {time: 1 s, jitter: {lognormal: {cv: 0.3}}}
  network: {latency: 1 ms, bandwidth: 1 kB/s}
evaluate: {every: 2 steps}
schemes: [all_reduce, {gossip: {topology: ring}}, ad_psgd]
stop: {max_iterations: 6}
repeats: 2
"""


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY)
    return path


def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: Any
) -> tuple[int, str, str]:
    """Exit status, standard output, standard error."""
    monkeypatch.setattr("sys.argv", ["paceline", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        paceline.main()
    captured = capsys.readouterr()
    code = end.value.code
    return (code if isinstance(code, int) else 0), captured.out, captured.err


def test_json_has_the_promised_names(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(monkeypatch, capsys, "simulate", tiny, "--json")
    assert code == 0
    found = json.loads(out)
    assert {"scenario", "runs", "summary", "winner"} <= set(found)
    assert len(found["runs"]) == 6
    first = found["runs"][0]
    assert {
        "scheme", "label", "seed", "source", "reached_target", "time_to_target_s", "wall_clock_s",
        "iterations", "final", "bytes_sent", "time_s", "status",
    } <= set(first)  # fmt: skip
    assert [first[k] for k in ("scheme", "seed", "source")] == ["all_reduce", 3, "simulated"]
    assert first["status"] == "completed"
    assert first["iterations"] == 6
    assert {"train_loss", "consensus_distance"} <= set(first["final"])
    assert sum(first["time_s"].values()) == pytest.approx(first["wall_clock_s"])
    # a ring all-reduce sends 2 (n - 1) / n of the 20 bytes per worker and step
    assert first["bytes_sent"] == 6 * 4 * 2 * 3 * 5


def labelled(*labels: str) -> str:
    return "--set=schemes=" + json.dumps([{"all_reduce": {"label": label}} for label in labels])


def test_what_users_code_prints_does_not_come_between_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = "print('hello')\n\ndef build(worker, index, random):\n    print('there')\n    return 0.01\n"
    (tmp_path / "talks.py").write_text(module)
    (tmp_path / "s.yaml").write_text(
        TINY.replace("{time: 1 s, jitter: {lognormal: {cv: 0.3}}}", "{model: 'talks:build'}")
    )
    code, out, err = run(monkeypatch, capsys, "simulate", tmp_path / "s.yaml", "--json")
    assert code == 0
    assert json.loads(out)["scenario"] == "tiny"
    assert "hello\n" in err


def test_labels_are_no_markup(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("FORCE_COLOR", "1"), ("TERM", "xterm"), ("COLUMNS", "100")):
        monkeypatch.setenv(name, value)  # as on a terminal, where progress is drawn
    few = "--set=stop.max_iterations=2"
    out = tmp_path / "r"
    code, printed, _ = run(monkeypatch, capsys, "simulate", tiny, labelled(*MARKUP), few, "--out", out)
    assert code == 0
    assert all(label in printed for label in MARKUP)
    assert {row["label"] for row in read_results(out).summary["summary"]} == set(MARKUP)
    code, printed, _ = run(monkeypatch, capsys, "check", tiny, labelled(*MARKUP))
    assert code == 0
    assert all(label in printed for label in MARKUP)


@pytest.mark.parametrize("label", MARKUP)
def test_a_label_in_a_line_of_progress_is_no_markup(
    label: str, tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("FORCE_COLOR", "1"), ("TERM", "xterm"), ("COLUMNS", "100")):
        monkeypatch.setenv(name, value)
    with watching(load(tiny)) as progress:
        progress(label, 3)
    assert f"{label}: step 3 of 6" in capsys.readouterr().err


def test_progress_says_how_many_runs_are_done_and_how_long_it_takes(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [100.0]
    monkeypatch.setattr("paceline.commands.console.time.monotonic", lambda: now_s[0])
    progress = Countdown(load(tiny))  # runs of 6 steps
    progress("a", 2)
    assert progress.line() == "preparing; a: step 2 of 6"
    progress.begin("run", 6, 1)
    assert progress.line() == "1 of 6 runs, 17 %"
    now_s[0] += 11
    progress("a", 3)
    assert progress.line() == "1 of 6 runs, 25 %, about 2 min left; a: step 3 of 6"
    progress("a", 4)
    progress.complete("b")  # in another process
    assert progress.line() == "2 of 6 runs, 44 %, about 22 s left; a: step 4 of 6"
    progress.complete("a")
    assert progress.line() == "3 of 6 runs, 50 %, about 16 s left"
    progress("a", 3)  # of the 4 steps that this scheme took before
    assert progress.share == pytest.approx(3.75 / 6)
    for _ in range(3):
        progress.complete("a")
    assert progress.line() == "6 of 6 runs, 100 %"
    progress.begin("trial", 40, 12)
    assert progress.line() == "tuning 12 of 40, 30 %"


def test_results_are_written_before_anything_is_printed(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(_: Any, why: bool) -> None:
        raise RuntimeError("nothing can be printed")

    monkeypatch.setattr("paceline.reports.tables.render_summary", refuse)
    monkeypatch.setattr("sys.argv", ["paceline", "simulate", str(tiny), "--out", str(tmp_path / "r")])
    with pytest.raises(SystemExit, match="1"):
        paceline.main()
    assert "RuntimeError: nothing can be printed" in capsys.readouterr().err.splitlines()[-1]
    assert len(read_results(tmp_path / "r").summary["runs"]) == 6


def test_the_verdict_is_the_same_in_the_terminal_and_in_the_folder_and_bounds_add_up(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    _, printed, _ = run(monkeypatch, capsys, "simulate", tiny, "--out", tmp_path / "r")
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    first = next(line for line in printed.splitlines() if line.startswith("First"))
    assert first.removeprefix("First").strip() == summary["verdict"]["text"]
    assert summary["winner"] == summary["verdict"]["first"]
    for row in summary["summary"]:
        assert row["does"].endswith(".")
        shares = (row["bounds"][cost] for cost in ("compute", "waiting", "latency", "bandwidth", "software"))
        assert sum(shares) == pytest.approx(1)


def test_same_seed_gives_the_same_bytes(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        assert run(monkeypatch, capsys, "simulate", tiny, "--out", tmp_path / name)[0] == 0
    for file in ("summary.json", "metrics.parquet", "events.parquet"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    assert run(monkeypatch, capsys, "simulate", tiny, "--out", tmp_path / "c", "--set", "seed=4")[0] == 0
    assert (tmp_path / "a" / "events.parquet").read_bytes() != (
        tmp_path / "c" / "events.parquet"
    ).read_bytes()


def test_the_resolved_scenario_gives_the_same_results(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(
        monkeypatch,
        capsys,
        "simulate",
        tiny,
        "--out",
        tmp_path / "a",
        "--set",
        "schemes.1.gossip.topology=complete",
    )
    resolved = tmp_path / "a" / "scenario.yaml"
    assert "auto" not in resolved.read_text().split("gradients:")[1]
    assert run(monkeypatch, capsys, "simulate", resolved, "--out", tmp_path / "b")[0] == 0
    assert (tmp_path / "a" / "summary.json").read_bytes() == (tmp_path / "b" / "summary.json").read_bytes()


def test_a_diverging_scheme_is_reported_and_the_others_go_on(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = [
        "--set",
        "schemes=[{gossip: {topology: ring, optimizer: {lr: 1e30}}}, all_reduce]",
        "--set",
        "repeats=1",
    ]
    code, out, _ = run(monkeypatch, capsys, "simulate", tiny, "--json", "--out", tmp_path / "d", *changes)
    assert code == 0
    assert [r["status"] for r in json.loads(out)["runs"]] == ["diverged", "completed"]
    assert json.loads(out)["runs"][0]["final"]["train_loss"] is None
    assert len(read_results(tmp_path / "d").summary["runs"]) == 2


def test_an_existing_folder_is_kept(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    run(monkeypatch, capsys, "simulate", tiny, "--out", out)
    before = (out / "summary.json").read_bytes()
    code, _, err = run(monkeypatch, capsys, "simulate", tiny, "--out", out, "--set", "seed=9")
    assert (code, err) == (
        2,
        f"paceline: {out} is there already: choose another folder, or replace it with --force\n",
    )
    assert (out / "summary.json").read_bytes() == before
    assert run(monkeypatch, capsys, "simulate", tiny, "--out", out, "--set", "seed=9", "--force")[0] == 0
    assert (out / "summary.json").read_bytes() != before


def test_an_interrupted_simulation_keeps_what_is_complete_and_goes_on(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from paceline.sim.experiments import simulate as simulator

    original, calls = simulator.simulate_job, []

    def interrupted(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(*arguments, **options)

    monkeypatch.setattr(simulator, "simulate_job", interrupted)
    command = ("simulate", tiny, "--jobs", 1, "--out", tmp_path / "out")  # all in this process, however busy
    code, _, err = run(monkeypatch, capsys, *command)
    assert code == 130
    assert "paceline: interrupted; complete runs are kept in" in err
    assert [r["label"] for r in read_results(tmp_path / "out").summary["runs"]] == ["all_reduce", "gossip"]

    monkeypatch.setattr(simulator, "simulate_job", original)
    code, _, err = run(monkeypatch, capsys, "simulate", tiny, "--out", tmp_path / "out")
    assert code == 0
    assert "2 runs are there" in err
    assert run(monkeypatch, capsys, "simulate", tiny, "--out", tmp_path / "whole")[0] == 0
    for file in ("summary.json", "metrics.parquet", "events.parquet"):
        assert (tmp_path / "out" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


def test_cuda_asked_for_and_absent(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    code, _, err = run(monkeypatch, capsys, "simulate", tiny, "--device", "cuda")
    assert (code, err) == (2, "paceline: --device cuda: this machine has no CUDA device; use --device cpu\n")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["simulate", "nowhere.yaml"], "nowhere.yaml"),
        (["simulate", "{tiny}", "--set", "repeats=0"], "repeats"),
        (["simulate", "{tiny}", "--set", "cluster.wrokers=4"], "workers"),
        (["simulate", "{tiny}", "--set", "schemes.1.gossip.topology=rign"], "did you mean 'ring'?"),
        (["simulate", "{tiny}", "--set", "cluster.compute.time=5"], "has no unit"),
        (["simulate", "{tiny}", "--set", "stop.target={metric: accuracy, value: 1}"], "no metric 'accuracy'"),
        (["simulate", "{tiny}", "--set", "cluster.workers=66"], "66 workers"),
        (["simulate", "{tiny}", "--device", "gpu"], "choose from auto, cpu, cuda"),
        (["simulate", "{tiny}", "--engine", "warp"], "--engine warp"),
        (["probe", "{tiny}", "--set", "cluster.backend=nccl", "--out", "m.json"], "probes are of gloo"),
        (["report", "nowhere"], "nowhere"),
        (["report", "{tiny}"], "tiny.yaml"),
    ],
)  # fmt: skip
def test_bad_input(
    arguments: list[str],
    text: str,
    tiny: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, err = run(monkeypatch, capsys, *(a.replace("{tiny}", str(tiny)) for a in arguments))
    assert (code, out) == (2, "")
    assert err.startswith("paceline: ")
    assert text in err
    assert "Traceback" not in err
    assert len(err.strip().splitlines()) == 1


def test_realrun_says_how_to_get_a_cluster(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(monkeypatch, capsys, "realrun", tiny)
    assert (code, out) == (2, "")
    assert "--processes" in err
    assert "torchrun" in err


@pytest.mark.usefixtures("warm_ranks")
def test_one_file_simulated_measured_and_replayed(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = ["repeats=1", "cluster.workers=2", "cluster.compute.time=5 ms", "events=all"]
    for command, name in ((["simulate"], "simulated"), (["realrun", "--processes"], "measured")):
        options = ["--json", "--out", tmp_path / name, *(f"--set={change}" for change in changes)]
        code, out, _ = run(monkeypatch, capsys, *command, tiny, *options)
        assert code == 0
        assert {r["source"] for r in json.loads(out)["runs"]} == {name}
        code, out, _ = run(monkeypatch, capsys, "replay", tmp_path / name)
        assert code == 0
        assert len(out.splitlines()) == 3
        assert "ad_psgd, seed 3, " + name + ": the same final parameters" in out
    simulated, measured = (read_results(tmp_path / n).summary["runs"] for n in ("simulated", "measured"))
    gossip = [r["digest"] for r in (simulated[1], measured[1])]
    assert gossip[0] == gossip[1]


def test_unknown_command_and_option_exit_with_2(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, capsys, "simulat")[0] == 2
    assert run(monkeypatch, capsys, "simulate", tiny, "--ouch")[0] == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_no_permission(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tmp_path.chmod(0o555)
    code, _, err = run(monkeypatch, capsys, "simulate", tiny, "--out", tmp_path / "no" / "out")
    tmp_path.chmod(0o755)
    assert code == 2
    assert "Permission denied" in err


# --- calibration and validation -----------------------------------------------------------------


@pytest.mark.slow
def test_a_profile_changes_the_prediction(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured, profile = tmp_path / "measured.json", tmp_path / "profile.yaml"
    json_file.write_json(measurements(TRUE, sizes=TWO_SIZES), measured)
    tiny.write_text(TINY.replace(", ad_psgd]", "]").replace("repeats: 2", "repeats: 1"))
    code, _, said = run(monkeypatch, capsys, "calibrate", measured, "--out", profile)
    assert code == 0
    assert "profile.png" in said
    assert (tmp_path / "profile.png").is_file()
    once = profile.read_text()
    run(monkeypatch, capsys, "calibrate", measured, measured, "--out", profile)
    assert profile.read_text() == once
    _, plain, _ = run(monkeypatch, capsys, "simulate", tiny, "--json")
    code, with_it, _ = run(monkeypatch, capsys, "simulate", tiny, "--profile", profile, "--json")
    assert code == 0
    nominal, fitted = ([row["wall_clock_s"] for row in json.loads(text)["runs"]] for text in (plain, with_it))
    assert all(b > a for a, b in zip(nominal, fitted, strict=True))
    beside = tmp_path / "beside.yaml"
    beside.write_text(tiny.read_text().replace("cluster:\n", "cluster:\n  profile: profile.yaml\n"))
    code, found, said = run(monkeypatch, capsys, "simulate", beside, "--json")
    assert (code, found) == (0, with_it), said
    beside.write_text(beside.read_text().replace("profile.yaml", "missing.yaml"))
    code, _, said = run(monkeypatch, capsys, "simulate", beside)
    assert code == 2
    assert "cluster.profile" in said
    assert "missing.yaml" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["calibrate", "nothing.json", "--out", "p.yaml"], "nothing.json: there is no such file"),
        (["calibrate", "RECORD", "--out", "p.yaml"], "say on what network with --nominal SCENARIO"),
        (["calibrate", "RECORD", "--nominal", "ALONE", "--out", "p.yaml"], "the nominal cluster has 1"),
        (["calibrate", "TINY", "--out", "p.yaml"], "tiny.yaml: is a scenario: measure with 'paceline probe"),
        (
            ["calibrate", "PROFILE", "--out", "p.yaml"],
            "profile.yaml: is a profile, which 'paceline calibrate'",
        ),
        (["validate", "TINY", "--tolerance", "0"], "--tolerance 0: must be more than 0 per cent"),
        (["validate", "TINY", "--profile", "nothing.yaml"], "nothing.yaml"),
        (["validate", "TINY", "--profile", "PROFILE"], "was measured on a lab with tuned hosts"),
        (
            ["validate", "TINY", "--lab", "--set", "cluster.network.hosts=stock", "--profile", "PROFILE"],
            "a lab with stock",
        ),
        (["probe", "ALONE", "--out", "m.json"], "two workers"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(
    tiny: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    profile = tmp_path / "profile.yaml"
    profile.write_text(profiles.dump(exact_fit().profile))
    alone = tmp_path / "alone.yaml"
    alone.write_text(
        TINY.replace("workers: 4", "workers: 1").replace(", {gossip: {topology: ring}}, ad_psgd", "")
    )
    attached = tmp_path / "attached.json"
    json_file.write_json(record("gossip", {"topology": "ring"}, 40_000, steps=6), attached)
    files = {"TINY": str(tiny), "PROFILE": str(profile), "ALONE": str(alone), "RECORD": str(attached)}
    given = [files.get(word, word) for word in arguments]
    code, _, said = run(monkeypatch, capsys, *given)
    assert code == 2
    assert message in said
    assert len(said.strip().splitlines()) == 1


class Full(io.StringIO):
    """A stream on a disk that is full."""

    @override
    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(("stream", "ends"), [(Full(), 1), (None, 0)])
def test_standard_output_that_takes_nothing(
    stream: io.StringIO | None, ends: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout", stream)
    code, _, err = run(monkeypatch, capsys, "list")
    sys.stdout.close()
    assert (code, err) == (ends, "paceline: No space left on device\n" if ends else "")


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ("diloco: {period: 4}", "(nothing is random)"),
        ("fedavg: {period: 4, participation: 0.5}", "not settled"),
    ],
)
def test_a_table_has_the_verdict_of_its_json(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], other: str, says: str
) -> None:
    """Whether chance decides is a fact of the schemes, not of how the answer is printed."""
    tiny.write_text(f"""
name: tiny
workload: {{timing_only: true, payload: 20 MB}}
cluster: {{workers: 4, compute: {{time: 50 ms}}, network: {{latency: 1 ms, bandwidth: 1 Gbit/s}}}}
schemes: [all_reduce, {{{other}}}]
stop: {{max_iterations: 40}}
""")
    _, out, _ = run(monkeypatch, capsys, "simulate", tiny)
    _, whole, _ = run(monkeypatch, capsys, "simulate", tiny, "--json")
    text = json.loads(whole)["verdict"]["text"]
    assert says in text
    assert text in " ".join(out.split())
