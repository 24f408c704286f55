"""Keep the processors awake while the lab runs.

A processor that has nothing to do is put to sleep, and waking it up costs tens of microseconds on hardware
and up to milliseconds on a virtual machine. In a lab that would be added to latencies at random, most of it
where the least is going on. Linux lets a process ask for less (power management quality of service).
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

SETTING = "cpu_dma_latency"
"""Under which the result is recorded."""

_DEVICE = Path("/dev/cpu_dma_latency")
_VALUE = struct.Struct("i")


def keep_awake(device: Path = _DEVICE) -> int:
    """Ask for the shortest way out of sleep until the file descriptor that is returned is closed.

    Returns:
        The descriptor, which closes with this process however that ends; -1 where the machine does not allow
        it or has nothing of the kind.
    """
    try:
        held = os.open(device, os.O_RDWR)
    except OSError:
        return -1
    try:
        os.write(held, _VALUE.pack(0))
    except OSError:
        os.close(held)
        return -1
    return held


def read_back(held: int) -> str:
    """What the kernel has now in microseconds, for the record; ``default`` without ``keep_awake``."""
    if held < 0:
        return "default"
    return f"{_VALUE.unpack(os.pread(held, _VALUE.size, 0))[0]} us"
