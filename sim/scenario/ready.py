"""Ready scenarios, clusters, prices, and the documents to copy, by name: ``tutorials/compare``.

A name is a file's path below the folder of its kind, without its suffix. Wherever a scenario's
file is wanted, its name will do; a file of that name comes first.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

from ..config.files import is_file, write_atomically
from ..config.yaml_file import YAML_SUFFIXES, read_text
from ..errors import InputError, did_you_mean

_FOLDER: Final = Path(__file__).parents[2] / "scenarios"
_CLUSTERS: Final = _FOLDER / "clusters"
_DOCUMENTS: Final = _FOLDER.with_name("docs")
_PRICES: Final = Path(__file__).parent / "prices"
SCHEMA: Final = Path(__file__).with_name("paceline-schema.json")
"""JSON Schema of scenario files, for editors; made from the models by ``python -m docs.make.scenario``."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9/._-]{0,79}")
"""Possible names of a ready scenario, also where its suffix is written."""


@cache
def ready_scenarios() -> dict[str, Path]:
    """Name -> file of every ready scenario, top-level ones first."""
    paths = (path for path in _FOLDER.rglob("*.yaml") if path.parent != _CLUSTERS)
    files = {path.relative_to(_FOLDER).with_suffix("").as_posix(): path for path in paths}
    return dict(sorted(files.items(), key=lambda pair: (pair[0].count("/"), pair[0])))


def refuse_scenarios(paths: Sequence[Path]) -> None:
    """Refuse scenarios in the place of results."""
    for path in paths:
        if path.suffix in YAML_SUFFIXES or (not path.exists() and str(path) in ready_scenarios()):
            raise InputError(f"{path} is a scenario; 'paceline simulate {path} --out DIR' makes its results")


def ready_clusters() -> dict[str, Path]:
    """Name -> file of every ready cluster, for ``cluster.file``."""
    return {path.stem: path for path in sorted(_CLUSTERS.glob("*.yaml"))}


def ready_documents() -> dict[str, Path]:
    """Name -> file of the notebook, every tutorial, and every scheme that is written as a user's own."""
    paths = sorted([*_DOCUMENTS.glob("*.*"), *_DOCUMENTS.glob("*/*.*")])
    return {path.relative_to(_DOCUMENTS).with_suffix("").as_posix(): path for path in paths}


@cache
def price_tables() -> dict[str, list[dict[str, str]]]:
    """Name -> rows of each ready table, prices in $."""
    paths = sorted(_PRICES.glob("*.csv"))
    return {path.stem: list(csv.DictReader(path.read_text("utf-8").splitlines())) for path in paths}


def find_scenario(path: Path) -> Path:
    """File of a scenario: ``path``, or the ready scenario of that name; ``InputError`` for neither."""
    name, ready = path.as_posix(), ready_scenarios()
    if name in ready and not is_file(path):
        return ready[name]
    try:
        if _NAME.fullmatch(name):
            path.stat()
    except (FileNotFoundError, NotADirectoryError):
        near = [each.as_posix() for each in path.parent.glob("*") if each.suffix in YAML_SUFFIXES]
        hint = did_you_mean(name, [*ready, *near])
        everything = f" ready are: {', '.join(ready)}" if hint.startswith("did") else ""
        why = f"there is no such file, and no ready scenario has this name; {hint}{everything}"
        raise InputError(f"{name}: {why}") from None
    except OSError:  # whoever reads it is told
        pass
    return path


def describe_scenario(path: Path) -> str:
    """First sentence of the comment at the top of a scenario's or cluster's file; "" where there is none."""
    lines: list[str] = []
    for line in read_text(path).splitlines():
        if not re.match(r"# \S", line):
            break
        lines.append(line[2:].strip())
    text = " ".join(lines)
    sentence = re.match(r".*?[.?](?= [A-Z0-9]|$)", text)
    return sentence[0] if sentence else text


def copy_ready(name: str, target: Path) -> list[Path]:
    """Copy a ready scenario, its files and the JSON Schema for editors, or a document; the new files.

    The copied scenario names the schema beside it: a path into this environment would end with it.
    Raises ``InputError`` for an unknown name, or a file that exists already or cannot be written.
    """
    ready = (scenarios := ready_scenarios()) | ready_documents()
    if name not in ready:
        raise InputError(f"{name}: no ready scenario or document has this name; {did_you_mean(name, ready)}")
    if not target.parent.is_dir():
        raise InputError(f"cannot write {target}: there is no folder {target.parent}")
    texts = {target: read_text(ready[name])}
    if name in scenarios:
        others = (path for path in sorted(ready[name].parent.iterdir()) if path.suffix not in YAML_SUFFIXES)
        beside = [path for path in others if path.is_file() and path.name in texts[target]]
        texts[target] = f"# yaml-language-server: $schema={SCHEMA.name}\n" + texts[target]
        texts |= {target.with_name(path.name): read_text(path) for path in beside}
    for path, content in texts.items():
        # An interrupted copy has left the named files, which are written first.
        if path.is_symlink() or (path.exists() and (path == target or read_text(path) != content)):
            raise InputError(f"{path} is there already: choose another name")
    if name in scenarios:
        texts[target.with_name(SCHEMA.name)] = read_text(SCHEMA)  # that of another release is replaced
    for path, content in reversed(texts.items()):
        write_atomically(path, content)
    return [*texts]
