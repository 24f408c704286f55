"""A document before it is checked: ``cluster: {file: ...}`` is read, ``--set dotted.key=value`` applied."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ..config import yaml_file
from ..config.problems import KeyPath, format_value, join_keys
from ..config.yaml_file import Document, SourceLine
from ..errors import InputError, KeyedError, did_you_mean, shorten
from .ready import ready_clusters

MAX_KEYS: Final = 50
"""Keys in the path of an assignment: more than the depth of any scenario."""
MAX_INDEX_DIGITS: Final = 9


@dataclass(frozen=True)
class Assignment:
    """A change from elsewhere than ``--set``; errors call its source ``option``."""

    text: str
    option: str


Change = str | Assignment
"""``dotted.key=value`` after ``--set``, or from elsewhere."""


def apply(document: Document, assignments: Sequence[Change]) -> Document:
    """Read ``cluster.file``, then apply ``assignments`` in order; missing sections are added.

    List entries go by index: ``schemes.0.local_sgd.period=8``. A bare name, such as a scheme without
    options, becomes a section where something is set inside it. The value is YAML; none is null.
    Raises ``InputError`` where an assignment is malformed, or leads through something that has no keys, or
    there is no cluster file.
    """
    changes = [Assignment(each, "--set") if isinstance(each, str) else each for each in assignments]
    files = [each for each in changes if each.text.partition("=")[0].strip() in _FILES]
    others = [each for each in changes if each not in files]
    return _assign(_with_cluster_file(_assign(document, files)), others)


_FILES: Final = ("cluster", "cluster.file")
"""Keys that are set before the cluster's file is read."""


def _with_cluster_file(document: Document) -> Document:
    """Put the keys of ``cluster.file`` into ``cluster``, below those beside it; the network's key by key.

    Places in the result are those of the file. ``InputError``: it is unreadable, or has other keys.
    """
    match document.value:
        case {"cluster": {"file": str(name), **beside}}:
            at = document.place(("cluster", "file"))
        case _:
            return document
    path = Path(document.places[()].source).parent / name
    path = path if path.exists() else ready_clusters().get(name, path)
    try:
        read = yaml_file.parse(yaml_file.read_text(path), str(path))
    except InputError as error:
        ready = "" if path.exists() else f"; ready clusters are: {', '.join(ready_clusters())}"
        raise InputError(f"{at}: cluster.file: {error}{ready}") from None
    match read.value:
        case {"cluster": {**cluster}, **others} if not others and "file" not in cluster:
            pass
        case _:
            raise InputError(f"{at}: cluster.file: {path} must have one key, cluster, and its keys in that")
    match cluster, beside:
        case {"network": {**below}}, {"network": {**above}}:
            beside["network"] = {**below, **above}
    places = {at: place for at, place in read.places.items() if len(at) > 1}
    return Document({**document.value, "cluster": {**cluster, **beside}}, {**places, **document.places})


def _assign(document: Document, changes: Sequence[Assignment]) -> Document:
    value, places = document.value, dict(document.places)
    for change in changes:
        name, equals, text = change.text.partition("=")
        source = f"{change.option} {shorten(change.text)}"
        parts = name.strip().split(".")
        if len(parts) > MAX_KEYS:
            raise InputError(f"{source}: leads through {len(parts)} keys; a scenario has fewer in each other")
        if not equals or not all(parts):
            raise InputError(f"{source}: write dotted.key=value, for example stop.max_time='10 min'")
        new = yaml_file.parse_value(text, source)
        value, at = _replace(value, parts, (), new.value, source)
        places = {path: place for path, place in places.items() if path[: len(at)] != at}
        added = (*(at[:end] for end in range(len(at))), *(at + path for path in new.places))
        places = {path: SourceLine(0, source) for path in added} | places
    return Document(value, places)


def _replace(value: Any, parts: Sequence[str], at: KeyPath, new: Any, source: str) -> tuple[Any, KeyPath]:
    """``value`` with ``new`` at the end of ``parts``, and the resolved path."""
    if not parts:
        return new, at
    key = parts[0]
    if isinstance(value, tuple):
        index = _index(key, len(value), f"{source}: {join_keys((*at, key))}")
        inner, path = _replace(value[index], parts[1:], (*at, index), new, source)
        return (*value[:index], inner, *value[index + 1 :]), path
    if value is None:
        value = {}
    elif value == key:
        value = {key: None}
    if not isinstance(value, Mapping):
        hint = f"; {did_you_mean(key, [value])}" if isinstance(value, str) else ""
        raise InputError(
            f"{source}: {join_keys((*at, key))}: {join_keys(at)} is {format_value(value)} and has "
            f"no keys{hint}"
        )
    inner, path = _replace(value.get(key), parts[1:], (*at, key), new, source)
    return {**value, key: inner}, path


def _index(key: str, length: int, where: str) -> int:
    if key.isdecimal() and len(key) <= MAX_INDEX_DIGITS and int(key) < length:
        return int(key)
    entries = f"entries 0 to {length - 1}" if length else "no entries"
    raise InputError(f"{where}: this list has {entries}")


@contextmanager
def name_lines(path: Path, changes: Sequence[Change]) -> Iterator[None]:
    """Add file and line of the key to a ``KeyedError`` of the block; the file is read again for it."""
    try:
        yield
    except KeyedError as error:
        document = apply(yaml_file.parse(yaml_file.read_text(path), str(path)), changes)
        raise InputError(f"{document.place(error.at)}: {error}") from error
