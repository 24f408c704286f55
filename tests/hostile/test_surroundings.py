"""Odd surroundings of a command change nothing, or end it with one message and its exit status."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.hostile import sandbox
from tests.hostile.surroundings import find_faults, run_line, surroundings

ALL = surroundings()
SCENARIO = sandbox.SMALL.replace(", ad_psgd", "")
QUICK = ("few-files-realrun", "output-closed", "folder-gone")
"""Those that every run of the tests looks at."""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    sandbox.write_good(folder, SCENARIO)
    return folder / "r"


def check(name: str, tmp_path: Path, results: Path) -> None:
    shutil.copytree(results, tmp_path / "r")
    (tmp_path / "s.yaml").write_text(SCENARIO)
    ended = run_line(ALL[name], tmp_path)
    assert not find_faults(ALL[name], ended), ended.err[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_some_surroundings(name: str, tmp_path: Path, results: Path) -> None:
    check(name, tmp_path, results)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(ALL.keys() - set(QUICK)))
def test_surroundings(name: str, tmp_path: Path, results: Path) -> None:
    check(name, tmp_path, results)
