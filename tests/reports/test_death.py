"""A report that is killed: what it writes is there whole or not at all, and the next one writes the same."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from paceline.reports.page import build
from paceline.sim.config.files import claim
from paceline.sim.errors import InputError
from tests.support import warm
from tests.support.made_results import write_made_results

CHANGES = frozenset({"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate"})
"""Audit events of what changes a folder, beside files that are opened to be written."""


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def report(results: Path, top: Path, ends_at: int | None) -> None:
    """Write a report into ``top``; be killed just before something changes there for that time, from 0 on."""
    numbers = itertools.count()

    def kill(event: str, arguments: tuple[object, ...]) -> None:
        writes = (
            event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        )
        if (writes or event in CHANGES) and str(top) in str(arguments[0]) and next(numbers) == ends_at:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(kill)
    build([results], top / "report.html", top / "report-files")


def start(results: Path, top: Path, ends_at: int | None = None) -> int:
    """The exit status of such a report."""
    process = warm.forks().Process(target=report, args=(results, top, ends_at))
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode


@pytest.mark.slow
def test_a_report_that_is_killed_between_any_two_of_its_writes(tmp_path: Path) -> None:
    results = write_made_results(tmp_path / "results")
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        assert start(results / {"old": "other", "new": "timed"}[name], tmp_path / name) == 0
    old, new = contents(tmp_path / "old"), contents(tmp_path / "new")
    assert len(new) >= 6
    died, top = 0, tmp_path
    for ends_at in itertools.count():
        top = tmp_path / f"{ends_at}"
        shutil.copytree(tmp_path / "old", top)
        if start(results / "timed", top, ends_at) == 0:
            break
        died += 1
        page = (top / "report.html").read_bytes()
        assert page in (old["report.html"], new["report.html"])
        kept = {name: text for name, text in contents(top).items() if name.startswith("report-files")}
        whole = [{name: text for name, text in each.items() if "/" in name} for each in (old, new)]
        assert kept in (*whole, {})
        assert kept == whole[1] or page == old["report.html"]
        assert start(results / "timed", top) == 0
        assert contents(top) == new
    assert died >= 12
    assert contents(top) == new


def test_a_second_report_at_the_same_place_is_refused(tmp_path: Path) -> None:
    results = write_made_results(tmp_path / "results")
    with claim(tmp_path / "r.html"), pytest.raises(InputError, match=r"r\.html is in use: another command"):
        build([results / "timed"], tmp_path / "r.html")
    build([results / "timed"], tmp_path / "r.html")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.html", "results"]


def test_a_report_makes_no_folder_for_its_page(tmp_path: Path) -> None:
    results = write_made_results(tmp_path / "results")
    with pytest.raises(InputError, match=r"there is no folder .*nowhere"):
        build([results / "timed"], tmp_path / "nowhere" / "r.html")
    assert not (tmp_path / "nowhere").exists()
