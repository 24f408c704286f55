"""Rings behind token buckets on the hosts' own interfaces, modelled packet by packet; nothing is fitted.

    python -m benchmarks.token_bucket.model MEASURED.jsonl     both, side by side, as Markdown

The rows are those of ``benchmarks.token_bucket.ring`` with ``--place host`` and cubic. What decides there:

1. A shaper on the host refuses a packet that does not fit, and TCP keeps it (``tcp_enter_cwr``: its window
   is 0.7 times what it was). A socket with nothing in flight then waits for its probe timer (a smoothed
   round trip and 200 ms), and half a second more if the shaper refuses the probe.
2. A packet of several segments that fits in part loses its end. A later acknowledgement shows the loss, or
   a probe after two round trips; the window recovers by proportional rate reduction.
3. A send takes at most half the window at once, a socket keeps about two such packets in the shaper, and
   the rest of a short task waits until the first of them leaves it.

A slice waits for the slowest of its sockets, and the ring for the slice.

References: Linux 6.18, ``net/ipv4/tcp_output.c``, ``tcp_input.c``, ``tcp_timer.c``, ``net/sched/sch_tbf.c``,
``kernel/time/timer.c``; RFC 9438 (cubic; its growth in the Reno-friendly region), RFC 6937 (proportional rate
reduction), RFC 8985 (loss probes).
"""

from __future__ import annotations

import json
import math
import random
import re
import statistics
import sys
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from pathlib import Path
from typing import Any, Final

from .ring import MIN_TASK_BYTES, Turn, needed_s, payload_bytes_per_s, sizes_of, turns

GROWTH: Final = 0.53
"""Segments a round trip: 3 (1 - 0.7) / (1 + 0.7), RFC 9438, section 4.3."""
BETA: Final = 0.7
MIN_TIMEOUT_S: Final = 0.2
REFUSED_PROBE_S: Final = 0.5
TICK_S: Final = 1 / 250
"""Of the kernel's timers (CONFIG_HZ); from 64 ticks on they go off at every eighth."""
OFFLOAD_BYTES: Final = 65_160
"""Largest packet that is handed to the shaper whole."""
ONE_WAY_S: Final = 5e-5
HEADER_BYTES: Final = 66
"""Ethernet, IP, and TCP with time stamps."""

Pieces = list[tuple[int, int]]
"""(slice, bytes), in order."""


@dataclass(frozen=True, slots=True)
class Shaped:
    """Token buckets and a ring: rate in bytes per second, queue (burst included) and burst in bytes."""

    bytes_per_s: float
    queue_bytes: float
    burst_bytes: float
    segment_bytes: int
    ranks: int
    channels: int
    sockets: int


@dataclass(slots=True, eq=False)
class Socket:
    """A sender; windows in segments."""

    host: int
    channel: Channel
    to_send: deque[tuple[int, int]] = field(default_factory=deque)
    to_repeat: deque[tuple[int, int]] = field(default_factory=deque)
    lost: list[tuple[int, Pieces]] = field(default_factory=list)
    """Segments that the shaper cut off and nobody has missed yet, by the number of their packet."""
    window: float = 10.0
    threshold: float = math.inf
    in_flight: int = 0
    repeats_in_flight: int = 0
    in_shaper_bytes: int = 0
    number: int = 0
    """Of the latest packet."""
    limited_until: int = -1
    """While packets up to this one are in flight, the window was full, and grows."""
    reduces_until: int = -1
    """The reduction of the window ends with this packet; -1: there is none."""
    window_before: float = 0.0
    delivered: int = 0
    sent: int = 0
    """Since the reduction began, as ``delivered``."""
    round_trip_s: float = 0.0
    deviation_s: float = 0.0
    last_s: float = 0.0
    waits: bool = False
    """For its probe timer."""

    @property
    def timeout_s(self) -> float:
        """Retransmission time-out, RFC 6298 with Linux's minimum."""
        return self.round_trip_s + max(MIN_TIMEOUT_S, 4 * self.deviation_s)

    @property
    def loss_probe_s(self) -> float:
        """Silence after which a loss is probed for."""
        return min(2 * self.round_trip_s + (MIN_TIMEOUT_S if self.in_flight == 1 else 0.002), self.timeout_s)

    def reduce(self) -> None:
        """Begin to reduce the window, unless that is under way."""
        if self.reduces_until < 0:
            self.threshold = max(2.0, float(int(int(self.window) * BETA)))
            self.window_before, self.reduces_until = self.window, self.number
            self.delivered = self.sent = 0


@dataclass(slots=True, eq=False)
class Channel:
    """One host's part of a channel."""

    sockets: list[Socket] = field(default_factory=list)
    next: int = 0
    at: int = 0
    received: int = 0
    consumed: int = 0
    posted: int = 0
    got: dict[int, int] = field(default_factory=lambda: defaultdict(int))


class Ring:
    """All-reduces of given sizes, one after the other; ``seconds`` of all of them after ``run``."""

    def __init__(self, shaped: Shaped, sizes: Sequence[int], seed: int) -> None:
        self.shaped, self.seconds = shaped, 0.0
        self._random = random.Random(seed)
        self._turns: list[Turn] = [
            each for size in sizes for each in turns(size, shaped.ranks, shaped.channels)
        ]
        self._slices = [turn.sends for turn in self._turns if turn.sends]
        self._free_s = [-math.inf] * shaped.ranks
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self._hosts = [[Channel() for _ in range(shaped.channels)] for _ in range(shaped.ranks)]
        for host, channels in enumerate(self._hosts):
            for channel in channels:
                channel.sockets = [Socket(host, channel) for _ in range(shaped.sockets)]

    def run(self) -> None:
        """Let time pass until nothing happens any more."""
        for channels in self._hosts:
            for number, channel in enumerate(channels):
                self._at(self._random.uniform(0, 1e-3), self._advance, channel, number)
        while self._events:
            now_s, _, do, given = heappop(self._events)
            do(now_s, *given)

    def _at(self, time_s: float, do: Callable[..., None], *given: Any) -> None:
        self._count += 1
        heappush(self._events, (time_s, self._count, do, given))

    def _set_timer(self, now_s: float, wait_s: float, do: Callable[..., None], socket: Socket) -> None:
        tick_s = TICK_S if wait_s < 64 * TICK_S else 8 * TICK_S
        self._at(math.ceil((now_s + wait_s) / tick_s) * tick_s, do, socket)

    def _enqueue(self, host: int, now_s: float, size: int) -> float:
        """When a number of bytes, with headers, have left a host's shaper."""
        rate = self.shaped.bytes_per_s
        free_s = max(self._free_s[host], now_s - self.shaped.burst_bytes / rate) + size / rate
        self._free_s[host] = free_s
        return max(now_s, free_s)

    def _room(self, host: int, now_s: float) -> float:
        waiting_s = max(0.0, self._free_s[host] - now_s)
        return self.shaped.queue_bytes - waiting_s * self.shaped.bytes_per_s

    def _advance(self, now_s: float, channel: Channel, number: int) -> None:
        """Post the slices that nothing holds up."""
        while channel.at < len(self._turns):
            turn = self._turns[channel.at]
            if turn.receives and channel.consumed == channel.received:
                return
            channel.consumed += bool(turn.receives)
            channel.at += 1
            if turn.sends:
                task = max(MIN_TASK_BYTES, math.ceil(turn.sends / len(channel.sockets)))
                for begin in range(0, turn.sends, task):
                    socket = channel.sockets[channel.next]
                    channel.next = (channel.next + 1) % len(channel.sockets)
                    self._write(socket, channel.posted, min(task, turn.sends - begin), now_s)
                channel.posted += 1
        self.seconds = now_s

    def _write(self, socket: Socket, slice_: int, size: int, now_s: float) -> None:
        """What the program hands to a socket at once; a short rest waits while packets are in the shaper."""
        idle, packet = (
            not socket.to_send,
            OFFLOAD_BYTES // self.shaped.segment_bytes * self.shaped.segment_bytes,
        )
        socket.to_send.append((slice_, size))
        if size <= 1.5 * packet:
            if idle and size >= packet:
                self._send(socket, now_s, once=True)
            left = sum(each for _, each in socket.to_send)
            if left < packet and socket.in_flight and socket.in_shaper_bytes > left:
                return
        self._send(socket, now_s)

    def _send(self, socket: Socket, now_s: float, once: bool = False, window: float = math.inf) -> None:
        """Send what the window lets, packet by packet."""
        segment = self.shaped.segment_bytes
        while queue := socket.to_repeat or socket.to_send:
            room = int(min(window, socket.window)) - socket.in_flight
            if room < 1:
                socket.limited_until = socket.number
                return
            most = min(room, OFFLOAD_BYTES // segment, max(1, int(socket.window) // 2))
            size = min(sum(each for _, each in queue), most * segment)
            in_a_ms = 1.2e-3 * socket.window * segment / (socket.round_trip_s or 1e-3)
            if socket.in_shaper_bytes and socket.in_shaper_bytes >= max(2 * size, in_a_ms):
                return
            segments = math.ceil(size / segment)
            fitting = self._fitting(socket.host, now_s, size, segments)
            if not fitting:
                socket.reduce()
                if not socket.in_flight and not socket.waits:
                    wait_s = (
                        REFUSED_PROBE_S if math.isfinite(window) else max(socket.timeout_s, MIN_TIMEOUT_S)
                    )
                    socket.waits = True
                    self._set_timer(now_s, wait_s, self._probe, socket)
                return
            repeats = queue is socket.to_repeat
            socket.in_flight += segments
            socket.sent += segments
            socket.last_s = now_s
            for first in range(0, fitting, 2):
                count = min(2, fitting - first)
                pieces = list(_take(queue, min(count * segment, size - first * segment)))
                self._leave(socket, pieces, count, now_s, repeats)
            if fitting < segments:
                socket.number += 1
                for first in range(fitting, segments):
                    pieces = list(_take(queue, min(segment, size - first * segment)))
                    socket.lost.append((socket.number, pieces))
                self._set_timer(now_s, socket.loss_probe_s, self._probe_for_loss, socket)
            elif once:
                return

    def _fitting(self, host: int, now_s: float, size: int, segments: int) -> int:
        """Segments of a packet for which there is room; one within the burst is not cut."""
        room = self._room(host, now_s)
        if size + segments * HEADER_BYTES <= self.shaped.burst_bytes:
            return segments if size + segments * HEADER_BYTES <= room else 0
        return max(0, min(segments, int(room // (self.shaped.segment_bytes + HEADER_BYTES))))

    def _leave(self, socket: Socket, pieces: Pieces, segments: int, now_s: float, repeats: bool) -> None:
        size = sum(each for _, each in pieces)
        socket.number += 1
        socket.in_shaper_bytes += size
        socket.repeats_in_flight += segments * repeats
        left_s = self._enqueue(socket.host, now_s, size + segments * HEADER_BYTES)
        self._at(left_s + ONE_WAY_S, self._arrive, socket, socket.number, pieces, segments, now_s, repeats)

    def _probe(self, now_s: float, socket: Socket) -> None:
        socket.waits = False
        if not socket.in_flight:
            self._send(socket, now_s, window=1.0)

    def _probe_for_loss(self, now_s: float, socket: Socket) -> None:
        if not socket.lost:
            return
        due_s = socket.last_s + socket.loss_probe_s
        if due_s > now_s + 1e-9:
            self._set_timer(now_s, due_s - now_s, self._probe_for_loss, socket)
            return
        pieces = socket.lost[-1][1]
        if self._room(socket.host, now_s) < sum(each for _, each in pieces) + HEADER_BYTES:
            self._set_timer(now_s, socket.timeout_s, self._probe_for_loss, socket)
            return
        socket.lost.pop()
        socket.last_s = now_s
        self._leave(socket, pieces, 1, now_s, True)
        if socket.lost:
            self._set_timer(now_s, socket.loss_probe_s, self._probe_for_loss, socket)
        else:
            socket.reduce()

    def _arrive(
        self,
        now_s: float,
        socket: Socket,
        packet: int,
        pieces: Pieces,
        segments: int,
        sent_s: float,
        repeats: bool,
    ) -> None:
        """A packet leaves the shaper and arrives; its acknowledgement waits in the receiver's shaper."""
        receiver = (socket.host + 1) % self.shaped.ranks
        acknowledged_s = self._enqueue(receiver, now_s, HEADER_BYTES) + ONE_WAY_S
        self._at(acknowledged_s, self._acknowledge, socket, packet, segments, sent_s, repeats)
        socket.in_shaper_bytes -= sum(each for _, each in pieces)
        self._send(socket, now_s)
        number = self._hosts[socket.host].index(socket.channel)
        channel = self._hosts[receiver][number]
        for slice_, size in pieces:
            channel.got[slice_] += size
        before = channel.received
        while (
            channel.received < len(self._slices)
            and channel.got[channel.received] >= self._slices[channel.received]
        ):
            channel.received += 1
        if channel.received > before:
            self._advance(now_s, channel, number)

    def _acknowledge(
        self, now_s: float, socket: Socket, packet: int, segments: int, sent_s: float, repeats: bool
    ) -> None:
        socket.in_flight -= segments
        socket.repeats_in_flight -= segments * repeats
        socket.last_s = now_s
        took_s = now_s - sent_s
        if socket.round_trip_s:
            socket.deviation_s += (abs(took_s - socket.round_trip_s) - socket.deviation_s) / 4
            socket.round_trip_s += (took_s - socket.round_trip_s) / 8
        else:
            socket.round_trip_s, socket.deviation_s = took_s, took_s / 2
        missed = [pieces for number, pieces in socket.lost if number < packet]
        if missed:
            socket.lost = [each for each in socket.lost if each[0] >= packet]
            socket.to_repeat.extend(piece for pieces in missed for piece in pieces)
            socket.in_flight -= len(missed)
            socket.reduce()
        if socket.reduces_until >= 0:
            self._reduce_further(socket, packet, segments)
        if socket.reduces_until < 0 and packet <= socket.limited_until:
            slow_start = socket.window < socket.threshold
            socket.window += segments if slow_start else GROWTH * segments / socket.window
        self._send(socket, now_s)

    def _reduce_further(self, socket: Socket, packet: int, segments: int) -> None:
        """Proportional rate reduction, RFC 6937, section 3 (slow start below the threshold)."""
        unrepaired = socket.lost or socket.to_repeat or socket.repeats_in_flight
        if packet >= socket.reduces_until and not unrepaired:
            socket.reduces_until, socket.window = -1, socket.threshold
            return
        socket.delivered += segments
        below = socket.threshold - socket.in_flight
        if below < 0:
            more = math.ceil(socket.threshold * socket.delivered / socket.window_before) - socket.sent
        else:
            more = int(min(below, max(socket.delivered - socket.sent, segments) + 1))
        socket.window = socket.in_flight + max(more, 0 if socket.sent else 1)


def _take(queue: deque[tuple[int, int]], size: int) -> Iterator[tuple[int, int]]:
    """Take the first ``size`` bytes out of a queue."""
    while size > 0:
        slice_, there = queue.popleft()
        if there > size:
            queue.appendleft((slice_, there - size))
        yield slice_, min(there, size)
        size -= there


def efficiency(shaped: Shaped, sizes: Sequence[int], mtu_bytes_per_s: float, seeds: int = 3) -> float:
    """Time of a bandwidth-optimal ring over that of the model, the mean over some seeds."""
    needed = sum(needed_s(size, shaped.ranks, mtu_bytes_per_s) for size in sizes)
    ratios = []
    for seed in range(seeds):
        ring = Ring(shaped, sizes, seed)
        ring.run()
        ratios.append(ring.seconds / needed)
    return 1 / statistics.mean(ratios)


def main() -> None:
    """The command."""
    cells: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for line in Path(sys.argv[1]).read_text().splitlines():
        row = json.loads(line)
        if row["place"] == "host" and row["congestion"] == "cubic":
            keys = ("ranks", "rate", "queue", "mtu", "channels", "sockets", "sizes", "burst")
            cells[tuple(row[key] for key in keys)].append(row)
    head = "| hosts | rate | queue | MTU | C x K | all-reduces | measured % (each) | model % | error % |"
    print(head, "| ---: | --- | --- | ---: | --- | --- | --- | ---: | ---: |", sep="\n")
    errors = []
    for (ranks, rate, queue, mtu, channels, sockets, sizes, burst), rows in sorted(cells.items(), key=str):
        measured = len(rows) / sum(1 / row["efficiency"] for row in rows)
        payload = payload_bytes_per_s(rate, mtu)
        raw = payload * (mtu + 14) / (mtu - 52)
        limit = raw * float(queue.removesuffix("ms")) / 1e3 + burst
        shaped = Shaped(raw, limit, burst, mtu - 52, ranks, channels, sockets)
        modelled = efficiency(shaped, sizes_of(sizes), payload)
        errors.append(modelled / measured - 1)
        each = [value for row in rows for value in row["each"]]
        spread = f"{100 * min(each):.0f} to {100 * max(each):.0f}"
        sizes = re.sub(r"(?<=,)\S*,", "...,", sizes)
        print(
            f"| {ranks} | {rate} | {queue} | {mtu} | {channels} x {sockets} | {sizes} | {100 * measured:.0f} "
            f"({spread}) | {100 * modelled:.0f} | {100 * errors[-1]:+.0f} |",
            flush=True,
        )
    mean, worst = statistics.mean(map(abs, errors)), max(errors, key=abs)
    print(f"\n{len(errors)} cells: {100 * mean:.1f} % off on average, worst {100 * worst:+.0f} %")


if __name__ == "__main__":
    main()
