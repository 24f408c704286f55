"""A path's one-way latency from round trips of packets."""

from __future__ import annotations

import math
from typing import Final

from paceline.extras.importers.readings import ForeignFile, PathReading, Readings

_LEAST_PACKETS: Final = 5
"""From fewer a deviation says nothing."""


def half_of(
    source: ForeignFile,
    trip_s: float,
    what: str,
    deviation_s: float,
    packets: int,
    loss: float | None,
    lost: str,
) -> Readings:
    """Readings of ``what`` round trip; its two ways are alike, and vary independently."""
    varies = packets >= _LEAST_PACKETS and deviation_s > 0
    jitter_s = deviation_s / math.sqrt(2) if varies else None
    jitter = f"jitter: round trips vary by {1000 * deviation_s:.3g} ms (standard deviation), each way alike"
    return Readings(
        paths=(PathReading(*source.ends, latency_s=trip_s / 2, jitter_s=jitter_s, loss=loss),),
        notes=(f"latency: half of {what}, {1000 * trip_s:.4g} ms", *([jitter] if varies else []), lost),
    )
