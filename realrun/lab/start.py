"""Announcement of a run's start and seed to the switch: a datagram to an address of no host.

The processes of a machine share its monotonic clock, so the time in it is exact whatever its delay.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import Final

from .hosts import INTERFACE

_TO: Final = ("10.255.255.254", 9)
_START: Final = struct.Struct("!dQ")
ADDRESS: Final = socket.inet_aton(_TO[0])
"""Destination of the datagram, as in an IP header."""
CONTENTS: Final = slice(28, 28 + _START.size)
"""Position of its contents in the IP packet."""


def in_lab() -> bool:
    """Whether this process is a worker inside a lab's host."""
    return os.environ.get("GLOO_SOCKET_IFNAME") == INTERFACE


def tell(zero_s: float, seed: int) -> None:
    """Announce the run's start on ``time.monotonic``, and its seed, to the switch of the surrounding lab."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        datagrams.sendto(_START.pack(zero_s, seed), _TO)


def parse(contents: bytes) -> tuple[float, int]:
    """Read the contents sent by ``tell``: the run's start, and its seed."""
    zero_s, seed = _START.unpack(contents)
    return float(zero_s), int(seed)
