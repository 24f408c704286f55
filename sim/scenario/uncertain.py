"""Ranges in a scenario: where they stand, and the scenario with each at its middle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ..config import yaml_file
from ..config.problems import KeyPath, join_keys
from ..errors import InputError
from .overrides import Change, apply
from .ranges import Range, read_range
from .ready import find_scenario

_NAMES: Final = ("name", "label")
"""Keys of free text."""


def ranges_of(scenario: object, changes: Sequence[Change] = ()) -> dict[str, Range]:
    """Dotted key -> range in a scenario's file, or in its content as a mapping, with ``changes``.

    None in what ``load`` returns: there each is at its middle. Raises as ``load``.
    """
    ranges: dict[str, Range] = {}
    if isinstance(scenario, str | Path):
        file = find_scenario(Path(scenario))
        at_middle(apply(yaml_file.parse(yaml_file.read_text(file), str(file)), changes), ranges)
    elif isinstance(scenario, Mapping):
        at_middle(apply(yaml_file.parse(yaml_file.write(scenario), "scenario"), changes), ranges)
    return ranges


def at_middle(document: yaml_file.Document, ranges: dict[str, Range] | None = None) -> yaml_file.Document:
    """``document`` with every range at its median; they are added to ``ranges``.

    Raises ``InputError``: place and key of a wrong one.
    """
    collected = {} if ranges is None else ranges
    return yaml_file.Document(_middle(document, document.value, (), collected), document.places)


def _middle(document: yaml_file.Document, value: Any, at: KeyPath, ranges: dict[str, Range]) -> Any:
    if isinstance(value, Mapping):
        return {key: _middle(document, inner, (*at, key), ranges) for key, inner in value.items()}
    if isinstance(value, tuple):
        return tuple(_middle(document, inner, (*at, place), ranges) for place, inner in enumerate(value))
    try:
        drawn = read_range(value) if at and at[-1] not in _NAMES else None
    except InputError as error:
        raise InputError(f"{document.place(at)}: {join_keys(at)}: {error}") from None
    if drawn is None:
        return value
    ranges[join_keys(at)] = drawn
    return drawn.at(0.5)
