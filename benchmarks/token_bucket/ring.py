"""Rings of plain TCP sockets behind token buckets on one machine, in the way of NCCL's socket transport.

    sudo chrt -f 5 python -m benchmarks.token_bucket.ring 200mbit 5x50MB --channels 2 --sockets 16
    ... 50mbit 31MB,262kB --place behind         two all-reduces, the shaper one hop behind each host

Every rank is a process in a network namespace behind ``tbf rate RATE burst 32768 latency 50ms``. It needs
root, iproute2 and no GPU, and prints one JSON object. ``efficiency``: time of a bandwidth-optimal ring at the
shaper's payload rate over the measured time.

Source of the structure: NVIDIA/nccl at 5067397, ``src/transport/net.cc`` and ``net_socket.cc``,
``src/device/all_reduce.h`` (protocol Simple). A loop moves a chunk of at most 2 MiB for each rank of a
channel, in two slices; a slice crosses the channel's sockets in tasks of at least 64 KiB, in turn, after 4
bytes on a connection of their own that announce it; slices go one after the other, and four may be posted.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

CHUNK_BYTES: Final = 1 << 21
SLICES: Final = 2
"""Of a chunk."""
MIN_SLICE_BYTES: Final = 1 << 15
MIN_TASK_BYTES: Final = 1 << 16
POSTED: Final = 4
"""Slices posted at a time, sending and receiving."""
PORT: Final = 29_600
CORES: Final = os.cpu_count() or 1
COUNTERS: Final = {"retransmits": "RetransSegs", "timeouts": "TCPTimeouts", "loss_probes": "TCPLossProbes"}


@dataclass(frozen=True, slots=True)
class Turn:
    """What a channel does next: receive a slice, send one, or send what it has just received."""

    receives: int
    sends: int


def turns(size: int, ranks: int, channels: int) -> Iterator[Turn]:
    """Slices of one all-reduce on one channel, in bytes: loops of 2(n - 1) steps."""
    left = math.ceil(size / channels)
    while left > 0:
        chunk = min(CHUNK_BYTES, math.ceil(left / ranks))
        left -= chunk * ranks
        part = max(math.ceil(chunk / SLICES), MIN_SLICE_BYTES)
        slices = [min(part, chunk - at) for at in range(0, chunk, part)]
        for step in range(2 * ranks - 1):
            for each in slices:
                yield Turn(each * (step > 0), each * (step < 2 * ranks - 2))


BUFFER: Final = memoryview(bytearray(1 << 21))


@dataclass(slots=True, eq=False)
class Way:
    """A channel's connections to one neighbour, and the slices that cross them one after the other.

    The last connection announces a slice: the receiver reads no other before.
    """

    sends: bool
    sockets: list[socket.socket] = field(default_factory=list)
    slices: list[int] = field(default_factory=list)
    """Bytes of each slice of this all-reduce."""
    posted: int = 0
    through: int = 0
    next: int = 0
    """Socket of the next task."""
    tasks: dict[socket.socket, int] = field(default_factory=dict)
    """Bytes left of the slice that is under way, by socket."""
    announced: bool = False

    def move(self) -> None:
        """Send or receive what goes without waiting."""
        while self.through < self.posted:
            if not self.tasks and not self.announced:
                self.tasks = {self.sockets[-1]: 4}
            for each, left in list(self.tasks.items()):
                room = BUFFER[:left]
                try:
                    moved = each.send(room) if self.sends else each.recv_into(room)
                except BlockingIOError:
                    continue
                if moved < left:
                    self.tasks[each] = left - moved
                else:
                    del self.tasks[each]
            if self.tasks:
                return
            if not self.announced:
                self.divide(self.slices[self.through])
            else:
                self.through += 1
            self.announced = not self.announced

    def divide(self, size: int) -> None:
        """Give the announced slice to the sockets, in turn."""
        sockets = len(self.sockets) - 1
        task = max(MIN_TASK_BYTES, math.ceil(size / sockets))
        for at in range(0, size, task):
            self.tasks[self.sockets[self.next]] = min(task, size - at)
            self.next = (self.next + 1) % sockets


@dataclass(slots=True, eq=False)
class Channel:
    """What a channel has to do, in order, and how far it is."""

    turns: Sequence[Turn] = ()
    out: Way = field(default_factory=lambda: Way(True))
    into: Way = field(default_factory=lambda: Way(False))
    at: int = 0
    consumed: int = 0
    """Slices received that were added or copied."""

    def take_up(self, turns: Sequence[Turn]) -> None:
        """Begin an all-reduce."""
        self.turns, self.at, self.consumed = turns, 0, 0
        self.out.slices = [turn.sends for turn in turns if turn.sends]
        self.into.slices = [turn.receives for turn in turns if turn.receives]
        for way in (self.out, self.into):
            way.posted = way.through = 0

    def advance(self) -> None:
        """Do all that nothing holds up."""
        before = (-1, -1, -1)
        while before != (now := (self.at, self.out.through, self.into.through)):
            before = now
            self.into.posted = min(self.consumed + POSTED, len(self.into.slices))
            self.into.move()
            while self.at < len(self.turns):
                turn = self.turns[self.at]
                if turn.receives and self.consumed == self.into.through:
                    break
                if turn.sends and self.out.posted == self.out.through + POSTED:
                    break
                self.consumed += bool(turn.receives)
                self.out.posted += bool(turn.sends)
                self.at += 1
            self.out.move()

    @property
    def done(self) -> bool:
        """Whether everything is received, and handed to the kernel."""
        return self.at == len(self.turns) and self.out.through == self.out.posted


def run(channels: Sequence[Channel], poll: select.epoll, of_socket: Mapping[int, Channel]) -> None:
    """Go through all turns of all channels."""
    for channel in channels:
        channel.advance()
    while not all(channel.done for channel in channels):
        for channel in {of_socket[descriptor]: None for descriptor, _ in poll.poll()}:
            channel.advance()


def watch(channels: Sequence[Channel]) -> tuple[select.epoll, dict[int, Channel]]:
    """Have every change of a socket reported once; the channel of each."""
    poll = select.epoll()
    of_socket = {}
    for channel in channels:
        for each in (*channel.out.sockets, *channel.into.sockets):
            poll.register(each, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)
            of_socket[each.fileno()] = channel
    return poll, of_socket


def connect(rank: int, ranks: int, channels: Sequence[Channel], sockets: int, net: str, control: str) -> None:
    """Open all connections of the ring: ``sockets`` and the announcing one for each channel."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control.encode())
    listener.bind((f"{net}.{rank + 1}", PORT))
    listener.listen(1024)
    out: list[socket.socket] = []
    for _ in range(len(channels) * (sockets + 1)):
        while True:
            each = socket.socket()
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control.encode())
            try:
                each.connect((f"{net}.{(rank + 1) % ranks + 1}", PORT))
                break
            except ConnectionRefusedError:
                each.close()
                time.sleep(0.05)
        each.sendall(len(out).to_bytes(2, "big"))
        out.append(each)
    into: dict[int, socket.socket] = {}
    while len(into) < len(out):
        each, _ = listener.accept()
        into[int.from_bytes(each.recv(2, socket.MSG_WAITALL), "big")] = each
    for number, each in enumerate(out):
        channels[number // (sockets + 1)].out.sockets.append(each)
        channels[number // (sockets + 1)].into.sockets.append(into[number])
    for each in (*out, *into.values()):
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        each.setblocking(False)


def counters() -> dict[str, int]:
    """``COUNTERS`` of the kernel in this namespace."""
    values_of: dict[str, int] = {}
    for name in ("snmp", "netstat"):
        lines = Path("/proc/net", name).read_text().splitlines()
        for keys, values in zip(lines[::2], lines[1::2], strict=True):
            values_of |= dict(zip(keys.split()[1:], map(int, values.split()[1:]), strict=True))
    return {ours: values_of[theirs] for ours, theirs in COUNTERS.items()}


def be_rank(rank: int, given: argparse.Namespace) -> None:
    """In a namespace: run the all-reduces one after the other, and print seconds of each."""
    channels = [Channel() for _ in range(given.channels)]
    connect(rank, given.ranks, channels, given.sockets, given.net, given.congestion)
    poll, of_socket = watch(channels)
    taken = []
    for size in sizes_of(given.sizes):
        for channel in channels:
            channel.take_up(list(turns(size, given.ranks, given.channels)))
        begin_s = time.perf_counter()
        run(channels, poll, of_socket)
        taken.append(round(time.perf_counter() - begin_s, 4))
    sys.stdout.write(json.dumps({"seconds": taken, **counters()}) + "\n")


def sizes_of(text: str) -> list[int]:
    """Payloads in bytes: ``31MB``, ``262kB``; several separated by commas, ``5x31MB`` five times."""
    sizes = []
    for part in text.split(","):
        times, _, size = part.rpartition("x")
        unit = {"kB": 1e3, "MB": 1e6}[size[-2:]]
        sizes += [round(float(size[:-2]) * unit)] * int(times or 1)
    return sizes


def payload_bytes_per_s(rate: str, mtu: int) -> float:
    """Payload rate of a shaper, which counts Ethernet headers (14 bytes) too; TCP with time stamps."""
    unit = {"mbit": 1e6, "gbit": 1e9}[rate[-4:]]
    return float(rate[:-4]) * unit / 8 * (mtu - 52) / (mtu + 14)


def needed_s(size: int, ranks: int, bytes_per_s: float) -> float:
    """Seconds of a bandwidth-optimal ring: 2(n - 1)/n of the payload over every link."""
    return 2 * (ranks - 1) / ranks * size / bytes_per_s


def ip(command: str) -> None:
    """Run an ``ip`` command."""
    subprocess.run(["ip", *command.split()], check=True)


def lay_out(given: argparse.Namespace) -> None:
    """A bridge, and a namespace behind a token bucket for each rank."""
    main = f"br{given.tag}"
    ip(f"link add {main} mtu {given.mtu} type bridge")
    ip(f"link set {main} up")
    for rank in range(given.ranks):
        space = f"{given.tag}r{rank}"
        ip(f"netns add {space}")
        ip(f"link add {space} mtu {given.mtu} type veth peer name e0 netns {space}")
        ip(f"-n {space} link set e0 mtu {given.mtu} up")
        # One processor receives what a host sends; else a shaper's timer and its sender reorder packets.
        Path(f"/sys/class/net/{space}/queues/rx-0/rps_cpus").write_text(f"{1 << rank % CORES:x}")
        ip(f"-n {space} addr add {given.net}.{rank + 1}/24 dev e0")
        ports = [(space, main)]
        if given.place == "behind":
            ip(f"link add b{space} mtu {given.mtu} type bridge")
            ip(f"link set b{space} up")
            ip(f"link add p{space} mtu {given.mtu} type veth peer name q{space} mtu {given.mtu}")
            ports = [(space, f"b{space}"), (f"p{space}", f"b{space}"), (f"q{space}", main)]
        for port, bridge in ports:
            ip(f"link set {port} master {bridge} mtu {given.mtu} up")
        bucket = f"root tbf rate {given.rate} burst {given.burst} latency {given.queue}"
        subprocess.run(["tc", *shaped(given, rank, "qdisc add"), *bucket.split()], check=True)


def shaped(given: argparse.Namespace, rank: int, what: str) -> list[str]:
    """Arguments of ``tc`` for the device that a rank's shaper is on."""
    space = f"{given.tag}r{rank}"
    where = ["-n", space] if given.place == "host" else []
    return [*where, *what.split(), "dev", "e0" if given.place == "host" else f"p{space}"]


def drops(given: argparse.Namespace) -> int:
    """Packets that the shapers dropped; one of the host's own may stand for several segments."""
    total = 0
    for rank in range(given.ranks):
        shown = subprocess.check_output(["tc", *shaped(given, rank, "-s -j qdisc show")])
        total += sum(each["drops"] for each in json.loads(shown))
    return total


def clear(given: argparse.Namespace) -> None:
    """Take the namespaces and the bridges away."""
    gone = [f"link del br{given.tag}"]
    for rank in range(given.ranks):
        space = f"{given.tag}r{rank}"
        gone += [f"netns del {space}", f"link del b{space}", f"link del p{space}"]
    for command in gone:
        subprocess.run(["ip", *command.split()], check=False, stderr=subprocess.DEVNULL)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.token_bucket.ring", description=__doc__)
    parser.add_argument("rate", help="as tc reads it: 200mbit, 1gbit")
    parser.add_argument("sizes", help="payloads of the all-reduces")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--channels", type=int, default=2)
    parser.add_argument("--sockets", type=int, default=16, help="of a channel (NCCL on AWS: 16)")
    parser.add_argument("--mtu", type=int, default=9001)
    parser.add_argument("--burst", type=int, default=32768, help="bytes")
    parser.add_argument("--queue", default="50ms", help="longest wait in the shaper")
    parser.add_argument("--place", choices=["host", "behind"], default="host", help="of the shaper")
    parser.add_argument("--congestion", default="cubic")
    parser.add_argument("--tag", type=int, default=0, help="number of a run beside others")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.net = f"10.{90 + given.tag}.0"
    given.tag = f"s{given.tag}"
    return given


def main() -> int:
    """The command; returns the exit status."""
    given = arguments()
    if given.rank is not None:
        be_rank(given.rank, given)
        return 0
    own = [sys.executable, "-m", "benchmarks.token_bucket.ring", *sys.argv[1:], "--rank"]
    clear(given)
    try:
        lay_out(given)
        children = [
            subprocess.Popen(
                ["nsenter", f"--net=/run/netns/{given.tag}r{rank}", *own, str(rank)], stdout=subprocess.PIPE
            )
            for rank in range(given.ranks)
        ]
        answers = [json.loads(child.communicate()[0]) for child in children]
        rate = payload_bytes_per_s(given.rate, given.mtu)
        needed = [needed_s(size, given.ranks, rate) for size in sizes_of(given.sizes)]
        seconds = answers[0]["seconds"]
        row = {key: value for key, value in vars(given).items() if key not in ("rank", "net", "tag")}
        row["efficiency"] = round(sum(needed) / sum(seconds), 4)
        row["each"] = [round(a / b, 3) for a, b in zip(needed, seconds, strict=True)]
        row["drops"] = drops(given)
        row |= {name: sum(each[name] for each in answers) for name in COUNTERS}
        sys.stdout.write(json.dumps(row) + "\n")
        return 0
    finally:
        clear(given)


if __name__ == "__main__":
    sys.exit(main())
