"""Settings of a sweep: all combinations of a grid, values that belong together, or draws from ranges."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from ... import seeds
from ...config import yaml_file
from ...config.units import format_plain, parse_number
from ...errors import InputError, quote, shorten
from ...scenario.overrides import Assignment

MAX_SETTINGS: Final = 10_000
"""Settings of one sweep."""
_DECADE: Final = 10.0
"""Ratio of a range's ends from which on it is drawn from logarithmically."""


def read_grid(assignments: Sequence[str]) -> dict[str, Sequence[Any]]:
    """Parse the grid of ``--grid dotted.key=value,value`` options, values in YAML's words.

    >>> read_grid(["cluster.network.latency=1 ms, 20 ms", "cluster.workers=4,8"])
    {'cluster.network.latency': ('1 ms', '20 ms'), 'cluster.workers': (4, 8)}

    Raises:
        InputError: an option is malformed, or a key stands there twice.
    """
    grid: dict[str, Sequence[Any]] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        key, source = key.strip(), f"--grid {shorten(assignment)}"
        if not equals or not key:
            raise InputError(
                f"{source}: write dotted.key=value,value, for example cluster.network.latency='1 ms, 20 ms'"
            )
        if key in grid:
            raise InputError(f"{source}: {shorten(key)} stands in the grid already; list all its values once")
        values = yaml_file.parse_value(f"[[{text}], 0]", source).value
        if len(values) > 2:
            raise InputError(f"{source}: a bracket is closed that was not opened")
        grid[key] = values[0]
    return grid


def settings_of(
    grid: Mapping[str, Sequence[Any]], together: bool = False, sample: int | None = None, seed: int = 0
) -> list[dict[str, Any]]:
    """Settings of a grid: all combinations, the last key's values changing first.

    >>> settings_of({"a": [1, 2], "b": ["x", "y"]})[1]
    {'a': 1, 'b': 'y'}
    >>> settings_of({"a": [1, 2], "b": ["x", "y"]}, together=True)
    [{'a': 1, 'b': 'x'}, {'a': 2, 'b': 'y'}]

    Args:
        together: the first value of every key, then the second of every key, and so on.
        sample: number of settings to draw, each key from a range such as ``1 ms..200 ms`` or from its list.
        seed: of the draws.

    Raises:
        InputError: there are none, too many, or lists of different lengths that belong together.
    """
    for key, values in grid.items():
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise InputError(
                f"grid: {shorten(str(key))}: write a list of values, for example ['1 ms', '10 ms']"
            )
    lengths = [len(values) for values in grid.values()]
    if together and len(set(lengths)) > 1:
        raise InputError(f"grid: the keys have {_listed(lengths)} values; together each needs equally many")
    number = sample if sample is not None else min(lengths) if together else math.prod(lengths)
    if not grid or not 1 <= number <= MAX_SETTINGS:
        raise InputError(
            f"grid: it has {number if grid else 0:,} settings; from 1 to {MAX_SETTINGS:,} are possible"
        )
    if sample is not None:
        return _drawn(grid, sample, seed)
    chosen = zip(*grid.values(), strict=True) if together else itertools.product(*grid.values())
    return [dict(zip(grid, values, strict=True)) for values in chosen]


def _listed(lengths: Sequence[int]) -> str:
    return f"{', '.join(map(str, lengths[:-1]))} and {lengths[-1]}"


def _drawn(grid: Mapping[str, Sequence[Any]], sample: int, seed: int) -> list[dict[str, Any]]:
    """A Latin hypercube over the keys: each key's range, or list, is covered evenly."""
    from scipy.stats import qmc  # slow to import

    rng = int(seeds.generator(seed, seeds.SHARED, "settings").integers(2**62))
    shares = qmc.LatinHypercube(len(grid), rng=rng).random(sample)
    values = {
        key: [_at(share, key, own) for share in column]
        for (key, own), column in zip(grid.items(), shares.T.tolist(), strict=True)
    }
    return [dict(zip(values, each, strict=True)) for each in zip(*values.values(), strict=True)]


def _at(share: float, key: str, values: Sequence[Any]) -> Any:
    """The value at a share of 0 to 1 of a list, or of its only entry, a range."""
    low_text, dots, high_text = str(values[0]).partition("..")
    if len(values) > 1 or not dots:
        return values[int(share * len(values))]
    low, high = (parse_number(_plain_number(text.strip())) for text in (low_text, high_text))
    if low is None or high is None or low[1] is not high[1] or not low[0] < high[0]:
        raise InputError(
            f"grid: {shorten(key)}: {quote(values[0])} is no range; write for example 1 ms..200 ms"
        )
    if all(isinstance(_plain_number(text.strip()), int) for text in (low_text, high_text)):
        return int(low[0] + share * (high[0] - low[0] + 1))
    if low[0] > 0 and high[0] >= _DECADE * low[0]:
        value = low[0] * (high[0] / low[0]) ** share
    else:
        value = low[0] + share * (high[0] - low[0])
    return float(low[1](value)) if low[1] is format_plain else low[1](value)


def _plain_number(text: str) -> int | float | str:
    for read in (int, float):
        with suppress(ValueError):
            return read(text)
    return text


def _plain(value: object) -> Any:
    plain = yaml_file.as_plain(value)
    if plain is value:
        raise TypeError
    return plain


def changes_of(setting: Mapping[str, Any], option: str = "grid") -> list[Assignment]:
    """Convert a setting to ``dotted.key=value`` changes, called values of ``option`` in an ``InputError``."""
    changes = []
    for key, value in setting.items():
        try:
            text = f"{key}={json.dumps(value, allow_nan=False, ensure_ascii=False, default=_plain)}"
            changes.append(Assignment(text, option))
        except (TypeError, ValueError):
            raise InputError(
                f"grid: {shorten(key)}: {shorten(value)} is no value that can stand in a scenario"
            ) from None
    return changes
