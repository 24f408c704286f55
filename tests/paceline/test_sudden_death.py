"""Commands that die: what is complete is kept, and they go on to the same results."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.sudden_death import Command, campaign, contents
from paceline.sim.records.folder import read_results
from tests.paceline.test_command_line import TINY, run
from tests.support import warm

LONG = "stop.max_iterations=60"


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY + "gradients: looped\n")
    return path


@pytest.fixture
def started(tiny: Path, tmp_path: Path) -> Iterator[warm.WarmProcess]:
    """A simulation into ``r`` with at least one complete run; it goes on."""
    command = [sys.executable, "-m", "paceline", "simulate", str(tiny), f"--set={LONG}"]
    child = warm.WarmProcess([*command, f"--out={tmp_path / 'r'}"], env=dict(os.environ))
    until_s = time.monotonic() + 60
    while not (tmp_path / "r" / "parts" / "run-000000").is_dir():
        assert time.monotonic() < until_s
        time.sleep(0.005)
    yield child
    child.kill()
    child.wait()
    child.stdin.close()
    child.stdout.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_simulation_that_was_killed_goes_on_to_the_same_bytes(
    number: signal.Signals,
    started: warm.WarmProcess,
    tiny: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    started.send_signal(number)
    assert started.wait(60) == (130 if number is signal.SIGTERM else -number)
    assert 1 <= len(read_results(tmp_path / "r").summary["runs"]) < 6
    code, _, err = run(monkeypatch, capsys, "simulate", tiny, "--set", LONG, "--out", tmp_path / "r")
    assert code == 0
    assert "going on with" in err
    assert run(monkeypatch, capsys, "simulate", tiny, "--set", LONG, "--out", tmp_path / "whole")[0] == 0
    assert contents(tmp_path / "r") == contents(tmp_path / "whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r", "tiny.yaml", "whole"]


def test_a_second_command_on_a_folder_is_refused(
    started: warm.WarmProcess,
    tiny: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    started.send_signal(signal.SIGSTOP)  # however long the second one takes
    kept = {path.name for path in (tmp_path / "r" / "parts").glob("run-*")}
    command: list[Any] = ["simulate", tiny, "--set", LONG, "--out", tmp_path / "r"]
    for more in ([], ["--force"]):
        code, _, err = run(monkeypatch, capsys, *command, *more)
        assert code == 2
        assert "is in use: another command (process " in err
    assert kept <= {path.name for path in (tmp_path / "r" / "parts").glob("run-*")}


def test_a_failed_start_leaves_no_folder(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    change = "--set=workload.task=nowhere:build"
    assert run(monkeypatch, capsys, "simulate", tiny, change, "--out", tmp_path / "r")[0] == 2
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.yaml"]


def test_a_signal_before_a_command_has_begun(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("paceline.commands.app.app", lambda **_: os.kill(os.getpid(), signal.SIGTERM))
    assert run(monkeypatch, capsys, "list") == (130, "", "paceline: interrupted\n")
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("command", "moments"), [("simulate", 2), ("report", 2), ("realrun", 2)])
def test_random_moments(command: Command, moments: int, tmp_path: Path) -> None:
    for line, wrong in campaign(command, moments, 1, tmp_path):
        assert not wrong, line
