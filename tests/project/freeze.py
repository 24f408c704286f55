"""What is frozen: the surface, a line for each thing that somebody can name, and the statements of the core.

    python -m tests.project.freeze            writes surface.txt and size.txt anew
    python -m tests.project.freeze --commits  whether commits that changed them say why (make check)

Statements are those of the syntax tree without docstrings. What is packed into one counts apart: each further
value of ``a, b = x, y``, a conditional expression, a walrus, a filter and each further loop of a
comprehension. So neither lines nor packing move the number, only what there is to understand.
"""

from __future__ import annotations

import ast
import dataclasses
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import click

import paceline
from docs.make.scenario import json_schema
from paceline import testing
from paceline.commands.app import COMMANDS
from paceline.sim.drivers.job import Job
from paceline.sim.program import operations
from paceline.sim.program.worker import Worker
from paceline.sim.records.rows import RunRow
from paceline.sim.records.run import Run
from paceline.sim.records.summary import SchemeSummary, Summary
from paceline.sim.schemes import SCHEMES
from paceline.sim.schemes.scheme import Scheme
from paceline.sim.topology import TOPOLOGIES
from paceline.sim.workloads import TASKS
from tests.support.modules import PRODUCT, modules_below, place_of

SURFACE_FILE: Final = Path(__file__).with_name("surface.txt")
SIZE_FILE: Final = Path(__file__).with_name("size.txt")
TRAILERS: Final = {SURFACE_FILE: "Surface:", SIZE_FILE: "Size:"}
"""Line of a commit's body that says what the change of a file replaces."""

EXTRAS: Final = (
    "paceline/extras/",
    # Extras at their places before they move there:
    "sim/foreign.py", "sim/topology/search/", "sim/topology/matcha.py", "sim/drivers/views.py",
    "sim/drivers/membership.py", "realrun/lab/", "realrun/attach/", "sim/scenario/price.py",
    "sim/records/money/", "sim/records/sweeps/draws.py", "sim/scenario/ranges.py",
)  # fmt: skip


def surface() -> list[str]:
    """All names that users and authors of schemes can write or read, as sorted lines 'kind name'."""
    lines = {f"key {each}" for each in _of_any_scheme(set(_keys(json_schema())))}
    for name, command in COMMANDS.items():
        lines |= set(_commands(command, name))
    lines |= {f"public paceline.{each}" for each in paceline.__all__}
    lines |= {f"public paceline.testing.{each}" for each in testing.__all__}
    records: tuple[type, ...] = (Scheme, Job, Worker, Run, RunRow, SchemeSummary, Summary)
    for record in records:
        lines |= {f"field {record.__name__}.{each}" for each in _fields(record)}
    methods = (name for name, value in vars(Worker).items() if callable(value) and not name.startswith("_"))
    lines |= {f"method Worker.{name}" for name in methods}
    lines |= {f"operation {each.__name__}" for each in _subclasses(operations.Operation)}
    lines |= {f"scheme {each}" for each in SCHEMES} | {f"topology {each}" for each in TOPOLOGIES}
    lines |= {f"task {each}" for each in TASKS}
    return sorted(lines)


def _keys(schema: dict[str, Any]) -> Iterator[str]:
    """Keys of a scenario with the way to them; each form of a key counts."""
    definitions = schema.get("$defs", {})

    def walk(node: object, at: str, seen: tuple[str, ...]) -> Iterator[str]:
        if isinstance(node, list):
            for each in node:
                yield from walk(each, at, seen)
        if not isinstance(node, dict):
            return
        name = str(node.get("$ref", "")).rpartition("/")[2]
        if name and name not in seen:
            yield from walk(definitions[name], at, (*seen, name))
        for key, inner in node.get("properties", {}).items():
            here = f"{at}.{key}" if at else key
            yield here
            yield from walk(inner, here, seen)
        for form in ("anyOf", "oneOf", "allOf", "items", "prefixItems", "additionalProperties"):
            yield from walk(node.get(form), at + ("[]" if form == "items" else ""), seen)

    return walk(schema, "", ())


def _of_any_scheme(keys: set[str]) -> set[str]:
    """The keys, with those that stand in the entry of every scheme as one: ``schemes[].*.label``."""
    entries = {f"schemes[].{name}." for name in SCHEMES}
    own = [{key.removeprefix(entry) for key in keys if key.startswith(entry)} for entry in entries]
    common = set.intersection(*own)
    repeated = {entry + key for entry in entries for key in common}
    return keys - repeated | {f"schemes[].*.{key}" for key in common}


def _commands(command: click.Command, name: str) -> Iterator[str]:
    yield f"command {name}"
    for each in getattr(command, "commands", {}).values():
        yield from _commands(each, f"{name} {each.name}")
    for parameter in command.params:
        if parameter.name != "help":
            said = parameter.opts[0] if parameter.param_type_name == "option" else parameter.name
            yield f"{parameter.param_type_name} {name} {said}"


def _fields(record: type) -> Iterable[str]:
    if dataclasses.is_dataclass(record):
        return [each.name for each in dataclasses.fields(record)]
    return [str(name) for name in record.__annotations__]


def _subclasses(parent: type) -> Iterator[type]:
    each: type
    for each in parent.__subclasses__():
        if each.__module__ == operations.__name__:
            yield each
        yield from _subclasses(each)


def statements(text: str) -> int:
    """Number of statements of a module, with those that are packed.

    >>> statements('a, b = 1, 2'), statements('if x: y = 1 if z else 2'), statements('[a for a in b if a]')
    (2, 3, 2)
    """
    return sum(map(_weight, ast.walk(ast.parse(text))))


def _weight(node: ast.AST) -> int:
    match node:
        case ast.Expr(value=ast.Constant(value=str())):
            return 0
        case ast.Assign(targets=[ast.Tuple(), *_], value=ast.Tuple(elts=values)):
            return len(values)
        case ast.stmt() | ast.IfExp() | ast.NamedExpr():
            return 1
        case ast.ListComp(generators=loops) | ast.SetComp(generators=loops):
            return len(loops) - 1 + sum(len(each.ifs) for each in loops)
        case ast.DictComp(generators=loops) | ast.GeneratorExp(generators=loops):
            return len(loops) - 1 + sum(len(each.ifs) for each in loops)
    return 0


def sizes() -> dict[str, int]:
    """Statements of the core, and of the extras."""
    found = {"core": 0, "extras": 0}
    for path in modules_below(*PRODUCT):
        kind = "extras" if place_of(path).startswith(EXTRAS) else "core"
        found[kind] += statements(path.read_text(encoding="utf-8"))
    return found


def size_limit() -> int:
    """Most statements of the core."""
    return int(SIZE_FILE.read_text(encoding="utf-8").split()[1])


def git(folder: Path, *words: str) -> str:
    """What a command of git prints in a folder."""
    return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True).stdout


def silent_commits() -> list[str]:
    """Commits that changed a frozen file, after the one that made it, without a line that says why."""
    silent = []
    for path, trailer in TRAILERS.items():
        found = git(path.parent, "log", "--no-merges", "--format=%h%x00%s%x00%b%x01", "--", str(path))
        commits = [each.strip().split("\0") for each in found.split("\1") if each.strip()]
        silent += [
            f"{number} {subject}: no line '{trailer} ...' says what {path.name}'s change replaces"
            for number, subject, body in commits[:-1]
            if not any(line.startswith(trailer) for line in body.splitlines())
        ]
    return silent


def main() -> None:
    """Write the files, or look at the commits."""
    if "--commits" in sys.argv:
        if silent := silent_commits():
            raise SystemExit("\n".join(silent))
        return
    SURFACE_FILE.write_text("".join(f"{line}\n" for line in surface()), encoding="utf-8")
    found = sizes()
    SIZE_FILE.write_text(f"core {found['core']}\n", encoding="utf-8")
    print(*(f"{kind} {number:,}" for kind, number in found.items()))  # noqa: T201


if __name__ == "__main__":
    main()
