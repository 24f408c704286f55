"""Memory that this process may still allocate."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path


def free_bytes() -> float:
    """Bytes that this process may still allocate: free memory of the machine, up to its own limit."""
    own, _ = resource.getrlimit(resource.RLIMIT_DATA)
    free = free_for_all_bytes()
    if own == resource.RLIM_INFINITY:
        return free
    # Some is taken: torch alone takes some hundred megabytes.
    pages = int(Path("/proc/self/statm").read_text().split()[5])
    return min(free, max(0.0, float(own - pages * resource.getpagesize())))


def free_for_all_bytes() -> float:
    """Bytes left for this process and its children: free memory of the machine, within the cgroup's limit."""
    return min(_limits_bytes(), default=float("inf"))


def _limits_bytes() -> Iterator[float]:
    for path, key in ((Path("/proc/meminfo"), "MemAvailable:"), (Path("/sys/fs/cgroup/memory.max"), "")):
        try:
            words = next(line for line in path.read_text().splitlines() if line.startswith(key)).split()
            yield float(words[1]) * 1024 if key else float(words[0])
        except (OSError, ValueError, IndexError, StopIteration):  # another system, or no limit ("max")
            continue
