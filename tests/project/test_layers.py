"""Who may import what, where import-linter cannot see it: parts of external packages."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@cache
def _nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def _imports(path: Path) -> set[str]:
    found = set()
    for node in _nodes(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def _importers(module: str) -> set[str]:
    files = [*ROOT.glob("sim/**/*.py"), *ROOT.glob("realrun/**/*.py"), *ROOT.glob("reports/**/*.py")]
    return {
        path.relative_to(ROOT).as_posix()
        for path in files
        if any(name == module or name.startswith(module + ".") for name in _imports(path))
    }


def test_only_the_virtual_clock_imports_simpy() -> None:
    assert _importers("simpy") == {"sim/drivers/clock.py", "sim/drivers/event.py"}


def test_only_realrun_imports_torch_distributed() -> None:
    assert all(name.startswith("realrun/") for name in _importers("torch.distributed"))


def test_nothing_unpickles_or_evaluates() -> None:
    assert not _importers("pickle")
    for path in [*ROOT.glob("sim/**/*.py"), *ROOT.glob("realrun/**/*.py"), *ROOT.glob("reports/**/*.py")]:
        calls = [n.func for n in _nodes(path) if isinstance(n, ast.Call)]
        names = {f.id for f in calls if isinstance(f, ast.Name)}
        assert not names & {"eval", "exec"}, path


@pytest.mark.parametrize("arguments", [["--help"], ["simulate", "--help"]])
def test_help_does_not_import_torch(arguments: list[str]) -> None:
    code = (
        "import sys; sys.argv = ['paceline', *%r]; import paceline\n"
        "try: paceline.main()\n"
        "finally: print([m for m in ('torch', 'pandas', 'pint') if m in sys.modules], file=sys.stderr)"
    )
    command = [sys.executable, "-c", code % arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr.strip()) == (0, "[]")
    assert "Usage" in done.stdout
