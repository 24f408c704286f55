"""Who may import what, where import-linter cannot see it: parts of external packages."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

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
