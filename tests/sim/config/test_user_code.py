"""What a scenario may name: code that the user or a package's authors wrote, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from functools import lru_cache
from os import system as borrowed
from pathlib import Path

import pytest

from paceline.sim.config import user_code
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
