"""TCP's window: bytes that a connection may send at once, and its state between messages.

A pure law: it has no clock, shares no link and loses no packet. The caller asks what may leave now, lets it
leave at the rate that the links give, and reports when it has.

How it works:

- **Rounds.** In slow start a window of bytes leaves, its acknowledgement comes one round trip after its
  first byte has left, and by then the window has grown by what was acknowledged: it doubles per round.
- **No rounds** where the window holds what the route can carry in a round trip, or has reached the limit of
  buffers and losses: then the bytes leave as one flow, whose rate is at most window / round trip.
- **Both ways.** Acknowledgements wait behind their host's own bytes: where bytes go both ways there are
  rounds, however large the window is, and a link rests for one latency in each, or longer where the other
  window is larger. Not so with BBR, whose window is twice the bytes in flight.
- **After slow start** the window grows slowly: more than a few windows leave as flows whose rates rise by an
  eighth.
- **Between messages** the window stays, however little is sent. It is halved for every retransmission timeout
  without anything to send.

References:
    RFC 6928, Increasing TCP's initial window (10 segments).
    RFC 5681, TCP congestion control (slow start; reno: a segment per round trip).
    RFC 2861, TCP congestion window validation, as Linux 6.18 has it: after idle times, and not (measured)
        where the application limits the rate: net.ipv4.tcp_slow_start_after_idle,
        Documentation/networking/ip-sysctl.rst.
    RFC 6298, Computing TCP's retransmission timer; its smallest variation in Linux: 200 ms.
    RFC 9438, CUBIC for fast and long-distance networks; before the first loss Linux's window grows by a
        twentieth of what is acknowledged.
    Cardwell et al., BBR congestion control, draft-cardwell-iccrg-bbr-congestion-control (start-up: paced at
        2 / ln 2 of the rate that was delivered).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from math import inf
from typing import Final, NamedTuple

from ...network.network_settings import SEGMENT_BYTES, TcpSettings
from .hystart import HyStart, Leaving


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


_REFILLED: Final = 0.75
"""Average fill of a send buffer while a host refills it: Linux wakes a sender when half of the buffer's
content fits again, so that it is between two thirds full and full."""

_LEAST_VARIATION_S: Final = 0.2
"""Linux (TCP_RTO_MIN): least excess of a retransmission timeout over the round trip."""
_VARIATION_DECAY: Final = 0.75
"""RFC 6298's 1 - beta: remaining share of a variation after a round trip without any."""
_RTT_DECAY: Final = 0.875
"""RFC 6298's 1 - alpha: remaining share of a smoothed round trip after an acknowledgement."""
_BURSTS_PER_S: Final = 1024
"""Linux (sk_pacing_shift): a packet of several segments has this part of what is paced in a second ..."""
_LARGEST_PACKET_BYTES: Final = 65536
"""... and a share of this that halves with every 512 µs of the round trip (tcp_tso_rtt_log)."""
_BUFFERED_PER_BYTE: Final = 2 * 4352 / SEGMENT_BYTES
"""Linux (tcp_sndbuf_expand): a send buffer has room for two windows of segments, each with its overhead."""
_ROUNDING: Final = 1e-6
"""Fraction of a segment that counts as a rounding error."""
_MOST_HALVINGS: Final = 64
"""Halvings of a resting window after which nothing of it is left."""
_CUBIC_LEAST: Final = 20
"""Linux (tcp_cubic.c): acknowledged bytes per byte of window growth, before the first loss."""
_PACING_GAIN: Final = 0.99 * 2 / math.log(2)
"""BBR's gain at start-up, over the rate that was delivered, less a margin of 1 %."""
_UNPACED_SEGMENTS: Final = 10
"""Linux: segments that a connection sends before it is paced."""
_DELAYED_S: Final = 0.04
"""Linux (TCP_DELACK_MIN): acknowledgement delay of a segment that comes alone, unless another comes."""
_LOOKED_AHEAD: Final = 0.25
"""Share of a message after which to check whether its connection carries bytes back."""
_FEW_WINDOWS: Final = 4
"""After slow start, more windows than this leave as a flow."""
_STEP: Final = 1.125
"""Growth factor of a window after slow start before the rate is set anew."""


class Connection:
    """One direction between two hosts: its window, from one message to the next.

    Ten segments leave at once, the next ones a round trip later:

    >>> connection = Connection(TcpSettings(), rtt_s=0.1, peak_bytes_per_s=float("inf"))
    >>> connection.next(0.0, 20_000.0).num_bytes
    14480.0
    >>> connection.next(0.0, 5_520.0).not_before_s
    0.1

    Args:
        tcp: settings.
        rtt_s: round trip without queues.
        peak_bytes_per_s: the most that the links of the route can ever carry.

    Attributes:
        other: the connection's other direction, whose acknowledgements wait behind bytes here, as ours do
            there; None: they never wait.
        queues: in front of first-in-first-out links; None: links are shared fairly.
        buffer_bytes: of a message, what the host's socket takes beyond what has left.
        window: bytes that may be in flight, unless buffers hold less.
        threshold: the window at which slow start ends; ``inf`` until it has.
    """

    __slots__ = (
        "_acked",
        "_allowed_s",
        "_alone",
        "_begun_s",
        "_buffered",
        "_chunks",
        "_done_s",
        "_first",
        "_flights",
        "_held",
        "_in_flight",
        "_leaving",
        "_left_s",
        "_most",
        "_open",
        "_pace",
        "_peak",
        "_pipe",
        "_queued_s",
        "_round_s",
        "_rounds",
        "_rtt_s",
        "_run",
        "_sampled_s",
        "_samples",
        "_sendable",
        "_sent",
        "_sent_s",
        "_smoothed_s",
        "_tcp",
        "_unpaced",
        "_variation_s",
        "_waits",
        "buffer_bytes",
        "other",
        "queues",
        "threshold",
        "window",
    )  # fmt: skip

    def __init__(self, tcp: TcpSettings, rtt_s: float, peak_bytes_per_s: float) -> None:
        self._tcp = tcp
        self._rtt_s = rtt_s
        self._peak = peak_bytes_per_s
        self._pipe = peak_bytes_per_s * rtt_s if rtt_s else 0.0
        self._first = float(tcp.initial_window * SEGMENT_BYTES * tcp.connections)
        self._buffered = tcp.buffered_bytes
        # A window doubles while half of it is used, even if buffers hold no more.
        self._most = min(2 * self._buffered, tcp.window_at_loss_bytes(rtt_s))
        self._open = min(self._pipe, self._buffered, self._most)  # no rounds from here on
        self.window = min(self._first, self._most)
        self.threshold = inf
        self._sendable = tcp.send_buffer * tcp.connections
        self.buffer_bytes = min(_BUFFERED_PER_BYTE * self._first, self._sendable)
        self._held = False  # the window has held back bytes of the last send
        self._chunks: deque[Chunk] = deque()
        self._alone = False  # the next window's last packet has one segment
        self._acked = (-inf, 0.0)  # time and bytes of the latest acknowledgement
        self._in_flight = 0.0
        self._sent = 0.0  # all bytes sent in windows, as windows count them
        self._rounds = HyStart(rtt_s, tcp.connections)
        self._waits = False  # some bytes wait for acknowledgements ...
        self._allowed_s = inf  # ... and the first since the latest departure came then
        self._leaving = 0  # departures whose bytes have not left
        self._round_s = -inf  # begin of a round's latest window
        self._begun_s = -inf  # begin of the latest departure ...
        self._left_s = -inf  # ... and its end
        self._done_s = -inf  # end of any departure ...
        self._run = 0.0  # ... and its bytes, with those just before it
        self.other: Connection | None = None
        self.queues: Queues | None = None
        self._queued_s = 0.0  # wait of the latest departure before it leaves
        self._sent_s = inf  # the host's latest send; inf: none
        self._pace = _PACING_GAIN * self._first / rtt_s if rtt_s else inf  # BBR's, bytes/s
        self._unpaced = float(_UNPACED_SEGMENTS * SEGMENT_BYTES * tcp.connections)
        self._samples: deque[tuple[float, float]] = deque()  # (time when it is known, rate)
        self._flights: deque[tuple[float, float, float]] = deque()  # BBR's (begin, end, bytes)
        self._smoothed_s = rtt_s
        # The estimated variation is twice the first sample, and decays towards its least.
        self._variation_s = _LEAST_VARIATION_S + max(0.0, 2 * rtt_s - _LEAST_VARIATION_S) / _VARIATION_DECAY
        self._sampled_s = -inf  # the estimate's latest change, once per round trip

    def next(self, now_s: float, num_bytes: float) -> Departure:
        """Take the bytes that may leave now of ``num_bytes``; call ``left`` when they have."""
        self._take_acknowledgements(now_s)
        if not self._in_flight and not self._leaving:
            self._held = self._held and self._acked[0] == now_s
            self._rest(now_s)
            if self._acked[0] != now_s:
                self._flights.clear()
        if self.window > self.buffer_bytes:  # the kernel grows a buffer that limits
            self.buffer_bytes = min(_BUFFERED_PER_BYTE * self.window, self._sendable)
        held = self._usable(num_bytes)
        other = self.other if num_bytes > held and self._tcp.congestion != "bbr" else None
        waits_s = 0.0 if self.queues is None else self.queues.there(now_s)
        if other is not None and other._leaving:
            leave = self._window(now_s, num_bytes, waits_s)
        elif self.window >= self._open:
            cap = inf if held >= self._pipe else held / self._rtt_s
            some = max(held, num_bytes * _LOOKED_AHEAD) if other is not None else num_bytes
            leave = Departure(some, cap)
        elif self.window >= self.threshold and num_bytes > _FEW_WINDOWS * self.window:
            rate = self.window / self._rtt_s
            leave = Departure(min(num_bytes, rate * self._until_step_s()), rate)
        else:
            leave = self._window(now_s, num_bytes, waits_s)
        if not leave.num_bytes:
            return leave
        self._queued_s = waits_s
        self._leave_rounds(now_s, leave.num_bytes)
        self._waits, self._allowed_s = leave.num_bytes < num_bytes, inf
        self._leaving += 1
        self._sent_s = self._begun_s = now_s
        self._left_s = inf
        return leave

    def _window(self, now_s: float, num_bytes: float, waits_s: float) -> Departure:
        room = self._usable(num_bytes) - self._in_flight
        self._held = self._held or room < num_bytes
        if room < min(num_bytes, SEGMENT_BYTES):
            return Departure(0.0, not_before_s=self._acked_s(self._chunks[0]))
        leave = self._paced(now_s, min(room, num_bytes))
        acked_s = now_s + waits_s + self._rtt_s + self._packet_bytes(leave.num_bytes) / self._peak
        counted = leave.num_bytes if self._tcp.congestion == "bbr" else _in_segments(leave.num_bytes)
        self._in_flight += counted
        late = SEGMENT_BYTES if self._alone and room < num_bytes else 0
        self._alone = False
        self._chunks.append(Chunk(acked_s, counted - late, self._most_in_flight(now_s), waits_s))
        if late:
            self._chunks.append(Chunk(acked_s + min(self._rtt_s, _DELAYED_S), late, self._in_flight))
        self._round_s = now_s
        return leave

    def left(self, start_s: float, now_s: float, num_bytes: float) -> None:
        """Note that the bytes taken at ``start_s`` have left now."""
        self._leaving -= 1
        self._run = num_bytes + (self._run if start_s == self._done_s else 0.0)
        self._done_s = now_s
        if start_s == self._begun_s:
            self._left_s = now_s
        self._rounds.left(now_s)
        took_s = now_s - start_s - (self._queued_s if start_s == self._begun_s else 0.0)
        if took_s <= 0:
            return
        rate = num_bytes / took_s
        at_once = min(_in_segments(num_bytes), self._usable(num_bytes))
        is_flow = start_s != self._round_s  # rounds grow the window on acknowledgement
        if self.window >= self.threshold:
            if is_flow and (self.window < self._open or at_once >= self.window - SEGMENT_BYTES):
                self._avoid(num_bytes)
        elif self._tcp.congestion != "bbr":
            if self._may_end:
                self._rounds_left(start_s, took_s, num_bytes)
            if is_flow and self.window >= self._open:
                self._grow(num_bytes, self._most if num_bytes > at_once else 2 * at_once)
        # In slow start a window is sent at twice the rate at which it leaves the links.
        standing_s = min(self._run, self._usable(num_bytes)) / rate - self._rtt_s
        queue_s = max(standing_s, at_once / rate / 2 if self.window < self._open else 0.0)
        if self._tcp.congestion == "bbr" and self.window < self._open:
            self._measure_rate(start_s, now_s, num_bytes)
        acks = num_bytes / self._packet_bytes(num_bytes)
        self._smoothed_s += (self._rtt_s + self._queued_s + queue_s - self._smoothed_s) * (
            1 - math.pow(_RTT_DECAY, acks)
        )
        if self.window >= self._open:
            self._sample(now_s, took_s / (self._rtt_s + queue_s))
        self._sent_s = max(self._sent_s, now_s - queue_s)

    def sends(self, now_s: float) -> None:
        """Note a short control message: it takes no time, but ends a rest."""
        self._take_acknowledgements(now_s)
        if not self._in_flight and not self._leaving:
            self._held = False
            self._rest(now_s)
        if self._tcp.congestion != "bbr":
            self._in_flight += SEGMENT_BYTES
            self._sent += SEGMENT_BYTES
            self._chunks.append(Chunk(now_s + self._rtt_s, SEGMENT_BYTES, self._in_flight))
        self._sent_s = now_s

    @property
    def in_slow_start(self) -> bool:
        """Whether bytes leave in rounds."""
        return self.window < min(self.threshold, self._open)

    def _usable(self, num_bytes: float) -> float:
        """Bytes that may be in flight; of a message beyond the send buffer, the buffer's average fill."""
        sendable = self._sendable if num_bytes <= self._sendable else _REFILLED * self._sendable
        return min(self.window, self._buffered, sendable)

    def _take_acknowledgements(self, now_s: float) -> None:
        chunks = self._chunks
        while chunks and (acked_s := self._acked_s(chunks[0])) <= now_s:
            due_s, num_bytes, in_flight, waited_s = chunks.popleft()
            self._acked = acked_s, num_bytes
            if self.queues is not None and self._may_end:  # bytes and acknowledgements may have waited
                begins, packet_bytes = self._sent - self._in_flight, self._packet_bytes(num_bytes)
                leaving = Leaving(begins, begins + num_bytes, begins, self.window, packet_bytes)
                self._end_at(self._rounds.window_when_late(leaving, waited_s + acked_s - due_s))
            if acked_s >= self._sampled_s + self._rtt_s:
                self._sample(acked_s, 1.0)
            self._in_flight = self._in_flight - num_bytes if chunks else 0.0
            self._rounds.acknowledge(self._sent - self._in_flight, self._sent)
            self._allowed_s = min(self._allowed_s, acked_s)
            if self.window < self.threshold:
                self._grow(num_bytes, inf if self._held else 2 * in_flight)
            elif self._held or in_flight >= self.window - SEGMENT_BYTES:
                self._avoid(num_bytes)

    def _acked_s(self, chunk: Chunk) -> float:
        """Arrival of an acknowledgement, after its host's earlier bytes; inf: not known yet."""
        sent_s, other = chunk.acked_s - self._rtt_s / 2, self.other
        if self.queues is not None:
            return chunk.acked_s + self.queues.back(sent_s)
        if other is None or other._begun_s > sent_s or other._left_s <= sent_s:
            return chunk.acked_s
        return other._left_s + self._rtt_s / 2

    def _most_in_flight(self, now_s: float) -> float:
        """Most bytes in flight at once: acknowledgements of the previous window come one by one."""
        acked_s, num_bytes = self._acked
        before = max(0.0, num_bytes - (now_s - acked_s) * self._peak)
        return max(self._in_flight, min(before, num_bytes) + self._in_flight / 2)

    def _sample(self, now_s: float, round_trips: float) -> None:
        """Let the round trip's estimated variation decay towards its least, by a quarter per round trip."""
        self._sampled_s = now_s
        more_s = (self._variation_s - _LEAST_VARIATION_S) * math.pow(_VARIATION_DECAY, round_trips)
        self._variation_s = _LEAST_VARIATION_S + more_s

    def _packet_bytes(self, num_bytes: float) -> float:
        """Size of a packet that the host sends as a whole, of several segments."""
        share = _LARGEST_PACKET_BYTES * 0.5 ** int(min(self._rtt_s / 512e-6, 100.0))
        paced = 2 * self.window / self._smoothed_s / _BURSTS_PER_S if self._smoothed_s else inf
        return min(max(paced + share, 2 * SEGMENT_BYTES), _LARGEST_PACKET_BYTES, num_bytes)

    def _leave_rounds(self, now_s: float, num_bytes: float) -> None:
        begins = self._sent
        self._rounds.leave(now_s, begins)
        self._sent += _in_segments(num_bytes)
        late_s = self._queued_s + (
            now_s - self._allowed_s if self._waits and self._allowed_s < now_s else 0.0
        )
        if late_s and self._may_end:
            acked = (self._sent if self._round_s == now_s else begins) - self._in_flight
            leaving = Leaving(begins, self._sent, acked, self.window, self._packet_bytes(num_bytes))
            self._end_at(self._rounds.window_when_late(leaving, late_s))

    def _rounds_left(self, start_s: float, took_s: float, num_bytes: float) -> None:
        rounds, other, packet_bytes = self._rounds, self.other, self._packet_bytes(num_bytes)
        begins, acked = self._sent - _in_segments(num_bytes), self._sent - self._in_flight
        if start_s != self._round_s:  # a flow is a round of its own: its acknowledgements are not followed
            rounds.begin(begins)
            acked = begins - min(num_bytes, self.window)
            leaving = Leaving(begins, self._sent, acked, self.window, packet_bytes)
            self._end_at(rounds.window_when_late(leaving, took_s - self._rtt_s))
            acked = begins
        both_ways = other is not None and (other._leaving > 0 or other._done_s > start_s)
        if not both_ways:
            least = max(0.75 * packet_bytes, 2 * SEGMENT_BYTES)  # packets are sent at half of the rate to all
            leaving = Leaving(begins, self._sent, acked, self.window, least)
            ack_waits_s = 0.0 if self.queues is None else self.queues.back(start_s + self._rtt_s / 2)
            self._end_at(rounds.window_at_train(leaving, num_bytes / took_s, ack_waits_s))

    def _end_at(self, window: float) -> None:
        if window < inf:
            self.threshold = min(self.threshold, window, self._most)

    @property
    def _may_end(self) -> bool:
        return self._tcp.congestion == "cubic" and self.threshold == inf

    def _grow(self, num_bytes: float, most: float) -> None:
        """Grow in slow start by the acknowledged bytes, up to ``most``, which does not limit BBR."""
        if self._tcp.congestion == "bbr":
            most = inf
        grown = max(self.window, min(self.window + num_bytes, most))
        self.window = min(grown, self.threshold, self._most)

    def _rest(self, now_s: float) -> None:
        """Halve the window for every timeout without anything to send after the first."""
        idle_s, timeout_s = now_s - self._sent_s, self._smoothed_s + self._variation_s
        if idle_s <= timeout_s or not self._tcp.slow_start_after_idle or self._tcp.congestion == "bbr":
            return
        self.threshold = max(self.threshold, 0.75 * self.window)
        packet = self._packet_bytes(inf) // SEGMENT_BYTES  # as large as the pace before the rest makes it
        halvings = min(math.ceil(idle_s / timeout_s) - 1, _MOST_HALVINGS)
        halved = math.floor(self.window / 2**halvings / SEGMENT_BYTES + _ROUNDING) * float(SEGMENT_BYTES)
        self.window = max(halved, min(self._first, self.window))
        self._alone = self.window // SEGMENT_BYTES % packet == 1

    def _paced(self, now_s: float, num_bytes: float) -> Departure:
        if self._tcp.congestion != "bbr":
            return Departure(num_bytes)
        while self._samples and self._samples[0][0] <= now_s:
            self._pace = max(self._pace, _PACING_GAIN * self._samples.popleft()[1])
        if self._unpaced >= SEGMENT_BYTES:
            leave = Departure(min(num_bytes, self._unpaced))
            self._unpaced -= leave.num_bytes
            return leave
        # The first packet of a flight does not wait; a pace holds until more is known.
        goes_on = bool(self._flights) and self._flights[-1][1] >= now_s
        burst = 0.0 if goes_on else self._packet_bytes(num_bytes)
        if self._samples:
            num_bytes = min(num_bytes, max(burst + self._pace * (self._samples[0][0] - now_s), SEGMENT_BYTES))
        takes_s = (num_bytes - burst) / self._pace
        return Departure(num_bytes, num_bytes / takes_s if takes_s > 0 else inf)

    def _measure_rate(self, start_s: float, now_s: float, num_bytes: float) -> None:
        """Note the rate that BBR will see a round trip later, when the bytes that just left are acknowledged.

        It is the bytes unacknowledged when the last byte left, over the time from the previous
        acknowledgement (or from the first byte, if there was none) to that of the last byte.
        """
        flights = self._flights
        flights.append((start_s, now_s, num_bytes))
        known_s = since_s = now_s - self._rtt_s
        while len(flights) > 1 and flights[1][1] <= known_s:
            flights.popleft()
        seen = [min(end_s, known_s) for begin_s, end_s, _ in flights if begin_s <= known_s]
        since_s = max(seen) + self._rtt_s if seen else flights[0][0]
        unseen = sum(
            size * min(1.0, (end_s - known_s) / max(end_s - begin_s, 1e-12))
            for begin_s, end_s, size in flights
            if end_s > known_s
        )
        self._samples.append((now_s + self._rtt_s, unseen / (now_s + self._rtt_s - since_s)))

    # --- after slow start -----------------------------------------------------------------------

    def _until_step_s(self) -> float:
        """Time until the window has grown by ``_STEP``, at least a round trip."""
        if self._tcp.congestion == "cubic":
            return (_STEP - 1) * _CUBIC_LEAST * self._rtt_s
        segments = self.window / (SEGMENT_BYTES * self._tcp.connections)
        return max((_STEP - 1) * segments, 1.0) * self._rtt_s

    def _avoid(self, num_bytes: float) -> None:
        """Grow by the acknowledged bytes: cubic by a share of them, reno by a segment per window."""
        if self._tcp.congestion == "cubic":
            grown = num_bytes / _CUBIC_LEAST
        else:
            grown = num_bytes / self.window * SEGMENT_BYTES * self._tcp.connections
        self.window = min(self.window + grown, self._most)


def _in_segments(num_bytes: float) -> float:
    """Bytes as a window counts them: the last segment counts as a whole one."""
    return math.ceil(num_bytes / SEGMENT_BYTES - _ROUNDING) * float(SEGMENT_BYTES)
