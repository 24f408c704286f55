"""A report that dies leaves the old page or the new one, whole; the next one writes what it would have."""

from __future__ import annotations

import io
import itertools
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from matplotlib.figure import Figure

from paceline.reports import page, paper_files
from paceline.reports.folders import ReportSources
from tests.hostile import sandbox
from tests.support import warm

_CHANGES: Final = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate")
"""What Python announces to its audit hooks before it changes a folder; files that it opens come on top."""
_MOST_CHANGES: Final = 200
"""More than any report makes."""
_HANGS_S: Final = 240.0
SHOWN: Final = ("report.html", "report-files")


def draw_once() -> None:
    """Have each page and its first picture drawn once: that takes long, and changes no file."""
    view, render, finish, save = page._view, page._render, paper_files.finish_figure, Figure.savefig
    views: dict[str, dict[str, Any]] = {}
    texts: dict[str, str] = {}
    drawings: dict[tuple[Figure, str], bytes] = {}

    def keep_view(study: ReportSources) -> dict[str, Any]:
        key = study.main.results.scenario
        if key not in views:
            views[key] = view(study)
            views[key]["pictures"] = views[key]["pictures"][:1]
            finish(views[key]["pictures"][0])
        return views[key]

    def keep_text(studies: Sequence[ReportSources], shown: Sequence[dict[str, Any]]) -> str:
        key = studies[0].main.results.scenario
        texts[key] = texts.get(key) or render(studies, shown)
        return texts[key]

    def keep_drawing(figure: Figure, file: Any, **options: Any) -> None:
        key = figure, options["format"]
        if key[1] == "svg":  # which stands in the view
            save(figure, file, **options)
            return
        if key not in drawings:
            drawn = io.BytesIO()
            save(figure, drawn, **options)
            drawings[key] = drawn.getvalue()
        file.write(drawings[key])

    for home, name, kept in (
        (page, "_view", keep_view),
        (page, "_render", keep_text),
        (Figure, "savefig", keep_drawing),
        (paper_files, "finish_figure", lambda picture: picture.figure),
    ):
        setattr(home, name, kept)


def report(folder: Path, die_at: int = _MOST_CHANGES) -> int:
    """Be ``paceline report r`` in a process of its own, which is killed before it changes files for the
    ``die_at``-th time; its exit status, negative where a signal has ended it.
    """
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.chdir(folder)
            tempfile.tempdir = str(folder / "temporary")
            sys.argv = ["paceline", "report", "r"]
            sys.addaudithook(_kill_at(die_at))
            from paceline.commands.app import main

            main()
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else 1
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _kill_at(number: int) -> Any:
    changes = itertools.count()

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & os.O_ACCMODE
        if (writes or event in _CHANGES) and next(changes) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    return hook


def be_killed_at_each_change(top: str) -> None:
    """Replace the page of ``old`` by that of ``new`` in ``ended-0``, ``ended-1``, ..., each killed one change
    later; ``left-0``, ... are what each has left before the next report went over it.
    """
    os.environ |= sandbox.ENVIRONMENT
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115
    draw_once()
    work = Path(top)
    for name in ("old", "new"):
        page.build([work / name / "r"], work / "drawn.html", work / "drawn-files")
        assert report(work / name) == 0
    for number in itertools.count():
        folder = work / f"ended-{number}"
        shutil.copytree(work / "old", folder)
        shutil.rmtree(folder / "r")
        shutil.copytree(work / "new" / "r", folder / "r")
        status = report(folder, number)
        shutil.copytree(folder, work / f"left-{number}")
        if status != -signal.SIGKILL:
            assert status == 0
            return
        assert report(folder) == 0


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where reports have been killed, see ``be_killed_at_each_change``."""
    top = tmp_path_factory.mktemp("reports")
    for name, rate in (("old", "0.1"), ("new", "0.2")):
        sandbox.write_good(top / name, sandbox.SMALL.replace("lr: 0.1", f"lr: {rate}"))
        shutil.rmtree(top / name / "unfinished")
        (top / name / "temporary").mkdir()
    process = warm.forks().Process(target=be_killed_at_each_change, args=(str(top),))
    process.start()
    process.join(_HANGS_S)
    process.kill()
    process.join()
    assert process.exitcode == 0
    return top


def shown(contents: dict[str, bytes], name: str) -> dict[str, bytes]:
    """The files that are, or are in, ``name``."""
    return {path: content for path, content in contents.items() if path.split("/")[0] == name}


@pytest.mark.slow
def test_a_report_that_is_killed_leaves_the_old_page_or_the_new_one(work: Path) -> None:
    old, new = (sandbox.contents(work / name) for name in ("old", "new"))
    seen: set[tuple[bool, bool | None]] = set()
    for folder in work.glob("left-*"):
        left = sandbox.contents(folder)
        assert {path.split("/")[0] for path in left} - {"r", "temporary", *SHOWN} == {
            path.split("/")[0] for path in left if path.startswith(".")
        }
        assert shown(left, "r") == shown(new, "r")
        page_is_new = shown(left, SHOWN[0]) == shown(new, SHOWN[0])
        assert page_is_new or shown(left, SHOWN[0]) == shown(old, SHOWN[0])
        beside = shown(left, SHOWN[1])
        files_are_new = None if not beside else beside == shown(new, SHOWN[1])
        assert files_are_new in (None, True) or beside == shown(old, SHOWN[1])
        seen.add((page_is_new, files_are_new))
    assert seen == {(False, False), (False, None), (False, True), (True, True)}


@pytest.mark.slow
def test_after_a_report_was_killed_the_next_one_writes_the_same_bytes(work: Path) -> None:
    new = sandbox.contents(work / "new")
    ended = list(work.glob("ended-*"))
    assert len(ended) > 20
    for folder in ended:
        assert sandbox.contents(folder) == new, folder.name
