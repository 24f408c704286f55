"""The host's threads, free memory and random numbers, and copies to a device without a wait for its queue."""

from __future__ import annotations

import ctypes
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

_RANDOM: Final = threading.RLock()


@contextmanager
def torch_random(seed: int | None = None, device: torch.device | None = None) -> Iterator[None]:
    """Give this thread alone torch's random state, seeded if ``seed`` is given; restore it, a GPU's too."""
    with _RANDOM, torch.random.fork_rng(devices=[device] if device and device.type == "cuda" else []):
        if seed is not None:
            torch.manual_seed(seed)
        yield


@contextmanager
def one_thread() -> Iterator[None]:
    """torch with one thread, so that sums are added up in one order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4


_LARGE_BYTES: Final = 32 * 2**20


@cache
def keep_freed_memory(num_bytes: int) -> None:
    """Have glibc keep this process's freed tensors for the next ones, where a step's take ``num_bytes``.

    It gives tensors above 32 MiB back to the system at once, which then clears as many pages again at every
    step: two fifths of the processor time with a model of ten million parameters. Other C libraries are left
    as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if num_bytes >= _LARGE_BYTES and mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, -1)
        mallopt(_M_MMAP_MAX, 0)


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a host tensor to ``device``, through pinned memory: the host need not wait for queued work."""
    pinned = tensor.pin_memory() if device.type == "cuda" else tensor
    return pinned.to(device, non_blocking=True)


def constants(*tensors: Tensor) -> Callable[[torch.device], tuple[Tensor, ...]]:
    """A function that gives ``tensors`` on a device; they are moved there once."""

    @cache
    def on(device: torch.device) -> tuple[Tensor, ...]:
        return tuple(tensor.to(device) for tensor in tensors)

    return on


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
