"""Data of one connection: permitted departures, bytes in flight, and waits in queues."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import NamedTuple


class Departure(NamedTuple):
    """Bytes that may leave now.

    Attributes:
        num_bytes: of the waiting ones; 0: nothing before ``not_before_s``.
        cap_bytes_per_s: largest rate, ``inf`` where only links limit it.
        not_before_s: when to ask again; inf: once the other direction's bytes have left.
    """

    num_bytes: float
    cap_bytes_per_s: float = inf
    not_before_s: float = -inf


class Queues(NamedTuple):
    """Waits in first-in-first-out queues, in seconds, of a short message that leaves at a given time.

    ``back``: of its acknowledgement.
    """

    there: Callable[[float], float]
    back: Callable[[float], float]


class Chunk(NamedTuple):
    """Bytes in flight.

    Attributes:
        acked_s: when they are acknowledged, if the acknowledgement does not wait.
        num_bytes: as counted by the window.
        in_flight: all bytes in flight at that time.
        waited_s: in queues, before they left.
    """

    acked_s: float
    num_bytes: float
    in_flight: float
    waited_s: float = 0.0
