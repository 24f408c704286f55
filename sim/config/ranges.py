"""Ranges and distributions in place of a number or a quantity: their spelling, and values drawn from them.

    10 ms to 40 ms              any value between the two, equally likely
    1 ms to 200 ms              the same for its logarithm, from a factor of ten on
    4 to 16                     any of these whole numbers
    normal 10 ms +- 2 ms        mean and standard deviation
    lognormal 10 ms by factor 2 median; 68 % of all values are within this factor of it

Distributions end three standard deviations from their middle.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Final

from ..errors import InputError, quote
from .units import Format, format_plain, parse_number

DECADE: Final = 10.0
"""Ratio of a range's ends from which on it is drawn from logarithmically."""
_MAX_LETTERS: Final = 100
_TO: Final = re.compile(r"([-+]?\.?\d.*?)(?:\.\.|\s+to\s+)\s*([-+]?\.?\d.*)")
_NORMAL: Final = re.compile(r"normal\s+(\S.*?)\s*\+-\s*(\S.*)")
_LOGNORMAL: Final = re.compile(r"lognormal\s+(\S.*?)\s+by\s+factor\s+(\S+)")
_MOST: Final = 3.0
"""Standard deviations between the middle of a distribution and its ends."""
_DIGITS: Final = 3
_STANDARD: Final = NormalDist()


@dataclass(frozen=True)
class Range:
    """What a scenario says of a value that is not known.

    Attributes:
        text: as written.
        at: the value at a share of 0 to 1 of all possible ones, as a scenario writes it; 0.5: the median.
    """

    text: str
    at: Callable[[float], Any]

    @property
    def middle(self) -> Any:
        """The median."""
        return self.at(0.5)


def read_range(value: object) -> Range | None:
    """Read a range or distribution; None for any other value. ``InputError``: it is a wrong one.

    >>> read_range("0.8 to 1.2 Gbit/s").middle
    '1 Gbit/s'
    >>> read_range("lognormal 10 ms by factor 2").at(0.8413)
    '20 ms'
    """
    if not isinstance(value, str) or len(value) > _MAX_LETTERS:
        return None
    text = value.strip()
    for pattern, read in ((_TO, _between), (_NORMAL, _normal), (_LOGNORMAL, _lognormal)):
        if match := pattern.fullmatch(text):
            try:
                return Range(text, read(match[1].strip(), match[2].strip()))
            except InputError as error:
                raise InputError(f"{quote(text)} is no range: {error}") from None
    if re.match(r"(log)?normal\s+[-+.\d]", text):
        raise InputError(
            f"{quote(text)} is no range: write for example 'normal 10 ms +- 2 ms' or "
            "'lognormal 10 ms by factor 2'"
        )
    return None


def _between(low_text: str, high_text: str) -> Callable[[float], Any]:
    low, high, written = _alike(low_text, high_text)
    if not low < high:
        raise InputError("its lower end comes first; write for example 1 ms to 200 ms")
    if all(isinstance(_plain_number(text), int) for text in (low_text, high_text)):
        return lambda share: min(math.floor(low + share * (high - low + 1)), int(high))
    write = _writer(written, high / (high - low))
    if low > 0 and high >= DECADE * low:
        return lambda share: write(low * (high / low) ** share)
    return lambda share: write(low + share * (high - low))


def _normal(mean_text: str, deviation_text: str) -> Callable[[float], Any]:
    mean, deviation, written = _alike(mean_text, deviation_text)
    if not 0 < _MOST * deviation < mean:
        raise InputError("three deviations reach zero; write for example 'lognormal 10 ms by factor 2'")
    write = _writer(written, mean / deviation)
    return lambda share: write(mean + deviation * _deviations(share))


def _lognormal(median_text: str, factor_text: str) -> Callable[[float], Any]:
    known, factor = parse_number(_plain_number(median_text)), _plain_number(factor_text)
    if known is None or isinstance(factor, str) or known[0] <= 0 or factor <= 1:
        raise InputError("it needs a median above zero and a factor above 1: 'lognormal 10 ms by factor 2'")
    median, write = known[0], _writer(known[1], 1 / (factor - 1))
    return lambda share: write(median * factor ** _deviations(share))


def _deviations(share: float) -> float:
    """Standard deviations from the middle at which a normal distribution has this share below it."""
    least = _STANDARD.cdf(-_MOST)
    return _STANDARD.inv_cdf(min(max(share, least), 1 - least))


def _alike(first: str, second: str) -> tuple[float, float, Format]:
    """Two values of one quantity; the first may leave out the unit of the second."""
    one, two = (parse_number(_plain_number(text)) for text in (first, second))
    if one is not None and two is not None and one[1] is format_plain:
        unit = re.sub(r"^[-+.\deE]+\s*(?=\D|$)", "", second)
        one = parse_number(_plain_number(f"{first} {unit}".strip()))
    if one is None or two is None:
        unknown = first if one is None else second
        raise InputError(f"{quote(unknown)} is no number or quantity; write for example 1 ms to 200 ms")
    if one[1] is not two[1]:
        raise InputError(
            f"{quote(first)} and {quote(second)} are of two kinds; write for example 1 ms to 200 ms"
        )
    return one[0], two[0], one[1]


def _writer(written: Format, narrowness: float) -> Callable[[float], Any]:
    """How drawn values are written: with more digits where a range is narrow."""
    digits = _DIGITS + max(0, int(math.log10(narrowness)))
    if written is format_plain:
        return lambda value: float(f"{value:.{digits + 1}g}")
    return lambda value: written(value, digits)


def _plain_number(text: str) -> int | float | str:
    for read in (int, float):
        with suppress(ValueError):
            return read(text)
    return text
