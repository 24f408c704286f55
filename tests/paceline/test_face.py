"""The public names: all there, the same wherever they are listed, and quick to import."""

from __future__ import annotations

import ast
import inspect
import pkgutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import paceline

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "pandas", "simpy")


def _typed() -> dict[str, str]:
    """Public name -> module, as type checkers see it; a module under another name is its own home."""
    (block,) = [
        node
        for node in ast.parse((ROOT / "paceline" / "__init__.py").read_text(encoding="utf-8")).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    found = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        for alias in node.names:
            renamed = f"{node.module}.{alias.name}" if alias.asname else node.module
            found[alias.asname or alias.name] = str(renamed)
    return found


def test_the_three_lists_of_names_agree() -> None:
    assert _typed() == paceline._HOMES
    assert sorted(paceline._HOMES) == sorted(paceline.__all__) == dir(paceline)


@pytest.mark.parametrize("name", paceline.__all__)
def test_every_name_resolves_to_what_its_module_defines(name: str) -> None:
    found = getattr(paceline, name)
    home = import_module(paceline._HOMES[name])
    assert found is (home if name == "ops" else vars(home)[name])
    if inspect.isclass(found) or inspect.isfunction(found):
        assert found.__module__ == home.__name__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'paceline' has no attribute 'Wroker'"):
        _ = paceline.Wroker


def test_no_public_name_is_a_module_that_would_replace_it() -> None:
    modules = {module.name for module in pkgutil.iter_modules(paceline.__path__)}
    assert {"api", "commands", "sim", "realrun", "reports"} <= modules
    assert not modules & set(paceline.__all__)


@pytest.mark.parametrize(
    "arguments", [None, ["--help"], ["--version"], ["simulate", "--help"], ["topology", "search", "--help"]]
)
def test_nothing_heavy_is_imported_before_it_is_needed(arguments: list[str] | None) -> None:
    code = "import sys, paceline\n"
    if arguments is not None:
        code += f"sys.argv = ['paceline', *{arguments!r}]\ntry: paceline.main()\nfinally: "
    code += f"print([m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr.strip()) == (0, "[]")
    assert bool(done.stdout) == (arguments is not None)
