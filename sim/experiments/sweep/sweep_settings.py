"""Settings of a sweep: all combinations of a grid, values that belong together, or draws from ranges."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from ... import seeds
from ...config import yaml_file
from ...errors import InputError, shorten
from ...scenario.overrides import Assignment
from ...scenario.ranges import Range, read_range

MAX_SETTINGS: Final = 10_000
"""Settings of one sweep."""
NO_EVENTS: Final = "events=none"
"""Change for draws: half of their time would go into events that nobody reads."""
USUAL_DRAWS: Final = 256
"""Settings drawn from the ranges of a scenario, unless ``--sample`` says how many."""


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


def with_ranges(
    grid: Mapping[str, Sequence[Any]], ranges: Mapping[str, Range], sample: int | None
) -> tuple[Mapping[str, Sequence[Any]], int | None]:
    """A grid with the ranges of a scenario, and the number of draws; without ``sample`` a grid stays alone.

    ``InputError``: nothing varies.
    """
    for number, key in enumerate(grid):
        if any(other.startswith(f"{key}.") for other in list(grid)[:number]):
            raise InputError(f"grid: {shorten(key)} replaces a key before it; name it first")
    if grid and sample is None:
        return grid, None
    if not grid and not ranges:
        write = "'latency: 10 ms to 40 ms' in the scenario"
        raise InputError(f"nothing varies: add --grid dotted.key=value,value, or write for example {write}")
    drawn = {key: [each.text] for key, each in ranges.items()}
    return {**drawn, **grid}, USUAL_DRAWS if sample is None else sample


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
    if together and sample is not None:
        raise InputError(
            "sample: each key is drawn by itself, and --zip keeps values together; leave one of the two out"
        )
    lengths = [len(values) for values in grid.values()]
    if together and len(set(lengths)) > 1:
        numbers = " and ".join(", ".join(map(str, lengths)).rsplit(", ", 1))
        raise InputError(f"grid: the keys have {numbers} values; together each needs equally many")
    number = sample if sample is not None else min(lengths) if together else math.prod(lengths)
    if not grid or not 1 <= number <= MAX_SETTINGS:
        raise InputError(
            f"{'grid' if sample is None else 'sample'}: it has {number if grid else 0:,} settings; from 1 to "
            f"{MAX_SETTINGS:,} are possible"
        )
    if sample is not None:
        return _drawn(grid, sample, seed)
    if ranges := [key for key, values in grid.items() if _range_of(key, values) is not None]:
        raise InputError(
            f"grid: {shorten(ranges[0])}: is a range; say how many draws: --sample {USUAL_DRAWS}"
        )
    chosen = zip(*grid.values(), strict=True) if together else itertools.product(*grid.values())
    return [dict(zip(grid, values, strict=True)) for values in chosen]


def plan_settings(
    values: Mapping[str, Sequence[Any]], together: bool, sample: int | None, seed_of: Callable[[], int]
) -> tuple[list[dict[str, Any]], list[str], Mapping[str, Sequence[Any]] | None]:
    """Settings by the result of ``with_ranges``, changes for all, and what values were drawn from, if so.

    ``seed_of``: the scenario's seed, for draws. Raises as ``settings_of``.
    """
    if sample is None:
        return settings_of(values, together), [], None
    return settings_of(values, together, sample, seed_of()), [NO_EVENTS], values


def _drawn(grid: Mapping[str, Sequence[Any]], sample: int, seed: int) -> list[dict[str, Any]]:
    """A Latin hypercube over the keys: each key's range, or list, is covered evenly."""
    from scipy.stats import qmc  # slow to import

    rng = int(seeds.generator(seed, seeds.SHARED, "settings").integers(2**62))
    shares = qmc.LatinHypercube(len(grid), rng=rng).random(sample)
    values = {
        key: list(map(_values_of(key, own), column))
        for (key, own), column in zip(grid.items(), shares.T.tolist(), strict=True)
    }
    return [dict(zip(values, each, strict=True)) for each in zip(*values.values(), strict=True)]


def _values_of(key: str, values: Sequence[Any]) -> Callable[[float], Any]:
    """The value at a share of 0 to 1 of a list, or of its only entry, a range."""
    drawn = _range_of(key, values)
    return (lambda share: values[int(share * len(values))]) if drawn is None else drawn.at


def _range_of(key: str, values: Sequence[Any]) -> Range | None:
    try:
        return read_range(values[0]) if len(values) == 1 else None
    except InputError as error:
        raise InputError(f"grid: {shorten(key)}: {error}") from None


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
