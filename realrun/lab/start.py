"""Announcements to the switch, as datagrams to addresses of no host: a run's start and seed, and a cut.

The processes of a machine share its monotonic clock, so the time in it is exact whatever its delay.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from typing import Final

from .namespaces import INTERFACE

_TO: Final = ("10.255.255.254", 9)
_CUT_TO: Final = ("10.255.255.253", 9)
_START: Final = struct.Struct("!dQ")
ADDRESS: Final = socket.inet_aton(_TO[0])
"""Destination of the datagram, as in an IP header."""
CUT_ADDRESS: Final = socket.inet_aton(_CUT_TO[0])
"""That of a cut."""
CONTENTS: Final = slice(28, 28 + _START.size)
"""Position of the contents of both in the IP packet."""


def in_lab() -> bool:
    """Whether this process is a worker inside a lab's host."""
    return os.environ.get("GLOO_SOCKET_IFNAME") == INTERFACE


def tell(zero_s: float, seed: int) -> None:
    """Announce the run's start on ``time.monotonic``, and its seed, to the switch of the surrounding lab."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        datagrams.sendto(_START.pack(zero_s, seed), _TO)


def tell_cut(lasts_s: float, group: int) -> None:
    """Have the lab's switch cut this host off, from now on, from all but those in the same ``group``."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        datagrams.sendto(_START.pack(time.monotonic() + lasts_s, group), _CUT_TO)


def parse(contents: bytes) -> tuple[float, int]:
    """Read the contents sent by ``tell``: the run's start and seed; or by ``tell_cut``: its end and group."""
    time_s, number = _START.unpack(contents)
    return float(time_s), int(number)
