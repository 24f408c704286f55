"""Commands that die: what is complete is kept, and they go on to the same results."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from benchmarks import sudden_death
from benchmarks.sudden_death import Command, campaign, contents
from paceline.sim.records.folder import read_results
from tests.paceline.test_command_line import TINY, run
from tests.support import warm

pytestmark = pytest.mark.usefixtures("little_work")
LONG = "stop.max_iterations=60"


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY + "gradients: looped\n")
    return path


@contextmanager
def started(tiny: Path, out: Path) -> Iterator[warm.WarmProcess]:
    """A simulation into ``out`` with at least one complete run; it is resumed."""
    command = [sys.executable, "-m", "paceline", "simulate", str(tiny), f"--set={LONG}"]
    child = warm.WarmProcess([*command, f"--out={out}"], env=dict(os.environ))
    until_s = time.monotonic() + 60
    while not (out / "parts" / "run-000000").is_dir():
        assert time.monotonic() < until_s
        time.sleep(0.005)
    yield child
    child.kill()
    child.wait()
    child.stdin.close()
    child.stdout.close()


@pytest.mark.slow
def test_a_simulation_that_was_killed_goes_on_to_the_same_bytes(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = tmp_path / "whole"
    assert run(monkeypatch, capsys, "simulate", tiny, "--set", LONG, "--out", whole)[0] == 0
    for number in (signal.SIGKILL, signal.SIGTERM):
        out = tmp_path / number.name
        with started(tiny, out) as child:
            child.send_signal(number)
            assert child.wait(60) == (130 if number is signal.SIGTERM else -number)
        assert 1 <= len(read_results(out).summary["runs"]) < 6
        code, _, err = run(monkeypatch, capsys, "simulate", tiny, "--set", LONG, "--out", out)
        assert code == 0
        assert "going on with" in err
        assert contents(out) == contents(whole)
    names = ["SIGKILL", "SIGTERM", "tiny.yaml", "whole"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names


def test_a_second_command_on_a_folder_is_refused(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "r"
    with started(tiny, out) as child:
        child.send_signal(signal.SIGSTOP)  # however long the second one takes
        kept = {path.name for path in (out / "parts").glob("run-*")}
        command: list[Any] = ["simulate", tiny, "--set", LONG, "--out", out]
        for more in ([], ["--force"]):
            code, _, err = run(monkeypatch, capsys, *command, *more)
            assert code == 2
            assert "is in use: another command (process " in err
        assert kept <= {path.name for path in (out / "parts").glob("run-*")}


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


def test_an_interrupt_while_a_command_line_is_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From 0.3 to 0.7 s, while typer loads."""
    monkeypatch.setattr("typer.core.TyperGroup.parse_args", lambda *_: signal.raise_signal(signal.SIGINT))
    assert run(monkeypatch, capsys, "list") == (130, "", "paceline: interrupted\n")


@dataclass(frozen=True)
class Late(sudden_death.Place):
    """Its command is there once two runs are complete."""

    @override
    def start(self) -> subprocess.Popen[bytes]:
        child = super().start()
        while not (self.top / "r" / "parts" / "run-000001").is_dir() and child.poll() is None:
            time.sleep(0.01)
        return child


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("command", "moments"), [("simulate", 1), ("report", 2), ("realrun", 1)])
def test_random_moments(
    command: Command, moments: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it starts, and while a report is written; runs are shorter here than in a campaign.

    Simulations die late in other tests, real runs here.
    """
    monkeypatch.setitem(sudden_death._LENGTHS, command, "stop: {max_iterations: 100}\nrepeats: 2\n")
    for line, wrong in campaign(command, moments, 1, tmp_path):
        assert not wrong, line
    if command == "realrun":
        dead = sudden_death.place(tmp_path, "late", command, tmp_path / "death.yaml")
        assert sudden_death.die(Late(**vars(dead)), 0.0, signal.SIGTERM) == ""
        assert len(sudden_death.complete_runs(dead)) in range(2, 6)
        assert sudden_death.go_on(dead, replace(dead, top=tmp_path / "whole"), command)[1] == []
