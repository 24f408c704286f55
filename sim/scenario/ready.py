"""Ready scenarios that come with Paceline, by name: ``four-regions``, ``lab/two-sites``; and ready clusters.

A name is a scenario's path below the folder of ready scenarios, without its suffix. Wherever a scenario's
file is wanted, its name will do; a file of that name comes first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

from ..config.files import write_atomically
from ..config.yaml_file import YAML_SUFFIXES, read_text
from ..errors import InputError, did_you_mean

_FOLDER: Final = Path(__file__).parents[2] / "scenarios"
_CLUSTERS: Final = _FOLDER / "clusters"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9/_-]{0,79}")
"""Possible names of a ready scenario."""


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


def find_scenario(path: Path) -> Path:
    """File of a scenario: ``path``, or the ready scenario of that name; ``InputError`` for neither."""
    name = path.as_posix()
    if not _NAME.fullmatch(name) or path.is_file():
        return path
    ready = ready_scenarios()
    if name in ready:
        return ready[name]
    if path.exists():
        return path
    near = [each.name for each in path.parent.glob("*") if each.suffix in YAML_SUFFIXES]
    hint = did_you_mean(name, [*ready, *near])
    everything = f" ready are: {', '.join(ready)}" if hint.startswith("did") else ""
    raise InputError(
        f"{name}: there is no such file, and no ready scenario has this name; {hint}{everything}"
    )


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


def copy_scenario(name: str, target: Path) -> list[Path]:
    """Copy a ready scenario and its files; return the new files, the scenario first.

    Raises ``InputError`` for an unknown name, or a file that exists already or cannot be written.
    """
    ready = ready_scenarios()
    if name not in ready:
        raise InputError(f"{name}: no ready scenario has this name; {did_you_mean(name, ready)}")
    text = read_text(ready[name])
    others = (path for path in sorted(ready[name].parent.iterdir()) if path.suffix not in YAML_SUFFIXES)
    beside = [path for path in others if path.is_file() and path.name in text]
    texts = {target: text, **{target.with_name(path.name): read_text(path) for path in beside}}
    for path, content in texts.items():
        # An interrupted copy has left the named files, which are written first.
        if path.is_symlink() or (path.exists() and (path == target or read_text(path) != content)):
            raise InputError(f"{path} is there already: choose another name")
    for path, content in reversed(texts.items()):
        write_atomically(path, content)
    return [*texts]
