"""Packet latencies under jitter: arithmetic on given times, with no clock and no device.

A simulated message has one latency, and a message is many packets. So the packets of one *burst* share a
factor: a packet with contents draws the host's next factor if no other such packet is in flight there,
and keeps the current one otherwise. Mere acknowledgements take the nominal latency. Latencies added by links
over time apply to every packet that comes then. Nothing overtakes on the way from one host to another.
"""

from __future__ import annotations

import math
from collections.abc import Callable


class Delay:
    """The way from one host to another.

    Args:
        draw: gives the factor of the next burst; None: there is no jitter.
        added: latency added by the links at a time, in seconds; None: never any.
    """

    __slots__ = ("_added", "_draw", "_factor", "_last_s", "_over_s", "_queued", "latency_s")

    def __init__(
        self,
        latency_s: float,
        draw: Callable[[], float] | None,
        added: Callable[[float], float] | None = None,
    ) -> None:
        self.latency_s = latency_s
        self._draw = draw
        self._added = added
        self._factor = 1.0
        self._queued = 0  # packets with contents before the end of the last link
        self._over_s = -math.inf  # arrival of the last packet past it
        self._last_s = -math.inf

    def enters(self, now_s: float, contents: bool) -> float:
        """Let a packet reach the first link; returns its latency."""
        added_s = 0.0 if self._added is None else self._added(now_s)
        if self._draw is None or not contents:
            return self.latency_s + added_s
        if not self._queued and now_s >= self._over_s:
            self._factor = self._draw()
        self._queued += 1
        return self.latency_s * self._factor + added_s

    def arrives_s(self, left_s: float, latency_s: float, contents: bool) -> float:
        """Arrival of a packet that leaves the last link at ``left_s``; call in the order of leaving."""
        if self._draw is None and self._added is None:
            return left_s + latency_s
        self._last_s = max(self._last_s, left_s + latency_s)
        if contents and self._draw is not None:
            self._queued -= 1
            self._over_s = self._last_s
        return self._last_s
