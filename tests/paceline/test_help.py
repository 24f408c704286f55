"""What the command line says of itself: help, versions, lists, the schema."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import pytest
import torch
from typer.main import get_command

from paceline.commands.app import app
from paceline.sim.schemes import SCHEMES
from tests.paceline.test_command_line import ROOT, run


def _commands(command: Any) -> Iterator[list[str]]:
    """The words of every command of an app, and of the app itself."""
    yield []
    for name, each in getattr(command, "commands", {}).items():
        yield from ([name, *words] for words in _commands(each))


def _flags(words: list[str]) -> set[str]:
    """The options of a command that are true or false, as declared in its signature."""
    command: Any = get_command(app)
    for word in words:
        command = command.commands[word]
    flags = [each for each in command.params if getattr(each, "is_flag", False)]
    assert not [each.name for each in flags if each.secondary_opts], "name the flag: typer.Option('--flag')"
    return {"--help", *(name for each in flags for name in each.opts)}


@pytest.mark.parametrize("words", [*_commands(get_command(app))], ids=" ".join)
def test_help_shows_flags_as_flags(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A flag has no value and no opposite; commands are told in whole sentences, at 80 columns."""
    monkeypatch.setenv("COLUMNS", "80" if len(words) == 0 else "100")
    code, out, err = run(monkeypatch, capsys, *words, "--help")
    assert (code, err) == (0, "")
    _, _, options = out.partition("\nOptions:\n")
    flags = _flags(words)
    options, _, commands = options.partition("\nCommands:\n" if words else "\nPredict:\n")
    shown = re.findall(r"^  (?:-\w, )?(--[\w-]+)( \S+)?(?:  |$)", options, flags=re.MULTILINE)
    assert len(shown) == len(re.findall(r"^  -", options, flags=re.MULTILINE))
    for name, value in shown:
        assert (value == "") == (name in flags), name
        assert "<" not in value, name
    assert "..." not in commands, "a name too long for the column cuts the sentences, or one is too long"
    assert max(map(len, out.splitlines())) <= 100


def test_help_has_three_names(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    long = run(monkeypatch, capsys, "topology", "search", "--help")
    assert long[0] == 0
    assert "--degree" in long[1]
    assert run(monkeypatch, capsys, "topology", "search", "-h") == long
    assert run(monkeypatch, capsys, "help", "topology", "search") == long
    code, _, err = run(monkeypatch, capsys, "help", "chekc")
    assert code == 2
    assert "Did you mean 'check'?" in err


def test_versions(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(monkeypatch, capsys, "--version")
    assert code == 0
    torch_version = torch.__version__.split("+")[0]  # the package's own may lack the kind of build
    assert out.startswith(
        f"paceline {version('paceline')}, Python {platform.python_version()}, torch {torch_version}"
    )


def test_list_and_schema(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    names = json.loads(run(monkeypatch, capsys, "list", "--json")[1])
    assert set(names) == {"scenarios", "clusters", "schemes", "topologies", "tasks", "prices", "documents"}
    assert "aws-ten-regions" in names["clusters"]
    assert {path.stem for path in (ROOT / "scenarios").glob("*.yaml")} <= set(names["scenarios"])
    assert all(names["scenarios"].values())
    assert {"all_reduce", "local_sgd", "gossip", "ad_psgd"} <= set(names["schemes"])
    lines = run(monkeypatch, capsys, "list")[1].splitlines()
    assert "  all_reduce: Synchronous SGD: average the gradients of all workers at every step." in lines
    assert all(any(line.startswith(f"  {name}: ") and line[-1] == "." for line in lines) for name in SCHEMES)
    assert any(line.startswith("topologies: ") for line in lines)
    assert (
        "  two-sites: Two sites of four workers, an ocean between them: how rarely should they average?"
        in lines
    )
    schema = json.loads(run(monkeypatch, capsys, "schema")[1])
    assert schema["$schema"].startswith("https://json-schema.org/")
