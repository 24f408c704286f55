"""Memory of the host."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="of glibc alone")
def test_freed_memory_is_kept_for_the_next_tensors() -> None:
    """In a process of its own: pages that the system has cleared again are counted as faults."""
    program = (
        "import resource, torch\n"
        "from paceline.sim.devices import keep_freed_memory\n"
        "def faults():\n"
        "    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "    for _ in range(8):\n"
        "        torch.ones(12_000_000)\n"
        "    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before\n"
        "first = faults()\n"
        "keep_freed_memory(1_000), print(faults())\n"
        "keep_freed_memory(48_000_000)\n"
        "print(first, min(faults() for _ in range(4)))  # the heap grows during the first ones\n"
    )
    printed = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    ).stdout
    small, before, after = map(int, printed.split())
    assert small > before / 2
    assert after < before / 10
