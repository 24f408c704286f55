"""Ranges and distributions in place of a number or quantity: their spelling, and values drawn from them.

    10 ms to 40 ms               any value between the two; 10 ms..40 ms is the same
    1 ms to 200 ms               from a factor of ten on, any logarithm between the two
    4 to 16                      any of these whole numbers
    normal 10 ms +- 2 ms         mean and standard deviation
    lognormal 10 ms by factor 2  median; 68 % of all values are within this factor of it

Distributions end three standard deviations from their middle.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any, Final

from ..config import yaml_file
from ..config.problems import KeyPath, join_keys
from ..config.units import format_plain, parse_number
from ..errors import InputError, quote
from .overrides import Change, apply
from .ready import find_scenario

_DECADE: Final = 10.0
_MAX_LETTERS: Final = 100
_MOST: Final = 3.0
"""Standard deviations between the middle of a distribution and its ends."""
_MOST_FACTOR: Final = 1e6
_DIGITS: Final = 3
"""Digits of a drawn value; more where the range is narrow."""
_STANDARD: Final = NormalDist()
_FORM: Final = re.compile(
    r"((?:log)?normal\s+)?([-+]?\.?\d.*?)\s*(\.\.|\sto\s|\+-|\sby\s+factor\s)\s*([-+]?\.?\d.*)"
)
_AMOUNT: Final = re.compile(r"[-+.\d]+(?:[eE][-+]?\d+)?")
_RULES: Final = {
    ("", "to"): "two ends of one kind, the lower one first: 1 ms to 200 ms",
    ("normal", "+-"): "a mean above three deviations: normal 10 ms +- 2 ms",
    (
        "lognormal",
        "by factor",
    ): "a median above zero and a factor above 1, at most 1e6: lognormal 10 ms by factor 2",
}


@dataclass(frozen=True)
class Range:
    """An unknown value; ``at``: its value at a share (0 to 1; 0.5: the median) of all possible ones."""

    text: str
    at: Callable[[float], Any]


def read_range(value: object) -> Range | None:
    """Read a range or distribution; None for any other value. ``InputError``: it is a wrong one.

    >>> read_range("0.8 to 1.2 Gbit/s").at(0.5)
    '1 Gbit/s'
    """
    match = _FORM.fullmatch(value.strip()) if isinstance(value, str) and len(value) <= _MAX_LETTERS else None
    if match is None:
        return None
    kind, joined = (match[1] or "").strip(), " ".join(match[3].replace("..", "to").split())
    at = _law(kind, match[2], match[4]) if (kind, joined) in _RULES else None
    if at is None:
        rule = _RULES.get((kind, joined), _RULES["", "to"])
        raise InputError(f"{quote(match[0])} is no range; write {rule}")
    return Range(match[0], at)


def _law(kind: str, first: str, second: str) -> Callable[[float], Any] | None:
    """The values of a range by their share; None where its ends do not fit."""
    whole = all(isinstance(_number(text), int) for text in (first, second))
    if kind != "lognormal" and not isinstance(_number(first), str):
        first = _AMOUNT.sub(first, second, count=1)  # with the unit of the other end
    one, two = parse_number(_number(first)), parse_number(_number(second))
    if one is None or two is None or two[1] is not (format_plain if kind == "lognormal" else one[1]):
        return None
    (low, written), high = one, two[0]
    value: Callable[[float], float]
    if kind == "normal" and 0 < _MOST * high < low:
        spread, value = high / low, lambda share: low + high * _deviations(share)
    elif kind == "lognormal" and low > 0 and 1 < high <= _MOST_FACTOR:
        spread, value = high - 1, lambda share: low * high ** _deviations(share)
    elif kind or not low < high:
        return None
    elif whole:
        return lambda share: min(math.floor(low + share * (high - low + 1)), int(high))
    elif 0 < _DECADE * low <= high:
        spread, value = 1.0, lambda share: low * (high / low) ** share
    else:
        spread = (high - low) / max(abs(low), abs(high))
        value = lambda share: low + share * (high - low)  # noqa: E731
    digits = _DIGITS + max(0, int(-math.log10(spread)))
    if written is format_plain:
        return lambda share: float(written(value(share), digits + 1))
    return lambda share: written(value(share), digits)


def _deviations(share: float) -> float:
    """Standard deviations from the middle at which a normal distribution has this share below it."""
    least = _STANDARD.cdf(-_MOST)
    return _STANDARD.inv_cdf(min(max(share, least), 1 - least))


def _number(text: str) -> int | float | str:
    for read in (int, float):
        with suppress(ValueError):
            return read(text)
    return text


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
