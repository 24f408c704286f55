"""Progress in a pipe, in a notebook, and of commands that take long on a terminal."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from paceline.commands.console import print_result, showing, watching
from paceline.sim.scenario.schema import load


def watch_six_runs(monkeypatch: pytest.MonkeyPatch, signs: int, apart_s: float) -> None:
    """Show progress that comes at even times in the first run."""
    now_s = [0.0]
    monkeypatch.setattr("paceline.commands.console.time.monotonic", lambda: now_s[0])
    with watching(load(Path("quadratic"))) as progress:
        progress.begin("run", 6)
        for _ in range(signs):
            now_s[0] += apart_s
            progress("a", 3)
        for _ in range(6):
            progress.complete("a")


def test_in_a_pipe_progress_is_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    watch_six_runs(monkeypatch, signs=30, apart_s=0.9)
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(",")[0] for line in lines] == ["0 of 6 runs", "0 of 6 runs", "6 of 6 runs"]


def test_in_a_notebook_progress_is_one_output_that_changes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: list[list[str]] = []

    class Handle:
        def update(self, content: dict[str, str], raw: bool) -> None:
            shown[-1].append(content["text/plain"])

    def display(content: dict[str, str], raw: bool, display_id: bool) -> Handle:
        shown.append([content["text/plain"]])
        return Handle()

    monkeypatch.setitem(sys.modules, "IPython.display", cast(Any, SimpleNamespace(display=display)))
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    watch_six_runs(monkeypatch, signs=100, apart_s=0.01)
    assert [len(each) for each in shown] == [4]  # none, two in a second, the last
    assert shown[0][-1] == "6 of 6 runs, 100 %"
    assert capsys.readouterr().err == ""


def test_a_command_that_takes_long_shows_so_on_a_terminal_until_it_answers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("FORCE_COLOR", "1"), ("TERM", "xterm")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr("paceline.commands.console.SHOWN_AFTER_S", 0.0)
    begun, ended = threading.Event(), threading.Event()
    monkeypatch.setattr("rich.progress.Progress.start", lambda self: begun.set())
    monkeypatch.setattr("rich.progress.Progress.stop", lambda self: ended.set())
    with showing():
        assert begun.wait(10)
        assert not ended.is_set()
        print_result("an answer\n")
        assert ended.is_set()
    assert capsys.readouterr().out == "an answer\n"
