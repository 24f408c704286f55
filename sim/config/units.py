"""Quantities with units: text at the edge, SI floats inside.

Scenario files say ``50 ms``, ``25 Gbit/s`` or ``4 MiB``; the program holds seconds, bytes and bytes
per second. Case matters, as it does in the standards: ``Mbit`` is a million bits, ``MB`` a million
bytes, ``MiB`` 2**20 bytes. Spellings that people read in two ways (``Gb/s``, ``KB``) are refused.

The arithmetic is exact and rounds once: ``35 ms`` is the float 0.035.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Annotated, Final, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, WithJsonSchema
from pydantic_core import PydanticCustomError

from ..errors import InputError, did_you_mean, quote
from .limits import MAX_FLOPS_PER_S, MAX_RATE, MAX_STEPS, MAX_TIME_S, MIN_FLOPS_PER_S, MIN_RATE, MIN_TIME_S
from .problems import mistake

_T = TypeVar("_T")
Format = Callable[..., str]
"""Formats a number; a second argument is the number of its digits."""


@dataclass(frozen=True, eq=False)
class _Kind:
    """A quantity.

    Attributes:
        usual: units to choose from.
        sizes: of the units in which it is written, the largest first.
        base: the unit of exact values.
    """

    name: str
    example: str
    usual: tuple[str, ...]
    sizes: Mapping[str, float]
    base: str


_TIME: Final = _Kind(
    "a time", "50 ms", ("us", "ms", "s", "min", "h"),
    {"d": 86400.0, "h": 3600.0, "min": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}, "s",
)  # fmt: skip
_DATA: Final = _Kind(
    "an amount of data", "100 MB", ("B", "kB", "MB", "GB", "KiB", "MiB", "GiB"),
    {"TB": 1e12, "GB": 1e9, "MB": 1e6, "kB": 1e3, "B": 1.0}, "B",
)  # fmt: skip
_RATE: Final = _Kind(
    "a data rate", "1 Gbit/s", ("kbit/s", "Mbit/s", "Gbit/s", "MB/s", "GB/s"),
    {"Tbit/s": 125e9, "Gbit/s": 125e6, "Mbit/s": 125e3, "kbit/s": 125.0, "bit/s": 0.125}, "B/s",
)  # fmt: skip
_SPEED: Final = _Kind(
    "a computing speed", "10 Tflop/s", ("Gflop/s", "Tflop/s", "Pflop/s"),
    {"Pflop/s": 1e15, "Tflop/s": 1e12, "Gflop/s": 1e9, "flop/s": 1.0}, "flop/s",
)  # fmt: skip
_OPERATIONS: Final = _Kind("a number of operations", "", (), {}, "")

_PREFIXES: Final = {
    "k": ("kilo", 10**3),
    "M": ("mega", 10**6),
    "G": ("giga", 10**9),
    "T": ("tera", 10**12),
    "Ki": ("kibi", 2**10),
    "Mi": ("mebi", 2**20),
    "Gi": ("gibi", 2**30),
    "Ti": ("tebi", 2**40),
}
_FLOPS: Final = {"": ("", 1), "G": ("giga", 10**9), "T": ("tera", 10**12), "P": ("peta", 10**15)}
_TIMES: Final = {
    "ns": ("nanosecond", Fraction(1, 10**9)),
    "us": ("microsecond", Fraction(1, 10**6)),
    "ms": ("millisecond", Fraction(1, 10**3)),
    "s": ("second", Fraction(1)),
    "min": ("minute", Fraction(60)),
    "h": ("hour", Fraction(3600)),
    "d": ("day", Fraction(86_400)),
}
_ALL_PREFIXES: Final = {"": ("", 1), **_PREFIXES}
_SIZES: Final = {
    **{short: (size, _TIME) for short, (_, size) in _TIMES.items()},
    **{micro: (Fraction(1, 10**6), _TIME) for micro in ("µs", "μs")},
    **{f"{short}B": (Fraction(factor), _DATA) for short, (_, factor) in _ALL_PREFIXES.items()},
    **{f"{short}bit": (Fraction(factor, 8), _DATA) for short, (_, factor) in _ALL_PREFIXES.items()},
    **{f"{short}flop": (Fraction(factor), _OPERATIONS) for short, (_, factor) in _FLOPS.items()},
}
"""Unit symbols: size in SI, and quantity."""
_NAMES: Final = {
    **{long: short for short, (long, _) in _TIMES.items()},
    **{f"{long}byte": f"{short}B" for short, (long, _) in _ALL_PREFIXES.items()},
    **{f"{long}bit": f"{short}bit" for short, (long, _) in _ALL_PREFIXES.items()},
    **{f"{long}flop": f"{short}flop" for short, (long, _) in _FLOPS.items()},
    **{symbol: symbol for symbol in _SIZES if symbol.endswith(("bit", "flop"))},
}
"""Units in words, of which the symbol is suggested; also with an s at the end."""
_MAX_LETTERS: Final = 100
"""Letters of a quantity; longer ones would keep the patterns below busy for hours."""
_QUANTITY: Final = re.compile(r"([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)\s*(.*)")
_UNIT: Final = re.compile(r"([A-Za-zµμ]+)(?:\s*(/|\sper\s)\s*([A-Za-zµμ]+))?")
_NOT_FINITE: Final = re.compile(r"[-+]?\.?(nan|inf|infinity|∞)\b.*", re.IGNORECASE)
_BITS_OR_BYTES: Final = re.compile(r"([kKMGT]i?)?(?:b|b/s|[bB]ps)")


def _unit(text: str) -> tuple[Fraction, _Kind | None, str]:
    """Size of a unit in SI, quantity (None: another one) and symbol; ``KeyError``: there is no such unit."""
    match = _UNIT.fullmatch(text)
    if not match:
        raise KeyError(text)
    words = [word for word in (match[1], match[3]) if word]
    symbols = [word if word in _SIZES else _NAMES[word.removesuffix("s")] for word in words]
    (size, kind), *divisor = (_SIZES[symbol] for symbol in symbols)
    quantity: _Kind | None = None if kind is _OPERATIONS else kind
    if divisor:
        by, what = divisor[0]
        quantity = {_DATA: _RATE, _OPERATIONS: _SPEED}.get(kind) if what is _TIME else None
        size /= by
    return size, quantity, "/".join(symbols)


def _unknown(unit: str, kind: _Kind) -> str:
    if match := _BITS_OR_BYTES.fullmatch(unit):
        prefix = (match[1] or "").replace("K", "k").replace("ki", "Ki")
        rate = "/s" if unit.endswith("s") else ""
        return f"may mean bits or bytes; write '{prefix}bit{rate}' or '{prefix}B{rate}'"
    if unit.startswith(("KB", "Kbit")):
        return f"may mean 1000 or 1024; write 'k{unit[1:]}' or 'Ki{unit[1:]}'"
    symbols = [f"{prefix}{symbol}" for symbol in ("B", "bit") for prefix in ("", *_PREFIXES)]
    every = [*_TIME.usual, *_SPEED.usual, *symbols, *(f"{symbol}/s" for symbol in symbols)]
    same = [known for known in every if known.lower() == unit.lower()]
    hint = f"did you mean '{same[0]}'?" if len(same) == 1 else did_you_mean(unit, kind.usual)
    return f"has an unknown unit {quote(unit)}; {hint}"


def _take_apart(text: str, kind: _Kind, hint: str) -> tuple[str, Fraction]:
    """The number of a quantity, and its unit in SI."""
    if _NOT_FINITE.fullmatch(text):
        raise InputError(f"{quote(text)} is not a finite number; {hint}")
    match = _QUANTITY.fullmatch(text) if len(text) <= _MAX_LETTERS else None
    if not match or (match[2] and not match[2][0].isalpha()):
        raise InputError(f"{quote(text)} is not a number with a unit; {hint}")
    number, unit = match[1], match[2]
    if not unit:
        own = kind.example.split()[1]
        raise InputError(f"{quote(text)} has no unit; write for example '{number.lstrip('+-')} {own}'")
    try:
        factor, quantity, symbol = _unit(unit)
    except KeyError:
        raise InputError(f"{quote(text)} {_unknown(unit, kind)}") from None
    if quantity is not kind:
        raise InputError(
            f"{quote(text)} is {quantity.name if quantity else 'something else'}, not {kind.name}; {hint}"
        )
    if symbol != re.sub(r"\s", "", unit):
        raise InputError(f"{quote(text)} has its unit in words; write '{number.lstrip('+-')} {symbol}'")
    return number, factor


def _parse(value: object, kind: _Kind) -> float:
    hint = f"write for example '{kind.example}'"
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InputError(f"must be {kind.name} with its unit; {hint}")
    text = str(value).strip()
    number, factor = _take_apart(text, kind, hint)
    if float(number) == 0.0:  # before Fraction, which would write out an exponent of a billion
        if re.match(r"[-+0.]*[1-9]", number):
            raise InputError(f"{quote(text)} is too small")
        return 0.0
    if number.startswith("-"):
        raise InputError(f"{quote(text)} is negative; {hint}")
    if math.isfinite(float(number)):
        try:
            return float(Fraction(number) * factor)
        except OverflowError:
            pass
    raise InputError(f"{quote(text)} is too large")


def parse_seconds(value: object) -> float:
    """Parse ``50 ms`` to seconds. ``InputError``: no unit, another kind of unit, negative or not finite."""
    return _parse(value, _TIME)


def parse_bytes(value: object) -> float:
    """Parse an amount of data such as ``4 MiB``, a whole number of bytes; raises as ``parse_seconds``."""
    result = _parse(value, _DATA)
    if not result.is_integer():
        raise InputError(f"{quote(value)} is not a whole number of bytes; write for example '100 MB'")
    return result


def parse_rate(value: object) -> float:
    """Parse a data rate such as ``25 Gbit/s`` to bytes per second; raises as ``parse_seconds``."""
    return _parse(value, _RATE)


def parse_duration(value: object) -> float:
    """Parse a time within the limits of ``paceline.sim.config.limits``, or 0; raises as ``parse_seconds``."""
    seconds = parse_seconds(value)
    if seconds != 0 and not MIN_TIME_S <= seconds <= MAX_TIME_S:
        raise InputError(f"{quote(value)} must be 0 s, or from {MIN_TIME_S:g} s to {MAX_TIME_S:g} s")
    return seconds


def parse_bandwidth(value: object) -> float:
    """Parse a link's bandwidth to bytes per second, at least 1 bit/s; raises as ``parse_rate``."""
    rate = parse_rate(value)
    if not MIN_RATE <= rate <= MAX_RATE:
        raise InputError(f"{quote(value)} must be from 1 bit/s to {MAX_RATE:g} B/s")
    return rate


def parse_speed(value: object) -> float:
    """Parse ``10 Tflop/s`` to flop/s. ``InputError``: as ``parse_seconds``, too small or too large."""
    speed = _parse(value, _SPEED)
    if not MIN_FLOPS_PER_S <= speed <= MAX_FLOPS_PER_S:
        raise InputError(f"{quote(value)} must be from 1 flop/s to {MAX_FLOPS_PER_S:g} flop/s")
    return speed


def _format(kind: _Kind, value: float, digits: int = 3) -> str:
    """``value`` in the largest unit that it fills at least once."""
    if not math.isfinite(value):
        return "unlimited" if value > 0 else str(value)
    smallest = list(kind.sizes)[-1]
    if not value:
        return f"0 {kind.base if kind.base in kind.sizes else smallest}"
    # Compare the rounded value: to three digits 999.9 ms is 1 s.
    filled = (u for u, size in kind.sizes.items() if float(f"{abs(value) / size:.{digits}g}") >= 1.0)
    unit = next(filled, smallest)
    rounded = float(f"{value / kind.sizes[unit]:.{digits}g}")  # without an exponent where it has few zeros
    form = ".0f" if rounded.is_integer() and abs(rounded) < 1e6 else f".{digits}g"
    return f"{rounded:{form}} {unit}"


format_seconds: Final = partial(_format, _TIME)
"""Format a time: ``format_seconds(0.05)`` is ``50 ms``."""
format_bytes: Final = partial(_format, _DATA)
"""Format an amount of data: ``format_bytes(2e7)`` is ``20 MB``."""
format_rate: Final = partial(_format, _RATE)
"""Format a data rate: ``format_rate(125e6)`` is ``1 Gbit/s``."""
format_speed: Final = partial(_format, _SPEED)
"""Format a computing speed: ``format_speed(1e13)`` is ``10 Tflop/s``."""


def format_plain(value: float, digits: int = 4) -> str:
    """Format a number without a unit."""
    return f"{value:.{digits}g}"


def parse_number(value: object) -> tuple[float, Format] | None:
    """A number, or a quantity in SI, and the function that formats it; None for everything else.

    >>> number, formatted = parse_number("20 ms")
    >>> number, formatted(0.03)
    (0.02, '30 ms')
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value), format_plain
    kinds = ((_TIME, format_seconds), (_RATE, format_rate), (_DATA, format_bytes), (_SPEED, format_speed))
    for kind, written in kinds:
        with suppress(InputError):
            return _parse(value, kind), written
    return None


def read_numbers(values: Sequence[object]) -> tuple[list[float], Format] | None:
    """``parse_number`` of each; None unless all are numbers, or quantities of one kind."""
    known = [number for number in map(parse_number, values) if number is not None]
    alike = len(known) == len(values) and len({written for _, written in known}) == 1
    return ([number for number, _ in known], known[0][1]) if alike else None


def reader(parse: Callable[[object], _T]) -> BeforeValidator:
    """A validator that reads by ``parse``, whose ``InputError`` becomes a mistake."""

    def read(value: object) -> _T:
        try:
            return parse(value)
        except InputError as error:
            raise PydanticCustomError("quantity", "{message}", {"message": str(error)}) from None

    return BeforeValidator(read)


def _field(kind: _Kind, parse: Callable[[object], float]) -> tuple[object, ...]:
    """Metadata of a field: text that parses to exactly the same float, short where possible."""

    def write(value: float) -> str:
        short = _format(kind, value, 6)
        return short if _parse(short, kind) == value else f"{value!r} {kind.base}"

    described = {"type": "string", "description": f"{kind.name}, with its unit", "examples": [kind.example]}
    return reader(parse), PlainSerializer(write, when_used="json-unless-none"), WithJsonSchema(described)


BoundedSeconds = Annotated[float, *_field(_TIME, parse_duration)]
"""Field written as ``50 ms``, held in seconds, within the limits of a duration."""

Bytes = Annotated[float, *_field(_DATA, parse_bytes)]
"""Field written as ``100 MB``, held in bytes."""

BytesPerSecond = Annotated[float, *_field(_RATE, parse_rate)]
"""Field written as ``1 Gbit/s``, held in bytes per second."""


def check_rate(value: float) -> float:
    """Check the bytes per second: too few of them are a mistake."""
    if value < MIN_RATE:
        raise mistake(f"must be at least 1 bit/s, not {value:g} B/s")
    return value


Rate = Annotated[BytesPerSecond, Field(gt=0, le=MAX_RATE), AfterValidator(check_rate)]
"""``BytesPerSecond`` within limits, for links."""

FlopsPerSecond = Annotated[float, *_field(_SPEED, parse_speed)]
"""Field written as ``10 Tflop/s``, held in floating-point operations per second."""

_STEPS: Final = re.compile(r"([0-9]{1,15}) +steps?")


def parse_steps(value: object) -> int:
    """Parse a number of steps such as ``10 steps``; anything else raises ``InputError``."""
    if isinstance(value, int) and not isinstance(value, bool):
        raise InputError(f"{quote(value)} has no unit; write for example '{max(value, 1)} steps'")
    match = _STEPS.fullmatch(value.strip()) if isinstance(value, str) else None
    if not match:
        other = f", not the text {quote(value)}" if isinstance(value, str) else ""
        raise InputError(f"must be a number of steps such as '10 steps'{other}")
    if int(match[1]) > MAX_STEPS:
        raise InputError(f"{quote(value)} is too large; the most is {MAX_STEPS} steps")
    return int(match[1])


Steps = Annotated[
    int,
    reader(parse_steps),
    PlainSerializer(lambda n: f"{n} steps", return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "pattern": "^[0-9]+ +steps?$", "examples": ["10 steps"]}),
]
"""Field written as ``10 steps``, held as a number."""
