"""The page of the command line, from the commands themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from typer import Context
from typer.main import get_command

from paceline.commands.app import COMMANDS, app

_HEAD: Final = "# Command line\n\n`paceline COMMAND --help` says the same in a terminal."


def commands_page() -> str:
    """The page in Markdown: a section for each command, a table of its arguments and options."""
    parts = [_HEAD, *_described(get_command(app), "paceline")]
    for name in COMMANDS:
        parts += _described(COMMANDS[name], f"paceline {name}")
    return "\n\n".join(parts) + "\n"


def _described(command: Any, name: str) -> Iterator[str]:
    context = Context(command, info_name=name)
    yield f"## {name}"
    yield _cell(command.help or "")
    yield f"```\n{command.get_usage(context).removeprefix('Usage: ')}\n```"
    rows = [record for each in command.params if (record := each.get_help_record(context))]
    if rows:
        yield "\n".join(
            ["| | |", "| --- | --- |", *(f"| `{_in_row(key)}` | {_cell(about)} |" for key, about in rows)]
        )
    if name != "paceline":
        for below, inner in getattr(command, "commands", {}).items():
            yield from _described(inner, f"{name} {below}")


def _cell(text: str) -> str:
    """Text of a help page as Markdown in one line."""
    return _in_row(" ".join(text.split())).replace("<", r"\<").replace("*", r"\*")


def _in_row(text: str) -> str:
    return text.replace("|", r"\|")
