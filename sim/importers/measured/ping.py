"""Output of ``ping``, of Linux, macOS, BusyBox and Windows (in several languages): round trips of packets."""

from __future__ import annotations

import math
import re
import statistics
from typing import Final

from ..readings import ForeignFile, PathReading, Readings, parse_decimal

_TARGET: Final = re.compile(r"(?m)^(?:PING|Pinging|Ping wird ausgeführt für) (\S+)")
_TRIP: Final = re.compile(r"(?i)\b(?:time|zeit|temps|tiempo|tempo|durata)\s*([=<])\s*([0-9.,]+)\s*([^\s,)]*)")
_COUNTS: Final = re.compile(r"(\d+) packets transmitted, (\d+)(?: packets)? received")
_WINDOWS_COUNTS: Final = re.compile(r":\s*\S+ = (\d+), \S+ = (\d+), \S+ = (\d+)")
_SUMMARY: Final = re.compile(r"min/avg/max(?:/(?:mdev|stddev))? = ([0-9.,]+(?:/[0-9.,]+){2,3}) (\S+)")
_LEAST_TRIPS: Final = 5
"""From so few a deviation says nothing."""


def read(source: ForeignFile) -> Readings:
    """Half of the median round trip; of a summary alone, half of the mean.

    ``InputError``: no packet came back, there are several targets, or a time is not in milliseconds.
    """
    targets = list(dict.fromkeys(_TARGET.findall(source.text)))
    if len(targets) > 1:
        raise source.refuse(f"has pings of {' and '.join(targets[:3])}; write each to a file of its own")
    trips_s, below = _trips(source)
    lost, loss = _lost(source, len(trips_s))
    if trips_s:
        trip_s, deviation_s = statistics.median(trips_s), statistics.pstdev(trips_s)
        what = f"the median round trip of {len(trips_s)} packets"
        if trip_s <= below:
            raise source.refuse(
                f"shows round trips below {1000 * below:g} ms only, and not how far; say the one-way latency: "
                "--latency '0.2 ms', without this file"
            )
    else:
        trip_s, deviation_s = _summary(source)
        what = "the mean round trip of the summary (no packet is shown by itself)"
    enough = len(trips_s) >= _LEAST_TRIPS or not trips_s
    start, end = source.ends or ("", "")
    path = PathReading(
        start, end, latency_s=trip_s / 2, jitter_s=deviation_s / math.sqrt(2) if enough else None, loss=loss
    )
    varies = f"jitter: round trips vary by {1000 * deviation_s:.3g} ms (standard deviation), both ways alike"
    return Readings(
        paths=(path,),
        notes=(
            f"latency: half of {what}, {1000 * trip_s:.4g} ms",
            *([varies] if enough and deviation_s else []),
            lost,
        ),
    )


def _trips(source: ForeignFile) -> tuple[list[float], float]:
    """Round trips, and the largest bound of those that are only bounded ("<1ms"), which count as it."""
    trips_s, below_s = [], 0.0
    for number, line in enumerate(source.text.splitlines(), 1):
        match = _TRIP.search(line)
        if match is None or "DUP!" in line:
            continue
        if match[3].lower() != "ms":
            raise source.refuse(f"has a round trip that is not in ms, but {match[2]} {match[3]!r}", number)
        trips_s.append(parse_decimal(source, match[2], number) / 1000)
        if match[1] == "<":
            below_s = max(below_s, trips_s[-1])
    return trips_s, below_s


def _lost(source: ForeignFile, answered: int) -> tuple[str, float | None]:
    counts = _COUNTS.search(source.text) or _WINDOWS_COUNTS.search(source.text)
    if counts is None:
        return "loss: not known, as the summary is missing", None
    # Windows counts "unreachable" as received.
    sent, received = int(counts[1]), min(int(counts[2]), answered or int(counts[2]))
    if received > sent or not received:
        raise source.refuse(f"has {sent} packets sent, {received} received: there is no round trip to take")
    return f"loss: {sent - received} of {sent} packets", (sent - received) / sent


def _summary(source: ForeignFile) -> tuple[float, float]:
    """Mean and deviation of the round trips."""
    match = _SUMMARY.search(source.text)
    if match is None:
        raise source.refuse("has no round trip of a packet")
    line = source.text.count("\n", 0, match.start()) + 1
    if match[2] != "ms":
        raise source.refuse(f"has round trips that are not in ms, but in {match[2]!r}", line)
    _, mean, _, deviation = [*(parse_decimal(source, each, line) for each in match[1].split("/")), 0.0][:4]
    return mean / 1000, deviation / 1000
