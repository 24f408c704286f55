"""Output of ``iperf3 -J``: bytes per second of one connection, or of several at once.

What the receivers count is taken; rates of senders include bytes still in buffers.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from json import JSONDecoder
from typing import Any, Final

from paceline.extras.importers.readings import ForeignFile, PathReading, Readings
from paceline.sim.compute.traces import is_time
from paceline.sim.config.units import format_bytes
from paceline.sim.errors import shorten

_ALIKE: Final = 0.9
"""Least ratio of rates that are taken as alike: of two directions without names, of a result and a limit."""


def read(source: ForeignFile) -> Readings:
    """The median rate of each direction, of the tests in a file. ``InputError``: UDP, or nothing received."""
    tests: dict[bool, list[list[float]]] = {}
    limits: dict[str, None] = {}
    for test in _documents(source):
        for back, streams in _rates(source, test).items():
            tests.setdefault(back, []).append(streams)
            limits |= dict.fromkeys(_limits(test["start"], max(streams)))
    if len(numbers := {len(rates) for each in tests.values() for rates in each}) != 1:
        raise source.refuse("needs tests, all of as many streams; write others to a file of their own")
    number, total = numbers.pop(), {back: statistics.median(map(sum, each)) for back, each in tests.items()}
    if not any(source.ends) and len(total) > 1:
        if min(total.values()) < _ALIKE * max(total.values()):
            rates = f"{_mbit(total[False])} there, {_mbit(total[True])} back"
            raise source.refuse(f"carries {rates}: name both ends, as us-eu={source.name}")
        total = {False: min(total.values())}
    many = f"{number} streams at once; each is taken as limited to its part, unless one alone is imported too"
    by = many if number > 1 else "one stream; several may carry more (iperf3 -P 8)"
    paths, notes = [], ["not used: iperf3's rtt, of a full queue; ping an idle path"]
    for back, rate in total.items():
        ends = source.ends[::-1] if back else source.ends
        paths.append(PathReading(*ends, None, None, rate if number > 1 else None, rate / number))
        of = f"; the median of {len(tests[back])} tests" if len(tests[back]) > 1 else ""
        notes.insert(-1, f"bandwidth: {_mbit(rate)} received {'from' if back else 'by'} the server, {by}{of}")
    if limits:
        notes.insert(0, f"limited by the test itself ({', '.join(limits)}): the path may carry more")
    return Readings(paths=tuple(paths), notes=tuple(notes))


def _limits(start: Any, rate: float) -> Iterator[str]:
    """Options of a test, by its ``start``, that may have kept the fastest stream from more."""
    settings = start | start["test_start"]
    for option, *keys in (("-b", "target_bitrate"), ("--fq-rate", "fqrate", "fq_rate")):
        limit = max((settings[key] for key in keys if is_time(settings.get(key))), default=0)
        if limit > 0 and rate >= _ALIKE * limit / 8:
            yield f"{option} {_mbit(limit / 8)}"
    if is_time(settings.get("sock_bufsize")) and settings["sock_bufsize"] > 0:
        yield f"-w {format_bytes(settings['sock_bufsize'])}"


def _mbit(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 125e3:.0f} Mbit/s"


def _documents(source: ForeignFile) -> Iterator[Any]:
    """The tests of a file, one behind the other."""
    text, at = source.text.rstrip(), 0
    while at < len(text):
        at = len(text) - len(text[at:].lstrip())
        try:
            test, at = JSONDecoder().raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            line = getattr(error, "lineno", text.count("\n", 0, at) + 1)
            raise source.refuse(f"is no whole JSON of 'iperf3 -J': {error}", line) from None
        yield test


def _rates(source: ForeignFile, test: Any) -> dict[bool, list[float]]:
    """Bytes per second of each stream, by direction; True: from the server to the client."""
    match test:
        case {"error": error}:
            raise source.refuse(f"is of a test that failed: {shorten(error)}")
        case {
            "start": {"test_start": {"protocol": "TCP", "num_streams": int(n), **setting}},
            "end": {**end},
        } if (setting.get("reverse") or 0) in (0, 1):
            backwards = bool(setting.get("reverse"))
        case {"start": {"test_start": {"protocol": str(protocol)}}} if protocol != "TCP":
            raise source.refuse(f"is a test of {shorten(protocol)}, not of TCP; run iperf3 without -u")
        case _:
            raise source.refuse("is no whole test of iperf3: see 'test_start' (num_streams, reverse), 'end'")
    rates: dict[bool, list[float]] = {}
    streams = isinstance(listed := end.get("streams"), list) and listed
    if streams and len(streams) not in (n, 2 * n):  # --bidir
        raise source.refuse(f"has {len(streams)} of {shorten(n)} streams; give all of the test")
    for stream in streams or [{"receiver": end.get("sum_received")}]:
        match stream:
            case {"receiver": {"bits_per_second": rate, **other}} if (
                is_time(rate) and 0 < rate < 1e18 and (other.get("sender") or 0) in (0, 1)
            ):
                back = backwards if not streams else not other.get("sender", not backwards)
                rates.setdefault(back, []).append(rate / 8)
            case _:
                raise source.refuse(
                    "says of no bytes that they were received, or by whom; take the client's JSON"
                )
    if not streams and 0 < n <= 1024:
        rates = {backwards: [rates[backwards][0] / n] * n}
    return rates
