"""Output of ``iperf3 -J``: bytes per second of one connection, or of several at once.

What the receivers count is taken; rates of senders include bytes still in buffers.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from json import JSONDecoder
from typing import Any, Final

from ..readings import ForeignFile, PathReading, Readings

_MOST_DIFFERENT: Final = 0.1
"""Of the rates of two directions between ends without names, which are taken as alike."""


def read(source: ForeignFile) -> Readings:
    """The median rate of each direction, of the tests in a file. ``InputError``: UDP, or nothing received."""
    tests: dict[bool, list[tuple[int, float]]] = {}
    for test in _documents(source):
        for back, rates in _rates(source, test).items():
            tests.setdefault(back, []).append((len(rates), sum(rates)))
    if not tests:
        raise source.refuse("has no finished test: it has no 'end'")
    if source.ends is None and len(tests) > 1:
        there, back = (statistics.median(rate for _, rate in tests[way]) for way in (False, True))
        if abs(there - back) > _MOST_DIFFERENT * max(there, back):
            raise source.refuse(
                f"carries {_mbit(there)} to the server and {_mbit(back)} back: name the client and the server, "
                f"for example us-eu={source.name}"
            )
        tests = {False: min(tests.values(), key=lambda each: statistics.median(rate for _, rate in each))}
    paths, notes = [], []
    for back, each in tests.items():
        start, end = (source.ends or ("", ""))[:: -1 if back else 1]
        streams = {number for number, _ in each}
        if len(streams) > 1:
            few, many = sorted(streams)[:2]
            raise source.refuse(f"has tests of {few} and of {many} streams; write each to a file of its own")
        (number,), rate = streams, statistics.median(rate for _, rate in each)
        whole = rate if number > 1 else None
        paths.append(PathReading(start, end, bandwidth_bytes_per_s=whole, per_flow_bytes_per_s=rate / number))
        way = " from the server to the client" if back else ""
        of = f"median of {len(each)} tests, " if len(each) > 1 else ""
        notes.append(
            f"bandwidth: {of}{_mbit(rate)} received by {number} streams at once{way}, {_mbit(rate / number)} each"
            if number > 1
            else f"bandwidth: {of}{_mbit(rate)} received by one stream{way}; several may carry more (-P 8)"
        )
    notes.append("not used: iperf3's rtt, which is that of a full queue; ping an idle path")
    return Readings(paths=tuple(paths), notes=tuple(notes))


def _mbit(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 125e3:.4g} Mbit/s"


def _documents(source: ForeignFile) -> Iterator[dict[str, Any]]:
    """The tests of a file, one behind the other; those of ``--json-stream`` are put together."""
    text, at, parts = source.text, 0, dict[str, Any]()
    if "{" not in text[: text.find("\n") + 1 or None] and not text.lstrip().startswith("{"):
        raise source.refuse("is the text of iperf3 for people; run it with -J")
    while rest := text[at:].lstrip():
        at = len(text) - len(rest)
        line = text.count("\n", 0, at) + 1
        try:
            test, at = JSONDecoder().raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            line = getattr(error, "lineno", line)
            raise source.refuse(
                f"is cut or is no JSON: {getattr(error, 'msg', 'nested too deeply')}", line
            ) from None
        if not isinstance(test, dict):
            raise source.refuse("is no test of iperf3", line)
        if "event" not in test:
            yield test
            continue
        parts[str(test["event"])] = test.get("data")
        if test["event"] in ("end", "error"):
            yield parts
            parts = {}


def _rates(source: ForeignFile, test: dict[str, Any]) -> dict[bool, list[float]]:
    """Bytes per second of each stream, by direction; True: from the server to the client."""
    if test.get("error"):
        raise source.refuse(f"is of a test that failed: {test['error']}")
    match test:
        case {"start": {"test_start": {"protocol": str(protocol), **setting}}, "end": {**end}}:
            pass
        case _:
            raise source.refuse("is no finished test of iperf3: it has no 'test_start' or no 'end'")
    if protocol != "TCP":
        raise source.refuse(
            f"is a test of {protocol}, whose rate is the sender's choice; test TCP (without -u)"
        )
    if end.get("streams"):
        each = [(row.get("receiver") if isinstance(row, dict) else None) for row in end["streams"]]
    else:
        each = [end.get("sum_received")]
    reverse, rates = bool(setting.get("reverse")), dict[bool, list[float]]()
    for received in each:
        match received:
            case {"bits_per_second": float() | int() as rate} if 0 < rate < 1e18:
                sender = received.get("sender") if end.get("streams") else None
                back = reverse if not isinstance(sender, bool) else not sender
                rates.setdefault(back, []).append(rate / 8)
            case _:
                raise source.refuse("says of no bytes that they were received; take the JSON of the client")
    wanted = setting.get("num_streams", len(each))
    if not end.get("streams") and wanted != 1:  # a sum alone
        rates = {back: [rate[0] / wanted] * wanted for back, rate in rates.items()}
    return rates
