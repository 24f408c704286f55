"""When a slow start of CUBIC ends before anything is lost: Linux's HyStart.

A *round* begins with the first acknowledgement of what was sent after the round before had begun. Slow start
ends when, since the beginning of a round, acknowledgements have come without a pause for half a round trip
(the train is as long as the path), or when those of a round are all late (something waits in front of them).
A pause within a round hides its train. Positions are bytes since the connection began.

Source: Ha and Rhee, Taming the elephants: new TCP slow start, Computer Networks 55(9), 2011, with the
constants of Linux 6.18.
"""

from __future__ import annotations

from math import inf
from typing import Final, NamedTuple

from ...network.stock_tcp import SEGMENT_BYTES

_LEAST_ACKS: Final = 9
"""The acknowledgements of a round after which it is known that all are late."""
_TRAIN_S: Final = 0.0005
"""What an acknowledgement may be late for the bursts of a host, half of at most a millisecond."""
_TRAIN_GAP_S: Final = 0.0015
"""Acknowledgements of a train are 2 ms apart at most; where they are more than this on average, some are
later."""
_PAUSE_S: Final = 0.002
"""What breaks a train."""
_LEAST_LATE_S: Final = 0.004
"""By how much the acknowledgements of a round must all be late, an eighth of the round trip ..."""
_MOST_LATE_S: Final = 0.016
"""... between these."""
_LATE_SEGMENTS: Final = 16
"""What the acknowledgements before the ninth are for, two segments each."""
_LEAST_SEGMENTS: Final = 16
"""The smallest window at which a slow start ends, of one connection."""


class Leaving(NamedTuple):
    """Bytes that leave, and their connection as they do.

    Attributes:
        begins, ends: where they are.
        acknowledged: what has been.
        window: of now.
        packet_bytes: that are acknowledged at once.
    """

    begins: float
    ends: float
    acknowledged: float
    window: float
    packet_bytes: float


class HyStart:
    """One connection's rounds.

    Bytes leave at 1 MB/s and have a round trip of 100 ms: a window of 40 kB is no train, one of 80 kB is.

    >>> rounds = HyStart(rtt_s=0.1)
    >>> rounds.leave(0.0, 0.0)
    >>> rounds.window_at_train(Leaving(0.0, 40_000.0, 0.0, 40_000.0, 1_448.0), 1e6)
    inf
    >>> rounds.window_at_train(Leaving(0.0, 80_000.0, 0.0, 80_000.0, 1_448.0), 1e6)
    130500.0

    Args:
        rtt_s: round trip without queues.
        connections: that share the bytes.
    """

    __slots__ = ("_least", "_left_s", "_round_end", "_round_from", "_rtt_s", "_run_from")

    def __init__(self, rtt_s: float, connections: int = 1) -> None:
        self._rtt_s = rtt_s
        self._least = float(_LEAST_SEGMENTS * SEGMENT_BYTES * connections)
        self._round_from = 0.0  # what was acknowledged when the latest round began ...
        self._round_end = 0.0  # ... and sent: the next one begins with the bytes behind
        self._run_from = 0.0  # where what leaves without a pause began
        self._left_s = -inf  # when bytes left last

    def leave(self, now_s: float, sent: float) -> None:
        """Take note that what is behind ``sent`` begins to leave now."""
        if now_s > self._left_s + _PAUSE_S:
            self._run_from = sent

    def left(self, now_s: float) -> None:
        """Take note that bytes have left now."""
        self._left_s = now_s

    def begin(self, sent: float) -> None:
        """Begin a round with what is behind ``sent``."""
        self._round_from = self._round_end = self._run_from = sent

    def acknowledge(self, acknowledged: float, sent: float) -> None:
        """Begin a round, if what is acknowledged now was sent after the beginning of the last one."""
        if acknowledged > self._round_end:
            self._round_from, self._round_end = self._round_end, sent

    def window_at_train(self, leaving: Leaving, rate: float, ack_waits_s: float = 0.0) -> float:
        """The window at which acknowledgements of some bytes will have come for half a round trip.

        Args:
            leaving: those bytes.
            rate: at which they leave, bytes/s.
            ack_waits_s: how long an acknowledgement waits behind what others send. That comes in bursts, and
                one that is long enough to be a pause hides the train.

        Returns:
            ``inf`` where they are no train.
        """
        train = rate * (self._rtt_s / 2 + _TRAIN_S)
        if leaving.packet_bytes > rate * _TRAIN_GAP_S or ack_waits_s > _PAUSE_S:
            return inf
        since = self._round_end if leaving.ends > self._round_end else self._round_from
        if since < self._run_from or leaving.ends - since <= train:
            return inf
        return self._if_large(leaving.window + since - leaving.acknowledged + train)

    def window_when_late(self, leaving: Leaving, late_s: float) -> float:
        """The window at which slow start ends because some bytes have had to wait for those in front.

        Args:
            leaving: those bytes.
            late_s: how long the first of them has waited.

        Returns:
            ``inf`` where that is not late, or a round has begun before them.
        """
        since = self._round_end
        least_s = min(max(self._rtt_s / 8, _LEAST_LATE_S), _MOST_LATE_S)
        if not leaving.begins <= since < leaving.ends or late_s <= least_s:
            return inf
        if leaving.ends - since < _LEAST_ACKS * leaving.packet_bytes:
            return inf
        return self._if_large(leaving.window + since - leaving.acknowledged + _LATE_SEGMENTS * SEGMENT_BYTES)

    def _if_large(self, window: float) -> float:
        return window if window >= self._least else inf
