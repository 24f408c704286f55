"""HyStart: when CUBIC's slow start ends before any loss, as in Linux.

A *round* begins with the first acknowledgement of bytes that were sent after the previous round had begun.
Slow start ends when, since the beginning of a round, acknowledgements have come without a pause for half a
round trip (the train is as long as the path), or when all acknowledgements of a round are late (a queue has
formed). A pause within a round hides its train. Positions are bytes since the connection began.

Source: Ha and Rhee, Taming the elephants: new TCP slow start, Computer Networks 55(9), 2011, with the
constants of Linux 6.18.
"""

from __future__ import annotations

from math import inf
from typing import Final, NamedTuple

from ...network.network_settings import SEGMENT_BYTES

_LEAST_ACKS: Final = 9
"""Acknowledgements of a round after which it is known that all are late."""
_TRAIN_S: Final = 0.0005
"""Allowed delay of an acknowledgement by a host's bursts: half of at most a millisecond."""
_TRAIN_GAP_S: Final = 0.0015
"""Acknowledgements of a train are 2 ms apart at most; a larger average than this: some are later."""
_PAUSE_S: Final = 0.002
"""Pause that breaks a train."""
_LEAST_LATE_S: Final = 0.004
"""By how much all acknowledgements of a round must be late: an eighth of the round trip, at least this ..."""
_MOST_LATE_S: Final = 0.016
"""... and at most this."""
_LATE_SEGMENTS: Final = 16
"""Segments acknowledged before the ninth acknowledgement, two each."""
_LEAST_SEGMENTS: Final = 16
"""Smallest window at which slow start ends, per connection."""


class Leaving(NamedTuple):
    """Departing bytes, and the state of their connection.

    Attributes:
        begins, ends: their positions.
        acknowledged: position up to which bytes are acknowledged.
        window: the current one.
        packet_bytes: acknowledged at once.
    """

    begins: float
    ends: float
    acknowledged: float
    window: float
    packet_bytes: float


class HyStart:
    """The rounds of one connection.

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
        self._round_from = 0.0  # position acknowledged when the latest round began ...
        self._round_end = 0.0  # ... and sent: the next round begins behind it
        self._run_from = 0.0  # begin of the bytes that leave without a pause
        self._left_s = -inf  # time of the latest departure

    def leave(self, now_s: float, sent: float) -> None:
        """Note that the bytes behind position ``sent`` begin to leave now."""
        if now_s > self._left_s + _PAUSE_S:
            self._run_from = sent

    def left(self, now_s: float) -> None:
        """Note that bytes have left now."""
        self._left_s = now_s

    def begin(self, sent: float) -> None:
        """Begin a round with the bytes behind position ``sent``."""
        self._round_from = self._round_end = self._run_from = sent

    def acknowledge(self, acknowledged: float, sent: float) -> None:
        """Begin a round if the bytes acknowledged now were sent after the last round began."""
        if acknowledged > self._round_end:
            self._round_from, self._round_end = self._round_end, sent

    def window_at_train(self, leaving: Leaving, rate: float, ack_waits_s: float = 0.0) -> float:
        """Window at which acknowledgements of ``leaving`` have come for half a round trip; ``inf``: no train.

        ``rate``: of departures, bytes/s. ``ack_waits_s``: wait behind bursts of other traffic; a pause hides
        the train.
        """
        train = rate * (self._rtt_s / 2 + _TRAIN_S)
        if leaving.packet_bytes > rate * _TRAIN_GAP_S or ack_waits_s > _PAUSE_S:
            return inf
        since = self._round_end if leaving.ends > self._round_end else self._round_from
        if since < self._run_from or leaving.ends - since <= train:
            return inf
        return self._if_large(leaving.window + since - leaving.acknowledged + train)

    def window_when_late(self, leaving: Leaving, late_s: float) -> float:
        """Window at which slow start ends because bytes waited in a queue, the first ``late_s``.

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
