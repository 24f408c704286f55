"""Output of ``ping``: a round trip for each packet."""

from __future__ import annotations

import re
import statistics
from typing import Final

from ..readings import ForeignFile, PathReading, Readings

_TRIP: Final = re.compile(r"(?m)\btime[=<]\s*([0-9.]+)\s*ms")


def read(source: ForeignFile) -> Readings:
    """Half of the median round trip; ``InputError`` where no packet came back."""
    trips_s = [float(ms) / 1000 for ms in _TRIP.findall(source.text)]
    if not trips_s:
        raise source.refuse("has no round trip of a packet")
    trip_s = statistics.median(trips_s)
    start, end = source.ends or ("", "")
    note = f"latency: half of the median round trip of {len(trips_s)} packets, {1000 * trip_s:.4g} ms"
    return Readings(paths=(PathReading(start, end, latency_s=trip_s / 2),), notes=(note,))
