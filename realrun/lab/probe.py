"""A process that measures messages inside a host of a lab: ``python -m paceline.realrun.lab.probe``.

It receives messages on port 9000 and sends flows to order. A line of standard input is a JSON list of
simultaneous flows; standard output answers with a JSON list of their messages' (start, arrival), in seconds
of the machine's monotonic clock, which the hosts share. A message has arrived when its last byte was read.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

PORT = 9000
_SIZE, _TIME = struct.Struct("!Q"), struct.Struct("!d")


@dataclass(frozen=True, slots=True)
class ProbeFlow:
    """Messages to one host over one connection, each sent ``gap_s`` after the last one's receipt came back.

    The size includes 8 bytes of length; the first is sent at ``start_s`` of the monotonic clock.
    """

    to: str
    size_bytes: int
    count: int
    start_s: float
    gap_s: float = 0.0


def _run(flow: ProbeFlow) -> list[tuple[float, float]]:
    times: list[tuple[float, float]] = []
    with socket.create_connection((flow.to, PORT)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # The peer's window is 64 KB at most until it has acknowledged something.
        _send(connection, _SIZE.size)
        time.sleep(max(0.0, flow.start_s - time.monotonic()))
        for _ in range(flow.count):
            times.append(_send(connection, flow.size_bytes))
            time.sleep(flow.gap_s)
    return times


def _send(connection: socket.socket, size_bytes: int) -> tuple[float, float]:
    """Send one message and wait for its receipt; return its start and arrival."""
    message = _SIZE.pack(size_bytes - _SIZE.size) + bytes(size_bytes - _SIZE.size)
    start_s = time.monotonic()
    connection.sendall(message)
    receipt = connection.recv(_TIME.size, socket.MSG_WAITALL)
    return start_s, float(_TIME.unpack(receipt)[0])


def _serve(connection: socket.socket) -> None:
    buffer = memoryview(bytearray(1 << 18))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with connection, contextlib.suppress(ConnectionError):
        while head := connection.recv(_SIZE.size, socket.MSG_WAITALL):
            (left,) = _SIZE.unpack(head)
            while left:
                left -= connection.recv_into(buffer, min(left, len(buffer)))
            connection.sendall(_TIME.pack(time.monotonic()))


def _accept(server: socket.socket) -> None:
    while True:
        threading.Thread(target=_serve, args=server.accept()[:1], daemon=True).start()


def main() -> None:
    """Receive messages, and send the flows ordered until standard input ends."""
    server = socket.create_server(("", PORT))
    threading.Thread(target=_accept, args=(server,), daemon=True).start()
    sys.stdout.write("[]\n")
    sys.stdout.flush()
    for line in sys.stdin:
        flows = [ProbeFlow(**flow) for flow in json.loads(line)]
        with ThreadPoolExecutor(len(flows)) as pool:
            sys.stdout.write(json.dumps(list(pool.map(_run, flows))) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
