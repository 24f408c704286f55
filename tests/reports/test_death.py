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


def report(results: Path, top: Path, ends_at: int | None) -> int:
    """Write a report into ``top``, in a process that is killed just before something changes there for that
    time, from 0 on; returns the exit status."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    numbers = itertools.count()

    def kill(event: str, arguments: tuple[object, ...]) -> None:
        writes = (
            event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        )
        if (writes or event in CHANGES) and str(top) in str(arguments[0]) and next(numbers) == ends_at:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(kill)
    build([results], top / "report.html", top / "report-files")
    os._exit(0)


def die_and_go_on(results: Path, work: Path) -> None:
    """Write over a report of other results in ``N``, killed at the Nth change; ``N-after``: and once more."""
    for name in ("old", "new"):
        (work / name).mkdir()
        assert report(results / {"old": "other", "new": "timed"}[name], work / name, None) == 0
    for ends_at in itertools.count():
        top, after = work / f"{ends_at}", work / f"{ends_at}-after"
        shutil.copytree(work / "old", top)
        if report(results / "timed", top, ends_at) == 0:
            return
        shutil.copytree(top, after)
        assert report(results / "timed", after, None) == 0


@pytest.mark.slow
def test_a_report_that_is_killed_between_any_two_of_its_writes(tmp_path: Path) -> None:
    results, work = write_made_results(tmp_path / "results"), tmp_path / "work"
    work.mkdir()
    process = warm.forks().Process(target=die_and_go_on, args=(results, work))  # which loads libraries once
    process.start()
    process.join()
    assert process.exitcode == 0
    old, new = contents(work / "old"), contents(work / "new")
    assert len(new) >= 6
    files = [{name: text for name, text in each.items() if "/" in name} for each in (old, new)]
    died = [path for path in work.iterdir() if (work / f"{path.name}-after").exists()]
    assert len(died) >= 12
    for top in died:
        page = (top / "report.html").read_bytes()
        assert page in (old["report.html"], new["report.html"])
        kept = {name: text for name, text in contents(top).items() if name.startswith("report-files")}
        assert kept in (*files, {})
        assert kept == files[1] or page == old["report.html"]
        assert contents(work / f"{top.name}-after") == new
    assert contents(work / f"{len(died)}") == new


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
