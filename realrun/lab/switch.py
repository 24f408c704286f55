"""The switch of a lab's hosts: ``python -m paceline.realrun.lab.switch HOSTS tuned|JSON SOCKET``.

It makes the hosts, then reads packets from their TUN devices and writes each to its destination's when it is
due. All times are computed (``queues``, ``delays``) and do not depend on the loop's delays, except that a
packet that finds its flow idle begins when it is read. ``Statistics`` says how late releases were.

During a run latencies and bandwidths vary as its seed draws them for the simulator; before it they are
nominal. The run's first worker announces the start with a datagram (``start``), and a worker that is cut off
its cut: packets from and to its host that come then are dropped, so that TCP sends them again.

Standard input and output carry one JSON object a line: a plan, answered by ``{}``, or ``"statistics"``. The
switch ends with its standard input. SOCKET gets the namespaces: the user's if there is one, then the hosts'.

Sizes: a packet occupies a link for its IP length as the kernel hands it over, so one header for up to 64 KB
counts. A link's nominal bandwidth is thereby that of TCP payload, less 0.1 % for bulk data, as the simulator
takes it. On a wire of MTU 1,500 the headers (IP, TCP, time stamps) of the packets would take another 3.4 %.
"""

from __future__ import annotations

import contextlib
import gc
import json
import math
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from heapq import heappop, heappush

import numpy.random  # noqa: F401 - else numpy loads it at a run's first draw: 8 ms in which no packet is read

from paceline.sim.errors import InputError
from paceline.sim.network.network_settings import TcpSettings
from paceline.sim.network.variation import AddedLatencies, Factors, LinkChanges, bandwidth_changes

from . import kernel
from .kernel import INTERFACE, Host, address, make_host
from .protocol import ADDRESS, CONTENTS, CUT_ADDRESS, PLAN, Forwarding, Statistics, parse
from .queues import Fair, Fifo

HEADER_BYTES = 10  # virtio_net_hdr
_COMMANDS, _ANSWERS = 0, 1  # standard input and output
_HEAD_BYTES = HEADER_BYTES + 60 + 4  # plus the longest IP header, and ports
_LARGEST_BYTES = HEADER_BYTES + 65_536  # of a packet with its virtio header
_HELD_BYTES = 1 << 30  # memory for packets; further ones are dropped
_READS_PER_TURN = 16  # packets of one device, for fairness to the others
_COPIED_BYTES = 8192  # packets up to this size are copied out of their buffer
_BUFFERS = 512  # kept from the start

Data = bytes | memoryview
"""A packet with its virtio header; a large one is a view of a buffer that is reused once it is written."""


class Delay:
    """The way from one host to another: arithmetic on given times, with no clock and no device.

    A simulated message has one latency, and a message is many packets. So the packets of one *burst* share a
    factor: a packet with contents draws the host's next factor if no other such packet is in flight there,
    and keeps the current one otherwise. Mere acknowledgements take the nominal latency. Latencies added by
    links over time apply to every packet that comes then. Nothing overtakes on the way.

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


Packet = tuple[Delay, float, bool, int, Data]
"""The packet's way, latency, whether it has contents, the TUN device to write it to, and the packet."""


class Switch:
    """The loop and its state; ``run`` returns when standard input ends."""

    def __init__(self, hosts: Sequence[Host], real_time: bool) -> None:
        self._hosts, self._real_time = hosts, real_time
        self._unread = b""
        self._new_plan: Forwarding | None = None
        # Fresh memory costs more than reading into it, so buffers are kept, and touched before the first use.
        self._buffers = [bytearray(b"\1" * _LARGEST_BYTES) for _ in range(_BUFFERS)]
        self._due: list[tuple[float, int, int, Data]] = []
        self._number = 0
        self._held_bytes = 0
        self._cuts: dict[bytes, tuple[float, int]] = {}
        self._longest_turn_s: float
        self._poll = select.epoll()
        self._poll.register(_COMMANDS, select.EPOLLIN)
        for host in hosts:
            self._poll.register(host.tun, select.EPOLLIN)
        self._plan = Forwarding("fair", (), {})
        self._set_plan(self._plan)

    def run(self) -> None:
        """Forward packets until standard input ends."""
        monotonic, poll = time.monotonic, self._poll.poll
        waitable = [self._poll.fileno()]
        while True:
            next_s = min(self._queue.next_s(), self._due[0][0] if self._due else math.inf, self._change_s)
            wait_s = next_s - monotonic()
            if wait_s > 0:
                # select, because its time-out has microseconds where that of epoll has milliseconds.
                select.select(waitable, (), (), None if wait_s == math.inf else wait_s)
            now_s = monotonic()
            while self._change_s <= now_s:
                self._change_bandwidths()
            self._queue.advance(now_s)
            self._now_s = now_s
            for descriptor, _ in poll(0):
                if descriptor != _COMMANDS:
                    self._read(descriptor, now_s)
                elif not self._obey():
                    return
            self._write()
            if self._new_plan and not self._due and self._queue.next_s() == math.inf:
                self._set_plan(self._new_plan)
                self._new_plan = None
                _answer({})
            self._longest_turn_s = max(self._longest_turn_s, monotonic() - now_s)

    def _set_plan(self, plan: Forwarding) -> None:
        paths = [path for path, _ in plan.routes.values()]
        discipline = Fifo[Packet] if plan.queue == "fifo" else Fair[Packet]
        self._queue = discipline(plan.bandwidth_bytes_per_s, paths, self._leave)
        if "token_bucket" in (plan.queue, self._plan.queue):
            for number, host in enumerate(self._hosts):
                kernel.setns(host.namespace, kernel.CLONE_NEWNET)
                kernel.shape(INTERFACE, plan.shaped_bytes_per_s(number))
        self._plan = plan
        self._factors: Factors | None = None
        self._changes: LinkChanges | None = None
        self._added: AddedLatencies | None = None
        self._change_s = math.inf
        self._zero_s = self._now_s = -math.inf
        self._routes = {
            socket.inet_aton(address(a)) + socket.inet_aton(address(b)): (
                path,
                Delay(
                    latency_s,
                    partial(self._factor, a) if plan.jitter else None,
                    partial(self._added_s, path.links) if plan.adds_latency else None,
                ),
                self._hosts[b].tun,
            )
            for (a, b), (path, latency_s) in plan.routes.items()
        }
        self._packets = self._bytes = self._unroutable = self._drops = self._written = 0
        self._worst_lateness_s = self._total_lateness_s = self._longest_turn_s = 0.0
        self._device_drops = self._read_device_drops()
        self._since_s, self._since_cpu_s = time.monotonic(), time.process_time()

    def _start(self, zero_s: float, seed: int) -> None:
        """Begin a run: its latencies from now on, its bandwidths from ``zero_s`` on."""
        if self._plan.jitter is not None:
            self._factors = Factors(self._plan.jitter, len(self._hosts), seed)
        self._changes, self._zero_s = bandwidth_changes(self._plan.links, seed), zero_s
        self._added = AddedLatencies(self._plan.links)
        self._change_s = zero_s + self._changes.next_s

    def _factor(self, source: int) -> float:
        return 1.0 if self._factors is None else self._factors.draw(source)

    def _added_s(self, links: Sequence[int], now_s: float) -> float:
        return 0.0 if self._added is None else self._added.at_s(now_s - self._zero_s, links)

    def _change_bandwidths(self) -> None:
        # Only the links of ``Fair`` can change: ``plan_of`` refuses the others.
        assert self._changes is not None
        assert isinstance(self._queue, Fair)
        time_s = max(self._change_s, self._now_s)
        self._queue.advance(time_s)
        for link, bandwidth in self._changes.until(self._changes.next_s).items():
            self._queue.change(time_s, link, bandwidth)
        self._change_s = self._zero_s + self._changes.next_s

    def _read(self, tun: int, now_s: float) -> None:
        """Read the packets waiting at one device, up to a limit per turn."""
        for _ in range(_READS_PER_TURN):
            buffer = self._buffers.pop() if self._buffers else bytearray(_LARGEST_BYTES)
            try:
                length = os.readv(tun, (buffer,))
            except BlockingIOError:
                self._buffers.append(buffer)
                return
            head = bytes(buffer[:_HEAD_BYTES])
            size = length - HEADER_BYTES
            self._packets += 1
            self._bytes += size
            route = self._routes.get(head[22:30])
            if route is None or head[10] >> 4 != 4:
                self._buffers.append(buffer)
                if head[26:30] == ADDRESS:
                    self._start(*parse(head[HEADER_BYTES:][CONTENTS]))
                    return  # later packets are to be read with a later time
                if head[26:30] == CUT_ADDRESS:
                    self._cuts[head[22:26]] = parse(head[HEADER_BYTES:][CONTENTS])
                else:
                    self._unroutable += 1
                continue
            if self._cuts and self._cut_of(head[22:26], now_s) != self._cut_of(head[26:30], now_s):
                self._buffers.append(buffer)
                continue
            data: Data = memoryview(buffer)[:length]
            if length <= _COPIED_BYTES:
                data = bytes(data)
                self._buffers.append(buffer)
            if self._held_bytes + _room(data) > _HELD_BYTES:
                self._drops += 1
                continue
            self._held_bytes += _room(data)
            path, delay, out = route
            contents = self._plan.jitter is not None and _has_contents(head, size)
            packet = (delay, delay.enters(now_s, contents), contents, out, data)
            self._queue.arrive(now_s, _flow(head), path, size, packet)

    def _cut_of(self, host: bytes, now_s: float) -> int:
        until_s, group = self._cuts.get(host, (-math.inf, -1))
        return group if now_s < until_s else -1

    def _leave(self, time_s: float, packet: Packet) -> None:
        delay, latency_s, contents, out, data = packet
        self._number += 1
        heappush(self._due, (delay.arrives_s(time_s, latency_s, contents), self._number, out, data))

    def _write(self) -> None:
        due, monotonic = self._due, time.monotonic
        while due:
            lateness_s = monotonic() - due[0][0]
            if lateness_s < 0:
                return
            _, _, out, data = heappop(due)
            self._held_bytes -= _room(data)
            self._written += 1
            self._total_lateness_s += lateness_s
            self._worst_lateness_s = max(self._worst_lateness_s, lateness_s)
            try:
                os.write(out, data)
            except OSError:
                self._drops += 1
            if isinstance(data, memoryview):
                assert isinstance(data.obj, bytearray)
                self._buffers.append(data.obj)

    def _obey(self) -> bool:
        """Read commands; False when there will be no more."""
        chunk = os.read(_COMMANDS, 1 << 16)
        self._unread += chunk
        *lines, self._unread = self._unread.split(b"\n")
        for line in lines:
            if line == b'"statistics"':
                _answer(asdict(self._statistics()))
            else:
                self._new_plan = PLAN.validate_json(line)
        return bool(chunk)

    def _statistics(self) -> Statistics:
        elapsed_s = time.monotonic() - self._since_s
        return Statistics(
            packets=self._packets,
            bytes=self._bytes,
            unroutable=self._unroutable,
            drops=self._drops + self._read_device_drops() - self._device_drops,
            worst_lateness_s=self._worst_lateness_s,
            mean_lateness_s=self._total_lateness_s / max(1, self._written),
            longest_turn_s=self._longest_turn_s,
            cpu_share=(time.process_time() - self._since_cpu_s) / elapsed_s,
            real_time=self._real_time,
        )

    def _read_device_drops(self) -> int:
        drops = 0
        for host in self._hosts:
            kernel.setns(host.namespace, kernel.CLONE_NEWNET)
            drops += kernel.dropped_packets(INTERFACE)
        return drops


def _room(data: Data) -> int:
    """Memory of a packet in bytes: a large one keeps a whole buffer."""
    return len(data) if isinstance(data, bytes) else _LARGEST_BYTES


def _flow(data: bytes) -> bytes:
    """Key of one direction of a connection: addresses and ports; of a fragment, addresses only."""
    if data[16] & 0x3F or data[17]:
        return data[22:30]
    if data[10] == 0x45:
        return data[22:34]
    ports = HEADER_BYTES + 4 * (data[10] & 0x0F)
    return data[22:30] + data[ports : ports + 4]


def _has_contents(data: bytes, size: int) -> bool:
    """Whether a packet of ``size`` bytes is more than an acknowledgement."""
    ip = 4 * (data[10] & 0x0F)
    tcp = HEADER_BYTES + ip + 12
    if data[19] != socket.IPPROTO_TCP or data[16] & 0x3F or data[17] or tcp >= len(data):
        return True
    return size > ip + 4 * (data[tcp] >> 4)


def _answer(value: Mapping[str, object]) -> None:
    data = memoryview(json.dumps(value).encode() + b"\n")
    while data:
        data = data[os.write(_ANSWERS, data) :]


def _make_hosts(count: int, tcp: TcpSettings | None) -> tuple[list[Host], int | None]:
    """Make the hosts, in a new user namespace if need be; return it too."""
    user_namespace = None
    try:
        kernel.unshare(kernel.CLONE_NEWNET)
    except PermissionError:
        kernel.enter_user_namespace()
        user_namespace = os.open("/proc/self/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    return [make_host(host, tcp) for host in range(count)], user_namespace


def main(count: int, kind: str, namespaces: int) -> None:
    """Run the switch of ``count`` hosts.

    ``kind``: ``tuned``, or ``TcpSettings`` in JSON; ``namespaces``: the socket that gets them.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()  # packets form no cycles, and a collection would be a pause
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        tcp = None if kind == "tuned" else TcpSettings.model_validate_json(kind)
        hosts, user_namespace = _make_hosts(count, tcp)
    except (OSError, InputError) as error:
        _answer({"error": str(error)})
        return
    # Once more: joining a user namespace clears it.
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    kernel.prctl(kernel.PR_SET_TIMERSLACK, 1)  # prompt wake-ups, and real-time priority if it is granted
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    real_time = os.sched_getscheduler(0) == os.SCHED_RR
    _answer({"settings": [dict(host.settings) for host in hosts], "user": user_namespace is not None})
    with socket.socket(fileno=namespaces) as pipe:
        for namespace in [user_namespace, *(host.namespace for host in hosts)]:
            if namespace is not None:
                socket.send_fds(pipe, [b"."], [namespace])
    Switch(hosts, real_time).run()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
