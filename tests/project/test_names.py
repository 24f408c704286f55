"""Names: one home for each, and some that say nothing are not used."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.modules import PRODUCT, modules_below, place_of

WORDED = (*PRODUCT, "benchmarks", "docs/make")
"""Where the rules for words hold."""
EMPTY_WORDS = {"found", "told", "said", "asked", "made", "heard"}
"""A name is that of the thing: ``links``, ``schedule``, ``answer``. Keys of files stay as they are."""
FILE_KEYS = {
    ("realrun/calibration/cluster_probes.py", "made"),
    ("sim/network/profile.py", "made"),
    ("sim/compute/attached.py", "made"),
}


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _public_names(tree: ast.Module) -> Iterator[str]:
    """Classes, aliases and constants of a module; names of functions may repeat."""
    for node in tree.body:
        match node:
            case ast.ClassDef(name=name) | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()):
                names = [name]
            case ast.Assign(targets=targets):
                names = [target.id for target in targets if isinstance(target, ast.Name)]
            case _:
                names = []
        yield from (name for name in names if not name.startswith("_"))


def test_a_class_an_alias_or_a_constant_has_one_home() -> None:
    homes = defaultdict(list)
    for path in modules_below(*PRODUCT):
        for name in _public_names(_tree(path)):
            homes[name].append(place_of(path))
    assert not {name: paths for name, paths in homes.items() if len(paths) > 1}


@pytest.mark.parametrize("path", modules_below(*WORDED), ids=place_of)
def test_a_docstring_can_be_read_alone(path: Path) -> None:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = [ast.get_docstring(node) or "" for node in ast.walk(_tree(path)) if isinstance(node, documented)]
    unclear = [text for text in texts if text.startswith("The same")]
    assert not unclear, "name the thing: a docstring is read without the one above it"


def _names(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Every name that is given to something, and the line."""
    for node in ast.walk(tree):
        match node:
            case (
                ast.Name(id=name, ctx=ast.Store())
                | ast.Attribute(attr=name, ctx=ast.Store())
                | ast.arg(arg=name)
                | ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
                | ast.alias(asname=str(name))
                | ast.MatchAs(name=str(name))
                | ast.MatchStar(name=str(name))
                | ast.ExceptHandler(name=str(name))
            ):
                yield name, getattr(node, "lineno", 0)


@pytest.mark.parametrize("path", modules_below(*WORDED), ids=place_of)
def test_a_name_is_that_of_the_thing(path: Path) -> None:
    names = [(name, line) for name, line in _names(_tree(path)) if name.strip("_").lower() in EMPTY_WORDS]
    empty = [(name, line) for name, line in names if (place_of(path), name) not in FILE_KEYS]
    assert not empty, f"{empty} (name, line): say what the thing is"
