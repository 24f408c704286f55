"""Checks of arguments from Python; the command line checks its own options."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from paceline.sim.errors import InputError


def _wrong(name: str, value: object, wanted: str) -> InputError:
    from paceline.sim.config.problems import format_value  # slow to import

    return InputError(f"{name}: must be {wanted}, not {format_value(value)}")


def check_is(name: str, value: object, kinds: type | tuple[type, ...], wanted: str) -> None:
    """Raise ``InputError`` unless ``value`` is of one of these kinds; ``wanted`` describes them."""
    if not isinstance(value, kinds):
        raise _wrong(name, value, wanted)


def read_path(name: str, value: object) -> Path:
    """A path, from text or another path; ``InputError`` for anything else."""
    check_is(name, value, (str, os.PathLike), "the path of a file or folder")
    return Path(value)  # type: ignore[arg-type]


def read_whole(name: str, value: object, least: float = -math.inf) -> int:
    """A whole number from ``least`` on, also one of numpy's; ``InputError`` for anything else."""
    with suppress(TypeError):
        if not isinstance(value, bool) and operator.index(value) >= least:  # type: ignore[arg-type]
            return operator.index(value)  # type: ignore[arg-type]
    start = "" if least < 0 else f" from {least}"
    raise _wrong(name, value, f"a whole number{start}")


def check_changes(changes: object) -> None:
    """Raise ``InputError`` unless these are ``dotted.key=value`` texts in a list."""
    if isinstance(changes, str) or not isinstance(changes, Sequence):
        raise _wrong("changes", changes, "a list, for example ['seed=3']")
    for change in changes:
        check_is("changes", change, str, "texts such as 'seed=3'")


def read_grid(grid: object) -> dict[str, Sequence[Any]]:
    """A grid with lists as values, also from arrays; ``InputError`` unless a mapping with keys of text."""
    from paceline.sim.config.yaml_file import as_plain  # slow to import

    if not isinstance(grid, Mapping):
        raise _wrong("grid", grid, "a mapping of dotted keys to lists")
    for key in grid:
        check_is("grid", key, str, "dotted keys as text")
    return {key: as_plain(values) for key, values in grid.items()}
