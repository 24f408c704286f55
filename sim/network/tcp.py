"""How TCP opens its window: what a connection may send at once, and what it remembers between messages.

A pure law: it has no clock, shares no link and loses no packet. The caller asks what may leave now, lets it
leave at whatever rate the links give, and reports when it has.

How it works:

- **Rounds.** In slow start a window of bytes leaves, its acknowledgement comes one round trip after its
  first byte has left, and by then the window has grown by what was acknowledged: it doubles per round.
- **No rounds** where the window holds what the links on the way can carry in a round trip, or has reached
  what buffers and losses allow: then the bytes leave as one flow, whose rate is at most window / round trip.
- **After slow start** the window grows slowly: the bytes leave as flows whose rates rise by an eighth.
- **Between messages** the window stays. It is halved for every retransmission timeout without anything to
  send, and comes near to what is used where less than a window is sent for as long.

References:
    RFC 6928, Increasing TCP's initial window (10 segments).
    RFC 5681, TCP congestion control (slow start; reno: a segment per round trip).
    RFC 2861, TCP congestion window validation (after idle times, and where the application limits the rate),
        as Linux has it: net.ipv4.tcp_slow_start_after_idle, Documentation/networking/ip-sysctl.rst.
    RFC 6298, Computing TCP's retransmission timer; its smallest variation in Linux: 200 ms.
    RFC 9438, CUBIC for fast and long-distance networks (section 5.1: losses); before the first one Linux's
        window grows by a twentieth of what is acknowledged.
    Ha and Rhee, Taming the elephants: new TCP slow start, Computer Networks 55(9), 2011 (HyStart: cubic's
        slow start ends when the acknowledgements of a window arrive for half a round trip).
    Cardwell et al., BBR congestion control, draft-cardwell-iccrg-bbr-congestion-control (start-up: paced at
        2 / ln 2 of the rate that was delivered).
    Mathis, Semke, Mahdavi and Ott, The macroscopic behavior of the TCP congestion avoidance algorithm,
        Computer Communication Review 27(3), 1997.
"""

from __future__ import annotations

import math
from collections import deque
from math import inf
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import Field

from ..config.settings import Settings
from ..config.units import Bytes

HostTuning = Literal["tuned", "stock"]
Congestion = Literal["cubic", "reno", "bbr"]

SEGMENT_BYTES: Final = 1448
"""Of payload: an Ethernet frame of 1500 bytes less the headers of IP and TCP with time stamps."""
SEND_BUFFER_BYTES: Final = 4194304.0
"""Linux: the largest of net.ipv4.tcp_wmem."""
RECEIVE_BUFFER_BYTES: Final = 6291456.0
"""Linux up to 6.15: the largest of net.ipv4.tcp_rmem."""
MAX_BUFFER_BYTES: Final = 2**31 - 1
"""Linux keeps the size of a socket's buffer in 31 bits."""
WINDOW_SHARE: Final = 0.5
"""Of a receive buffer, what is offered as a window: net.ipv4.tcp_adv_win_scale = 1."""

_LEAST_VARIATION_S: Final = 0.2
"""Linux (TCP_RTO_MIN): what a retransmission timeout has beyond the round trip, at least."""
_VARIATION_DECAY: Final = 0.75
"""RFC 6298's 1 - beta: what is left of a variation after a round trip without any."""
_BURSTS_PER_S: Final = 1024
"""Linux (sk_pacing_shift): a packet of several segments has this part of what is paced in a second ..."""
_LARGEST_PACKET_BYTES: Final = 65536
"""... and a share of this that halves with every 512 µs of the round trip (tcp_tso_rtt_log)."""
_MOST_HALVINGS: Final = 64
"""Of a window while it rests, beyond which nothing of it is left."""
_CUBIC_PER_S3: Final = 0.4
"""RFC 9438's C: segments by which a window grows with the cube of the time."""
_CUBIC_BETA: Final = 0.7
_CUBIC_LEAST: Final = 20
"""Linux (tcp_cubic.c): bytes acknowledged for each by which the window grows, before the first loss."""
_PACING_GAIN: Final = 0.99 * 2 / math.log(2)
"""BBR's at start-up, over the rate that was delivered, less a margin of 1 %."""
_UNPACED_SEGMENTS: Final = 10
"""Linux: what a connection sends before it is paced."""
_TRAIN_S: Final = 0.0005
"""HyStart: what an acknowledgement may be late for the bursts of a host, half of at most a millisecond."""
_HYSTART_SEGMENTS: Final = 16
"""The smallest window at which HyStart ends a slow start."""
_STEP: Final = 1.125
"""By what a window grows after slow start before the rate is set anew."""


class TcpSettings(Settings):
    """TCP of stock hosts; the defaults are Linux's, with their names there."""

    congestion: Congestion = Field(default="cubic", description="net.ipv4.tcp_congestion_control")
    initial_window: Annotated[int, Field(ge=1, le=100_000)] = Field(
        default=10, description="segments of 1448 bytes before the first acknowledgement (RFC 6928)"
    )
    slow_start_after_idle: bool = Field(
        default=True,
        description="net.ipv4.tcp_slow_start_after_idle: the window shrinks while nothing is sent",
    )
    send_buffer: Annotated[Bytes, Field(ge=4096, le=MAX_BUFFER_BYTES)] = Field(
        default=SEND_BUFFER_BYTES, description="the largest of net.ipv4.tcp_wmem"
    )
    receive_buffer: Annotated[Bytes, Field(ge=4096, le=MAX_BUFFER_BYTES)] = Field(
        default=RECEIVE_BUFFER_BYTES, description="the largest of net.ipv4.tcp_rmem; half of it is the window"
    )
    loss: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.0, description="share of packets lost at random, which bounds the window; not in the lab"
    )
    connections: Annotated[int, Field(ge=1, le=1024)] = Field(
        default=1,
        description="over which one host sends to another, a message evenly spread (NCCL's sockets); "
        "1 in the lab",
    )

    @property
    def buffered_bytes(self) -> float:
        """The most that may be on its way: what both ends have room for."""
        return min(self.send_buffer, self.receive_buffer * WINDOW_SHARE) * self.connections

    def window_at_loss_bytes(self, rtt_s: float) -> float:
        """Mean window that losses allow; BBR's rate does not depend on them (below a fifth)."""
        if not self.loss or self.congestion == "bbr":
            return inf
        segments = math.sqrt(1.5 / self.loss)
        if self.congestion == "cubic":
            share = _CUBIC_PER_S3 * (3 + _CUBIC_BETA) / (4 * (1 - _CUBIC_BETA))
            segments = max(segments, share**0.25 * (rtt_s / self.loss) ** 0.75)
        return max(segments, 1.0) * SEGMENT_BYTES * self.connections


def describe_hosts(tcp: TcpSettings | None) -> str:
    """``tuned``, or ``stock`` with what differs from Linux's defaults."""
    if tcp is None:
        return "tuned"
    usual = TcpSettings()
    values = ((name, getattr(tcp, name)) for name in TcpSettings.model_fields)
    other = [f"{name} {value}" for name, value in values if value != getattr(usual, name)]
    return f"stock ({', '.join(other)})" if other else "stock"


class Departure(NamedTuple):
    """What may leave now.

    Attributes:
        num_bytes: of those that wait; 0: nothing before ``not_before_s``.
        cap_bytes_per_s: the most that they may get, ``inf`` where only links limit them.
        not_before_s: when to ask again.
    """

    num_bytes: float
    cap_bytes_per_s: float = inf
    not_before_s: float = -inf


class _Chunk(NamedTuple):
    """Bytes on their way, when their acknowledgement comes, and what was on its way with them."""

    acked_s: float
    num_bytes: float
    in_flight: float


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
        peak_bytes_per_s: the most that the links on the way can carry, at any time.

    Attributes:
        window: bytes that may be on their way, where buffers do not hold less.
        threshold: the window at which slow start ends; ``inf`` until it has.
    """

    __slots__ = (
        "_acked",
        "_buffered",
        "_chunks",
        "_first",
        "_flights",
        "_in_flight",
        "_last_rtt_s",
        "_leaving",
        "_limited_s",
        "_most",
        "_open",
        "_pace",
        "_peak",
        "_pipe",
        "_rtt_s",
        "_sampled_s",
        "_samples",
        "_sent_s",
        "_tcp",
        "_unpaced",
        "_used",
        "_variation_s",
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
        # A window is doubled as long as half of it is used, also where buffers hold no more.
        self._most = min(2 * self._buffered, tcp.window_at_loss_bytes(rtt_s))
        self._open = min(self._pipe, self._buffered, self._most)  # from here on there are no rounds
        self.window = min(self._first, self._most)
        self.threshold = inf
        self._chunks: deque[_Chunk] = deque()
        self._acked = (-inf, 0.0)  # when the latest acknowledgement came, and of how much
        self._in_flight = 0.0
        self._leaving = 0  # times that bytes were taken that have not left
        self._sent_s = inf  # when the host last sent something; inf: never
        self._pace = _PACING_GAIN * self._first / rtt_s if rtt_s else inf  # BBR's, bytes/s
        self._unpaced = float(_UNPACED_SEGMENTS * SEGMENT_BYTES * tcp.connections)
        self._samples: deque[tuple[float, float]] = deque()  # when a rate will be known, and the rate
        self._flights: deque[tuple[float, float, float]] = deque()  # BBR's: start, end and bytes
        self._last_rtt_s = rtt_s
        # Of the round trip, as estimated: twice the first sample, from which on it comes nearer to its least.
        self._variation_s = _LEAST_VARIATION_S + max(0.0, 2 * rtt_s - _LEAST_VARIATION_S) / _VARIATION_DECAY
        self._sampled_s = -inf  # when the estimate last changed, once a round trip
        self._limited_s = -inf  # when the window last held something back
        self._used = 0.0  # the most that was on its way at once since then

    def next(self, now_s: float, num_bytes: float) -> Departure:
        """Take what may leave now of so many bytes; call ``left`` when it has."""
        self._take_acknowledgements(now_s)
        if not self._in_flight and not self._leaving:
            self._rest(now_s)
            if self._acked[0] != now_s:
                self._flights.clear()
        if self.window >= self._open:
            cap = inf if self._open == self._pipe else self._usable() / self._rtt_s
            leave = Departure(num_bytes, cap)
            self._note_use(now_s, min(num_bytes, self.window))
        elif self.window >= self.threshold:
            rate = self.window / self._rtt_s
            leave = Departure(min(num_bytes, rate * self._until_step_s()), rate)
            self._note_use(now_s, min(num_bytes, self.window))
        else:
            room = self._usable() - self._in_flight
            if room < min(num_bytes, SEGMENT_BYTES):
                self._note_use(now_s, self.window)
                return Departure(0.0, not_before_s=self._chunks[0].acked_s)
            leave = self._paced(now_s, min(room, num_bytes))
            self._in_flight += leave.num_bytes
            acked_s = now_s + self._rtt_s + self._burst_s(leave.num_bytes)
            self._chunks.append(_Chunk(acked_s, leave.num_bytes, self._most_in_flight(now_s)))
            self._note_use(now_s, self._in_flight)
        self._leaving += 1
        self._sent_s = now_s
        return leave

    def left(self, start_s: float, now_s: float, num_bytes: float) -> None:
        """Take note that the bytes taken at ``start_s`` have left now."""
        self._leaving -= 1
        took_s = now_s - start_s
        if took_s <= 0:
            return
        rate = num_bytes / took_s
        at_once = min(num_bytes, self._usable())
        if self.window >= self.threshold:
            self._avoid(took_s, num_bytes)
        elif self._tcp.congestion != "bbr":
            train_s = self._rtt_s / 2 + _TRAIN_S
            end = self.window + rate * train_s
            hystart = self._tcp.congestion == "cubic" and self.threshold == inf
            if hystart and took_s > train_s and end >= self._least_threshold():
                self.threshold = min(end, self._most)
            if self.window >= self._open:
                self._grow(num_bytes, at_once)
        # A window of slow start is sent at twice the rate at which it leaves.
        queue_s = max(at_once / rate - self._rtt_s, at_once / rate / 2 if self.window < self._open else 0.0)
        queue_s = max(queue_s, 0.0)
        if self._tcp.congestion == "bbr" and self.window < self._open:
            self._measure_rate(start_s, now_s, num_bytes)
        self._last_rtt_s = self._rtt_s + queue_s
        if self.window >= self._open:
            self._sample(now_s, took_s / self._last_rtt_s)
        self._sent_s = max(self._sent_s, now_s - queue_s)

    def sends(self, now_s: float) -> None:
        """Take note that the host sends something too short to matter now: the connection is not idle."""
        self._take_acknowledgements(now_s)
        if not self._in_flight and not self._leaving:
            self._rest(now_s)
        self._sent_s = now_s

    def _usable(self) -> float:
        return min(self.window, self._buffered)

    def _take_acknowledgements(self, now_s: float) -> None:
        chunks = self._chunks
        while chunks and chunks[0].acked_s <= now_s:
            acked_s, num_bytes, in_flight = chunks.popleft()
            self._acked = acked_s, num_bytes
            if acked_s >= self._sampled_s + self._rtt_s:
                self._sample(acked_s, 1.0)
            self._in_flight = self._in_flight - num_bytes if chunks else 0.0
            if self.window < self.threshold:
                self._grow(num_bytes, in_flight)

    def _most_in_flight(self, now_s: float) -> float:
        """What is on its way at once: the acknowledgements of the window before come one by one."""
        acked_s, num_bytes = self._acked
        before = max(0.0, num_bytes - (now_s - acked_s) * self._peak)
        return max(self._in_flight, min(before, num_bytes) + self._in_flight / 2)

    def _sample(self, now_s: float, round_trips: float) -> None:
        """Let the estimate of the round trip's variation come nearer to its least, by a quarter each time."""
        self._sampled_s = now_s
        more_s = (self._variation_s - _LEAST_VARIATION_S) * math.pow(_VARIATION_DECAY, round_trips)
        self._variation_s = _LEAST_VARIATION_S + more_s

    def _burst_s(self, num_bytes: float) -> float:
        """How long the first packet of a window takes: its acknowledgement comes when all of it is there."""
        share = _LARGEST_PACKET_BYTES * 0.5 ** int(min(self._rtt_s / 512e-6, 100.0))
        burst = 2 * self.window / self._rtt_s / _BURSTS_PER_S + share
        burst = min(max(burst, 2 * SEGMENT_BYTES), _LARGEST_PACKET_BYTES, num_bytes)
        return burst / self._peak

    def _grow(self, num_bytes: float, in_flight: float) -> None:
        """Grow in slow start by what was acknowledged; but for BBR to twice what was on its way at most."""
        most = inf if self._tcp.congestion == "bbr" else 2 * in_flight
        grown = max(self.window, min(self.window + num_bytes, most))
        if num_bytes > in_flight:  # many windows in one flow: up to the end of slow start
            grown = self._most
        self.window = min(grown, self.threshold, self._most)

    def _rest(self, now_s: float) -> None:
        """Halve the window for every time-out without anything to send after the first."""
        idle_s, timeout_s = now_s - self._sent_s, self._last_rtt_s + self._variation_s
        if idle_s <= timeout_s or not self._tcp.slow_start_after_idle or self._tcp.congestion == "bbr":
            return
        self._keep_threshold()
        halvings = min(math.ceil(idle_s / timeout_s) - 1, _MOST_HALVINGS)
        self.window = max(self.window / 2**halvings, min(self._first, self.window))

    def _note_use(self, now_s: float, in_flight: float) -> None:
        """Bring the window nearer to what is used where the application sends less than it allows."""
        enough = self.window / 2 if self.window < self.threshold else self.window - SEGMENT_BYTES
        if in_flight >= enough:
            self._limited_s, self._used = now_s, 0.0
            return
        self._used = max(self._used, in_flight)
        if now_s - self._limited_s < self._last_rtt_s + self._variation_s:
            return
        if self._tcp.slow_start_after_idle and self._tcp.congestion != "bbr":
            self._keep_threshold()
            self.window = (self.window + max(self._used, min(self._first, self.window))) / 2
        self._limited_s, self._used = now_s, 0.0

    def _keep_threshold(self) -> None:
        self.threshold = max(self.threshold, 0.75 * self.window)

    def _least_threshold(self) -> float:
        return _HYSTART_SEGMENTS * SEGMENT_BYTES * self._tcp.connections

    def _paced(self, now_s: float, num_bytes: float) -> Departure:
        """Let a window of slow start leave at once, or as BBR paces it."""
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
        burst = 0.0 if goes_on else min(self._burst_s(num_bytes) * self._peak, num_bytes)
        if self._samples:
            num_bytes = min(num_bytes, max(burst + self._pace * (self._samples[0][0] - now_s), SEGMENT_BYTES))
        takes_s = (num_bytes - burst) / self._pace
        return Departure(num_bytes, num_bytes / takes_s if takes_s > 0 else inf)

    def _measure_rate(self, start_s: float, now_s: float, num_bytes: float) -> None:
        """Note the rate that BBR will see when what left just now is acknowledged, a round trip later.

        It is what was not acknowledged when the last byte left, over the time from the acknowledgement before
        (or from the first byte, where there was none) to that of the last byte.
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
        """How long it takes until the window has grown by ``_STEP``, at least a round trip."""
        if self._tcp.congestion == "cubic":
            return (_STEP - 1) * _CUBIC_LEAST * self._rtt_s
        segments = self.window / (SEGMENT_BYTES * self._tcp.connections)
        return max((_STEP - 1) * segments, 1.0) * self._rtt_s

    def _avoid(self, took_s: float, num_bytes: float) -> None:
        """Grow by what was acknowledged: cubic by a share of it, reno by a segment a window."""
        if num_bytes < self.window - SEGMENT_BYTES and self.window >= self._open:
            return  # the window has held nothing back
        if self._tcp.congestion == "cubic":
            grown = num_bytes / _CUBIC_LEAST
        else:
            grown = num_bytes / self.window * SEGMENT_BYTES * self._tcp.connections
        self.window = min(self.window + grown, self._most)


def leave_alone(connection: Connection, start_s: float, num_bytes: float, bytes_per_s: float) -> float:
    """Let a message leave over links that nothing else uses.

    Args:
        connection: its state before; afterwards that of the end.
        start_s: when the first byte can leave.
        num_bytes: of the message.
        bytes_per_s: what the links carry.

    Returns:
        When the last byte has left.

    >>> connection = Connection(TcpSettings(), rtt_s=0.1, peak_bytes_per_s=1e6)
    >>> round(leave_alone(connection, 0.0, 14_480 + 28_960 + 50_000, 1e6), 2)  # two round trips, then 50 ms
    0.26
    """
    now_s = start_s
    while num_bytes > 0:
        leave = connection.next(now_s, num_bytes)
        if not leave.num_bytes:
            now_s = leave.not_before_s
            continue
        end_s = now_s + leave.num_bytes / min(leave.cap_bytes_per_s, bytes_per_s)
        connection.left(now_s, end_s, leave.num_bytes)
        num_bytes -= leave.num_bytes
        now_s = end_s
    return now_s
