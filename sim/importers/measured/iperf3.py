"""Output of ``iperf3 -J``: bytes per second of one connection, or of several at once.

What the receivers count is taken; rates of senders include bytes still in buffers.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from json import JSONDecoder
from typing import Any, Final

from ...errors import shorten
from ..readings import ForeignFile, PathReading, Readings

_ALIKE: Final = 0.1
"""Largest relative difference between two directions taken as alike, where ends have no names."""


def read(source: ForeignFile) -> Readings:
    """The median rate of each direction, of the tests in a file. ``InputError``: UDP, or nothing received."""
    tests: dict[bool, list[list[float]]] = {}
    for test in _documents(source):
        for back, rates in _rates(source, test).items():
            tests.setdefault(back, []).append(rates)
    if len({len(rates) for each in tests.values() for rates in each}) != 1:
        raise source.refuse(
            "needs finished tests, all of as many streams; write others to a file of their own"
        )
    total = {back: statistics.median(map(sum, each)) for back, each in tests.items()}
    if source.ends is None and len(total) > 1:
        if abs(total[False] - total[True]) > _ALIKE * max(total.values()):
            raise source.refuse(
                f"carries {_mbit(total[False])} to the server, {_mbit(total[True])} back: name both, the "
                f"client first, as us-eu={source.name}"
            )
        total = {False: min(total.values())}
    paths, notes = [], []
    for back, rate in total.items():
        client, server = source.ends or ("", "")
        start, end = (server, client) if back else (client, server)
        number = len(tests[back][0])
        paths.append(PathReading(start, end, None, None, rate if number > 1 else None, rate / number))
        way = f"{'server to client' if back else 'client to server'}, {_mbit(rate)} received"
        of = f", median of {len(tests[back])} tests" if len(tests[back]) > 1 else ""
        notes.append(
            f"bandwidth: {way} by {number} streams at once, {_mbit(rate / number)} each{of}"
            if number > 1
            else f"bandwidth: {way} by one stream{of}; several may carry more (iperf3 -P 8)"
        )
    notes.append("not used: iperf3's rtt, which is that of a full queue; ping an idle path")
    return Readings(paths=tuple(paths), notes=tuple(notes))


def _mbit(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 125e3:.0f} Mbit/s"


def _documents(source: ForeignFile) -> Iterator[Any]:
    """The tests of a file, one behind the other; those of ``--json-stream`` are put together."""
    text, at, parts = source.text.rstrip(), 0, dict[str, Any]()
    while at < len(text):
        at += len(text[at:]) - len(text[at:].lstrip())
        line = text.count("\n", 0, at) + 1
        if text[at] != "{":
            raise source.refuse("is not JSON here: run iperf3 with -J", line)
        try:
            test, at = JSONDecoder().raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise source.refuse(f"is cut, or no JSON ({error})", getattr(error, "lineno", line)) from None
        if "event" not in test:
            yield test
            continue
        parts[str(test["event"])] = test.get("data")
        if test["event"] in ("end", "error"):
            yield parts
            parts = {}


def _rates(source: ForeignFile, test: dict[str, Any]) -> dict[bool, list[float]]:
    """Bytes per second of each stream, by direction; True: from the server to the client."""
    match test:
        case {"error": error}:
            raise source.refuse(f"is of a test that failed: {shorten(error)}")
        case {
            "start": {"test_start": {"protocol": str(protocol), "num_streams": int(n), **setting}},
            "end": {**end},
        }:
            back = bool(setting.get("reverse"))
        case _:
            raise source.refuse("is no whole test of iperf3: 'test_start' or 'end' is missing")
    if protocol != "TCP":
        raise source.refuse(f"is a test of {protocol}, at a rate that was chosen; test TCP (without -u)")
    rates: dict[bool, list[float]] = {}
    match end:
        case {"streams": [_, *_] as streams}:
            for stream in streams:
                match stream:
                    case {"receiver": {"bits_per_second": float() | int() as rate, **other}} if (
                        0 < rate < 1e18
                    ):
                        rates.setdefault(not other.get("sender", not back), []).append(rate / 8)
                    case _:
                        raise source.refuse(
                            "has a stream of which nothing was received; take the client's JSON"
                        )
        case {"sum_received": {"bits_per_second": float() | int() as rate}} if (
            0 < rate < 1e18 and 0 < n <= 1024
        ):
            rates[back] = [rate / 8 / n] * n
        case _:
            raise source.refuse("says of no bytes that they were received; take the client's JSON")
    return rates
