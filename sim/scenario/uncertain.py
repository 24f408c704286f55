"""Ranges in a scenario: where they stand, and the scenario with each at its middle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ..config import yaml_file
from ..config.keys import short_keys
from ..config.problems import KeyPath, join_keys
from ..config.ranges import Range, read_range
from ..config.yaml_file import Document
from ..errors import InputError
from .overrides import Change, apply
from .ready import find_scenario

_NAMES: Final = ("name", "label")
"""Keys of free text."""


def ranges_of(scenario: object, changes: Sequence[Change] = ()) -> dict[str, Range]:
    """Dotted key -> range in a scenario's file, or in its content as a mapping, with ``changes``.

    None in what ``load`` returns: there each is at its middle. Raises as ``load``.
    """
    if isinstance(scenario, str | Path):
        file = find_scenario(Path(scenario))
        document = yaml_file.parse(yaml_file.read_text(file), str(file))
    elif isinstance(scenario, Mapping):
        document = yaml_file.parse(yaml_file.write(scenario), "scenario")
    else:
        return {}
    return {join_keys(at): each for at, each in ranges_in(apply(document, changes)).items()}


def describe_middle(ranges: Mapping[str, Range]) -> str:
    """A line for the user where every range is at its middle."""
    named = (
        f"{name} {each.middle} ({each.text})"
        for name, each in zip(short_keys(list(ranges)), ranges.values(), strict=True)
    )
    return f"at the middle of what is possible: {', '.join(named)}; 'paceline sweep' draws from all of it"


def ranges_in(document: Document) -> dict[KeyPath, Range]:
    """The ranges of a document, by path. ``InputError``: place and key of a wrong one."""
    return dict(_ranges(document, document.value, ()))


def _ranges(document: Document, value: Any, at: KeyPath) -> Iterator[tuple[KeyPath, Range]]:
    if isinstance(value, Mapping | tuple):
        for key, inner in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _ranges(document, inner, (*at, key))
    elif at and at[-1] not in _NAMES:
        try:
            drawn = read_range(value)
        except InputError as error:
            raise InputError(f"{document.place(at)}: {join_keys(at)}: {error}") from None
        if drawn is not None:
            yield at, drawn


def at_middle(document: Document) -> Document:
    """``document`` with every range at its median."""
    value = document.value
    for at, drawn in ranges_in(document).items():
        value = _replaced(value, at, drawn.middle)
    return Document(value, document.places)


def _replaced(value: Any, at: KeyPath, new: Any) -> Any:
    if not at:
        return new
    key, inner = at[0], _replaced(value[at[0]], at[1:], new)
    if isinstance(value, tuple):
        return tuple(inner if place == key else each for place, each in enumerate(value))
    return {**value, key: inner}
