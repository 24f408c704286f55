"""What a scenario may name: code that the user or a package's authors wrote, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from functools import lru_cache
from os import system as borrowed
from pathlib import Path

import pytest

from paceline.sim.config.user_code import call as user_code
from paceline.sim.errors import InputError
from paceline.sim.scenario.schema import parse
from tests.sim.scenario.test_schema import FLAT

BORROWED = borrowed


@lru_cache
def cached() -> int:
    """A function of the user's behind a decorator of the standard library."""
    return 3


@pytest.mark.parametrize(
    "path", ["os:system", "subprocess:getoutput", "builtins:exec", "importlib.util:find_spec"]
)
def test_the_standard_library_is_no_task(path: str) -> None:
    with pytest.raises(InputError, match="a module of Python's standard library"):
        parse(FLAT.replace("task: digits-mlp", f"task: '{path}'\n  command: touch broken"))


@pytest.mark.parametrize("name", ["borrowed", "BORROWED", "subprocess.getoutput", "sys.exit"])
def test_what_a_module_only_imports_is_not_the_users(name: str) -> None:
    assert subprocess.getoutput is not None
    assert sys.exit is not None
    with pytest.raises(InputError, match="is defined in Python itself"):
        user_code.load_object(f"tests.sim.config.test_user_code:{name}")


def test_a_decorated_function_is_the_users() -> None:
    assert user_code.load_object("tests.sim.config.test_user_code:cached") is cached


@pytest.mark.parametrize("inside", ["results", "mine/results", "results/mine"])
def test_a_result_folder_is_no_package(inside: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python takes any folder for a package, so the way down to a module is looked at, too."""
    folder = tmp_path / inside
    folder.mkdir(parents=True)
    results = tmp_path / inside.removesuffix("/mine")
    for name in ("scenario.yaml", "summary.json"):
        (results / name).write_text("{}")
    (folder / "supplied.py").write_text("open('ran', 'w').close()\ndef build(): pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(InputError, match="lies in a result folder, which supplies no code"):
        user_code.load_object(f"{inside.replace('/', '.')}.supplied:build")
    assert not (tmp_path / "ran").exists()


def test_a_result_folder_supplies_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check comes before the import: a result folder's module leaves no trace."""
    for name in ("scenario.yaml", "summary.json"):
        (tmp_path / name).write_text("{}")
    (tmp_path / "supplied.py").write_text("open('ran', 'w').close()\ndef build(): pass\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="lies in a result folder, which supplies no code"):
        user_code.load_object("supplied:build")
    assert not (tmp_path / "ran").exists()
    (tmp_path / "summary.json").unlink()
    assert user_code.load_object("supplied:build") is not None


PARTS = {
    "sweep": ["sweep.json"],
    "sweep that lost its file": ["0001/scenario.yaml", "0001/summary.json"],
    "sweep that was ended": ["0001/parts/index.json"],
    "parts of a run": ["index.json", "run-000000/scenario.yaml", "run-000000/metrics.parquet"],
    "trials": ["trial-000000/scenario.yaml", "trial-000000/events.parquet"],
}


@pytest.mark.parametrize("files", PARTS.values(), ids=PARTS)
@pytest.mark.parametrize("inside", [".", "below"])
def test_a_folder_of_result_folders_supplies_no_code(
    files: list[str], inside: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweep itself, complete or not, and the parts of a run; a folder with somebody's results does."""
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    (tmp_path / "below").mkdir()
    (tmp_path / inside / "above_results.py").write_text("open('ran', 'w').close()\ndef build(): pass\n")
    monkeypatch.chdir(tmp_path / inside)
    with pytest.raises(InputError, match="lies in a result folder, which supplies no code"):
        user_code.load_object("above_results:build")
    assert not list(tmp_path.rglob("ran"))
    for name in files:
        (tmp_path / name).rename(tmp_path / name.replace("/", "-").replace("sweep", "other"))
    assert user_code.load_object("above_results:build") is not None
    del sys.modules["above_results"]
