"""Durations of steps from files: CSV, and JSON traces of torch's profiler."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ..config.csv_tables import read_table
from ..config.files import parse_json
from ..config.limits import MAX_TIME_S, MIN_TIME_S
from ..config.units import parse_duration
from ..config.yaml_file import read_text
from ..errors import InputError, did_you_mean, quote, shorten

MAX_DURATIONS: Final = 4096
"""Most durations kept: of a longer file every k-th."""
MAX_TRACE_BYTES: Final = 256 * 2**20

_NUMBERED: Final = re.compile(r"#[0-9]+$")
_HOST: Final = ("user_annotation", "cpu_op", "Operator")
"""Categories of events on the host (the last until torch 1.10); a GPU's trace may repeat an annotation."""


def read_durations(path: Path, column: str | None, event: str) -> list[float]:
    """Seconds of each step in a file, in order, at most ``MAX_DURATIONS`` of them.

    Of a profiler's trace (``*.json``) those of ``event``: ``ProfilerStep`` stands for ``ProfilerStep#7`` too;
    of a CSV file ``column``, None: the only one. Raises ``InputError`` for an unreadable file, nothing of
    that name, or a duration that is not above zero.
    """
    if path.suffix.lower() == ".json":
        events = trace_events(path, read_text(path, MAX_TRACE_BYTES, foreign=True))
        return thin_out(durations_of(path, events, event))
    return thin_out(read_table(path).values(column, _above_zero))


def _above_zero(value: object) -> float:
    seconds = parse_duration(value)
    if seconds == 0:
        raise InputError(f"{quote(value)} must be more than 0")
    return seconds


def thin_out(seconds: list[float]) -> list[float]:
    """At most ``MAX_DURATIONS`` of them, every k-th."""
    return seconds[:: -(-len(seconds) // MAX_DURATIONS)]


def trace_events(name: str | Path, text: str) -> list[Any]:
    """Events of a profiler's trace (Chrome's trace format); ``InputError`` names the file."""
    try:
        document = parse_json(text)
    except ValueError as error:
        raise InputError(f"{name}: not valid JSON: {error}") from None
    events = document.get("traceEvents") if isinstance(document, Mapping) else document
    if not isinstance(events, list):
        raise InputError(f"{name}: is no profiler's trace: it has no list 'traceEvents'")
    return events


def durations_of(name: str | Path, events: Sequence[Any], event: str) -> list[float]:
    """Seconds of the complete events ("ph": "X", in microseconds) called ``event``; raises as its callers."""
    durations: dict[str, list[Any]] = {}
    for each in events:
        if _complete(each):
            durations.setdefault(_NUMBERED.sub("", each["name"]), []).append(each.get("dur"))
    if event not in durations:
        hint = did_you_mean(event, durations) if durations else "it has no complete events of the host"
        raise InputError(f"{name}: has no event {quote(event)}; {hint[:300]}")
    for number, value in enumerate(durations[event]):
        if not (is_time(value) and MIN_TIME_S <= value / 1e6 <= MAX_TIME_S):
            raise InputError(
                f"{name}: the duration of {quote(event)} number {number} is {shorten(value)} us; it must be "
                f"from {1e6 * MIN_TIME_S:g} us to {1e6 * MAX_TIME_S:g} us"
            )
    return [value / 1e6 for value in durations[event]]


def _complete(each: Any) -> bool:
    return (
        isinstance(each, Mapping)
        and each.get("ph") == "X"
        and each.get("cat", _HOST[0]) in _HOST
        and isinstance(each.get("name"), str)
    )


def is_time(value: object) -> bool:
    """Whether a value of a trace is a number that a float can hold."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
