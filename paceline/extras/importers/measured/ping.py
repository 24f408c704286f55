"""Output of ``ping``, of Linux, macOS, BusyBox and Windows (in several languages)."""

from __future__ import annotations

import re
import statistics
from typing import Final

from paceline.extras.importers.readings import ForeignFile, Readings, half_of, parse_decimal

_TARGET: Final = re.compile(r"(?m)^(?:PING|Pinging|Ping wird ausgeführt für) (\S+)")
_TRIP: Final = re.compile(r"(?i)\b(?:time|zeit|temps|tiempo|tempo|durata)\s*([=<])\s*([0-9.,]+)\s*([^\s,)]*)")
_ANSWER: Final = re.compile(r"(?i)^(\[[\d.]+\] )?\d+ [^\d\s]+ [^\d\s]+ \S+.*(seq|ttl)|\bTTL=")
_COUNTS: Final = re.compile(r"(?m)^(\d{1,9}) [^\d,]+, (\d{1,9}) [^\d,]+,.*%")
_WINDOWS_COUNTS: Final = re.compile(r":\s*\S+ = (\d{1,9}), \S+ = (\d{1,9}), \S+ = \d")
_SUMMARY: Final = re.compile(r"min/avg/max(?:/(?:mdev|std-?dev))? = ([0-9.,]+(?:/[0-9.,]+){2,3}) ([^\s,]+)")


def read(source: ForeignFile) -> Readings:
    """Half of the median round trip; of a summary alone, half of the mean.

    ``InputError``: no packet came back, there are several targets, or a time is not in milliseconds.
    """
    targets = list(dict.fromkeys(_TARGET.findall(source.text)))
    if len(targets) > 1:
        raise source.refuse(f"has pings of {' and '.join(targets[:3])}; write each to a file of its own")
    trips_s, bound_s = _trips(source)
    sent, received = _counts(source, len(trips_s))
    if trips_s:
        trip_s, deviation_s = statistics.median(trips_s), statistics.pstdev(trips_s)
        what = f"the median round trip of {len(trips_s)} packets"
    else:
        trip_s, deviation_s = _summary(source)
        what = "the mean round trip of the summary, as no packet is shown by itself"
    if trip_s <= bound_s:
        raise source.refuse(
            f"says only that half of the round trips are up to {1000 * bound_s:g} ms; leave it out, and add "
            "--latency '0.2 ms', one-way"
        )
    loss = (sent - received) / sent if sent else None
    lost = f"loss: {sent - received} of {sent} packets" if sent else "loss: not known, without a summary"
    return half_of(source, trip_s, what, deviation_s, received or len(trips_s), loss, lost)


def _trips(source: ForeignFile) -> tuple[list[float], float]:
    """Round trips, and the largest of those that are only bounded ("<1ms"); 0 is none."""
    trips_s, bound_s = [], 0.0
    for number, line in enumerate(source.text.splitlines(), 1):
        match = _TRIP.search(line)
        if match is None and _ANSWER.search(line):
            raise source.refuse("is damaged: an answer without its round trip", number)
        if match is None or "DUP!" in line:
            continue
        if match[3].lower() != "ms":
            raise source.refuse(f"has a round trip in {match[3]!r}, not in ms", number)
        trips_s.append(parse_decimal(source, match[2], number) / 1000)
        bound_s = max(bound_s, trips_s[-1] if match[1] == "<" else 0.0)
    return trips_s, bound_s


def _counts(source: ForeignFile, shown: int) -> tuple[int, int]:
    """Packets sent and received; zeros without a summary. Windows counts "unreachable" as received."""
    counts = _COUNTS.search(source.text) or _WINDOWS_COUNTS.search(source.text)
    sent, received = (int(counts[1]), int(counts[2])) if counts else (0, 0)
    if counts and not 0 < received <= sent:
        raise source.refuse(f"has {received} packets received of {sent}: no round trip to take")
    if counts and shown and (shown > received or (counts.re is _COUNTS and shown < received)):
        raise source.refuse(f"shows {shown} round trips, and its summary counts {received}: give all of it")
    return sent, min(received, shown or received)


def _summary(source: ForeignFile) -> tuple[float, float]:
    """Mean and deviation of the round trips."""
    match = _SUMMARY.search(source.text)
    if match is None:
        raise source.refuse("has no round trip of a packet")
    line = source.text.count("\n", 0, match.start()) + 1
    if match[2] != "ms":
        raise source.refuse(f"has round trips in {match[2]!r}, not in ms", line)
    least, mean_ms, most, *deviation_ms = (parse_decimal(source, e, line) for e in match[1].split("/"))
    if not least <= mean_ms <= most:
        raise source.refuse(f"is damaged: its mean, {mean_ms:g} ms, is not in {least:g} to {most:g} ms", line)
    return mean_ms / 1000, sum(deviation_ms) / 1000
