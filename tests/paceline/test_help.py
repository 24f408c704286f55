"""What the command line says of itself: help, versions, lists, the schema."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Iterator
from importlib.metadata import version

import pytest
import torch
import typer

from paceline.commands.app import app
from paceline.sim.schemes import SCHEMES
from tests.paceline.test_command_line import ROOT, run

FLAGS = {
    "--bundle",
    "--force",
    "--help",
    "--json",
    "--lab",
    "--processes",
    "--slurm",
    "--trace",
    "--undo",
    "--version",
}


def _commands(app: typer.Typer) -> Iterator[list[str]]:
    """The words of every command of an app, and of the app itself."""
    yield []
    for command in app.registered_commands:
        assert command.callback is not None
        yield [command.name or command.callback.__name__]
    for group in app.registered_groups:
        assert group.typer_instance is not None
        yield from ([str(group.name), *words] for words in _commands(group.typer_instance))


@pytest.mark.parametrize("words", [*_commands(app)], ids=" ".join)
def test_help_shows_flags_as_flags(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At 100 columns: a flag has no value and no opposite, and commands are told in whole sentences."""
    monkeypatch.setenv("COLUMNS", "100")
    code, out, err = run(monkeypatch, capsys, *words, "--help")
    assert (code, err) == (0, "")
    _, _, options = out.partition("\nOptions:\n")
    options, _, commands = options.partition("\nCommands:\n")
    shown = re.findall(r"^  (?:-\w, )?(--[\w-]+)( \S+)?(?:  |$)", options, flags=re.MULTILINE)
    assert len(shown) == len(re.findall(r"^  -", options, flags=re.MULTILINE))
    for name, value in shown:
        assert (value == "") == (name in FLAGS), name
        assert "<" not in value, name
    assert "..." not in commands
    assert max(map(len, out.splitlines())) <= 100


def test_versions(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(monkeypatch, capsys, "--version")
    assert (code, out) == (
        0,
        f"paceline {version('paceline')}, Python {platform.python_version()}, torch {torch.__version__}\n",
    )


def test_list_and_schema(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    names = json.loads(run(monkeypatch, capsys, "list", "--json")[1])
    assert set(names) == {"scenarios", "schemes", "topologies", "tasks"}
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
