"""What a benchmark has to reach, and what it has reached."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Bar:
    """One row of the table of bars, human-readable.

    Attributes:
        what: is measured.
        limit: to be kept, with its unit.
        measured: with its unit.
        met: whether ``measured`` keeps to ``limit``.
        detail: what else was seen; "" for nothing.
    """

    what: str
    limit: str
    measured: str
    met: bool
    detail: str = ""


@dataclass(frozen=True)
class Part:
    """What one benchmark adds to the page: its bars, and Markdown that stands below them."""

    bars: tuple[Bar, ...]
    text: str = ""


def at_least(what: str, limit: float, measured: float, unit: str = "", detail: str = "") -> Bar:
    """A bar that larger figures meet."""
    texts = f"at least {_format(limit, unit)}", _format(measured, unit)
    return Bar(what, *texts, met=measured >= limit, detail=detail)


def at_most(what: str, limit: float, measured: float, unit: str = "", detail: str = "") -> Bar:
    """A bar that smaller figures meet."""
    texts = f"at most {_format(limit, unit)}", _format(measured, unit)
    return Bar(what, *texts, met=measured <= limit, detail=detail)


def _format(value: float, unit: str) -> str:
    digits = 0 if abs(value) >= 100 or value == int(value) else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}{' ' if unit else ''}{unit}"


def print_bars(bars: Iterable[Bar]) -> None:
    """A line each, as soon as they come."""
    for bar in bars:
        verdict = "met" if bar.met else "MISSED"
        detail = f" ({bar.detail})" if bar.detail else ""
        print(f"{bar.what}: {bar.measured}, {bar.limit}: {verdict}{detail}", flush=True)
