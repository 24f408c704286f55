"""Whoever else is at the same files, and may not be: one message, and nothing is lost or half written."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.hostile import sandbox
from tests.hostile.neighbours import MEANWHILE, PERMISSIONS, TOGETHER
from tests.hostile.surroundings import UNPRIVILEGED, Surrounding, find_faults, run_line

SOMEBODY = 65_534
"""Whose all files are that a user without rights meets."""
QUICK = ("out-report",)
"""Those that every run of the tests looks at."""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    sandbox.write_good(folder, sandbox.SMALL.replace(", ad_psgd", ""))
    return folder / "r"


def check(wanted: Surrounding, tmp_path: Path, results: Path, owner: int | None = None) -> None:
    top = tmp_path / "here"
    top.mkdir()
    shutil.copytree(results, top / "r")
    (top / "s.yaml").write_text(sandbox.SMALL)
    if owner is not None:
        top.chmod(0o755)
        for path in (top, *top.rglob("*")):
            os.chown(path, owner, owner)
    ended = run_line(wanted, top)
    assert not find_faults(wanted, ended), ended.err[-2000:]
    left = {path.name for path in top.iterdir() if path.name.startswith(".")} - {*wanted.writes}
    assert not left


def check_permission(name: str, tmp_path: Path, results: Path) -> None:
    if os.geteuid() != 0 or subprocess.run([*UNPRIVILEGED.split(), "true"], check=False).returncode:
        pytest.skip("only the administrator can make files of others, and lay down its rights")
    check(PERMISSIONS[name], tmp_path, results, SOMEBODY)


@pytest.mark.parametrize("name", QUICK)
def test_some_files_of_others(name: str, tmp_path: Path, results: Path) -> None:
    check_permission(name, tmp_path, results)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PERMISSIONS.keys() - set(QUICK)))
def test_files_of_others(name: str, tmp_path: Path, results: Path) -> None:
    check_permission(name, tmp_path, results)


@pytest.mark.slow
@pytest.mark.parametrize("name", TOGETHER)
def test_two_commands_at_once(name: str, tmp_path: Path, results: Path) -> None:
    check(TOGETHER[name], tmp_path, results)


@pytest.mark.slow
@pytest.mark.parametrize("name", MEANWHILE)
def test_a_folder_that_changes_while_it_is_written(name: str, tmp_path: Path, results: Path) -> None:
    check(MEANWHILE[name], tmp_path, results)
