"""Timing on this device: warmed up, repeated, and robust against disturbances."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

Timer = Callable[[Callable[[], object]], float]
"""Runs a callable once and returns its duration in seconds."""

WARM_UP_RUNS: Final = 5
"""Runs that do not count: caches, allocators and kernels that are compiled at first use."""
MIN_RUNS: Final = 20
MAX_RUNS: Final = 1000
ENOUGH_S: Final = 1.0
"""Total seconds after which ``MIN_RUNS`` are enough."""


def typical_times_s(runs: Sequence[Callable[[], object]], timer: Timer) -> list[float]:
    """Median durations: half of the measurements may be disturbed without moving them far.

    The runs are timed in turn: a temporary slowdown of the device touches all of them alike.
    """
    for run in runs:
        for _ in range(WARM_UP_RUNS):
            timer(run)
    taken: list[list[float]] = [[] for _ in runs]
    while not all(map(_enough, taken)):
        for run, times in zip(runs, taken, strict=True):
            if not _enough(times):
                times.append(timer(run))
    return [statistics.median(times) for times in taken]


def _enough(taken_s: Sequence[float]) -> bool:
    return len(taken_s) >= MIN_RUNS and (len(taken_s) >= MAX_RUNS or sum(taken_s) >= ENOUGH_S)


def device_name(device: torch.device) -> str:
    """A human-readable name of a device: a GPU's model, else the kind of the processor."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return platform.processor() or platform.machine()


def instant(device: torch.device) -> Any:
    """An event on a GPU, whose work outlives the call; the host's monotonic clock elsewhere."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def between_s(begin: Any, end: Any) -> float:
    """Seconds between two instants of a device."""
    if isinstance(begin, float):
        return float(end - begin)
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1000


def timer_of(device: torch.device) -> Timer:
    """A timer by the instants of a device."""

    def timer(run: Callable[[], object]) -> float:
        begin = instant(device)
        run()
        return between_s(begin, instant(device))

    return timer
