"""A report that dies leaves the old page or the new one, whole; the next one writes what it would have."""

from __future__ import annotations

import os
import random
import sys
import time
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Final

import pytest

from tests.hostile import sandbox
from tests.support import warm

MOMENTS: Final = 12
_HANGS_S: Final = 300.0
SHOWN: Final = ("report.html", "report-files")


def be_report(folder: str) -> None:
    """Be ``paceline report r`` in a folder."""
    os.chdir(folder)
    os.environ |= sandbox.ENVIRONMENT
    sys.argv = ["paceline", "report", "r"]
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115
    from paceline.commands.app import main

    main()


def start_report(folder: Path) -> ForkServerProcess:
    process = warm.forks().Process(target=be_report, args=(str(folder),))
    process.start()
    return process


def report(folder: Path) -> dict[str, bytes]:
    """Have a page written; returns all that is in the folder then."""
    process = start_report(folder)
    process.join(_HANGS_S)
    assert process.exitcode == 0
    return files(folder)


def files(folder: Path) -> dict[str, bytes]:
    """All files below a folder, hidden ones too."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def results(folder: Path, rate: float) -> Path:
    """Make the results of a scenario with this learning rate, as ``r`` in a folder of their own."""
    sandbox.write_good(folder, sandbox.SMALL.replace("lr: 0.1", f"lr: {rate}"))
    return folder


def shown(contents: dict[str, bytes], name: str) -> dict[str, bytes]:
    return {path: content for path, content in contents.items() if path.split("/")[0] == name}


@pytest.mark.slow
def test_a_report_that_is_killed_leaves_the_old_page_or_the_new_one(tmp_path: Path) -> None:
    sources = []
    for number, rate in enumerate((0.1, 0.2)):
        made = results(tmp_path / f"made-{number}", rate)
        (tmp_path / f"whole-{number}").mkdir()
        (made / "r").rename(tmp_path / f"whole-{number}" / "r")
        sources.append(tmp_path / f"whole-{number}")
    old = report(sources[0])
    begun_s = time.monotonic()
    new = report(sources[1])
    lasts_s = time.monotonic() - begun_s
    moment, num_killed = random.Random(5), 0
    for number in range(MOMENTS):
        folder = tmp_path / f"killed-{number}"
        for whole, names in ((old, SHOWN), (new, ("r",))):
            for name in names:
                for path, content in shown(whole, name).items():
                    (folder / path).parent.mkdir(parents=True, exist_ok=True)
                    (folder / path).write_bytes(content)
        process = start_report(folder)
        process.join(moment.uniform(0.0, lasts_s))
        process.kill()
        process.join()
        num_killed += process.exitcode != 0
        left = files(folder)
        assert shown(left, "report.html") in [shown(each, "report.html") for each in (old, new)]
        assert shown(left, "report-files") in [shown(old, "report-files"), shown(new, "report-files"), {}]
        assert {path.split("/")[0] for path in left if not path.startswith(".")} <= {"r", *SHOWN}
        assert report(folder) == new
    assert num_killed > 0
