"""What a scenario needs of memory, reckoned before any of it is taken."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ..config.limits import MAX_WORKERS
from ..config.units import format_bytes
from ..errors import KeyedError
from ..scenario.entries import WorkloadEntry
from ..training.optimizer import OptimizerSettings
from ..workloads import find_task

_NUMBER_BYTES: Final = 4
_INDEX_BYTES: Final = 8
_BATCHES_AHEAD: Final = 16
"""Batches of a worker whose examples are chosen at once; see ``Batches``."""
_ORDERS: Final = 3
"""Orders of the examples that there are at once while they are spread over the workers."""
_WORKER_BYTES: Final = 20_000
"""Bytes of a simulated worker besides its model, roughly: coroutines, links, operations."""


def check_memory(workload: WorkloadEntry, workers: int, seed: int) -> None:
    """Refuse what does not fit into the memory that is free.

    Args:
        workload: what is trained.
        workers: how many of them this process computes for.
        seed: of the run.

    Raises:
        KeyedError: it needs more; the message has both amounts, and which part is the largest.
    """
    if workers > MAX_WORKERS:
        raise KeyedError(("cluster", "workers"), f"must be at most {MAX_WORKERS}, not {workers}")
    parts = estimate_bytes(workload, workers, seed)
    needed, free = sum(parts.values()), free_bytes()
    if needed > free:
        largest = max(parts, key=lambda part: parts[part])
        raise KeyedError(
            _KEYS[largest],
            f"{largest} need about {format_bytes(parts[largest])} of memory, all together "
            f"{format_bytes(needed)}, and {format_bytes(free)} are free",
        )


WORKERS: Final = "the workers"
MODELS: Final = "the workers' models"
EXAMPLES: Final = "the training examples"
BATCHES: Final = "the batches"
_KEYS: Final = {
    WORKERS: ("cluster", "workers"),
    MODELS: ("cluster", "workers"),
    EXAMPLES: ("workload", "task"),
    BATCHES: ("workload", "batch_size"),
}
"""Part of an estimate -> the key of the scenario that it follows from."""


def estimate_bytes(workload: WorkloadEntry, workers: int, seed: int) -> dict[str, float]:
    """Estimate the bytes that each part of a simulation takes; tasks whose size is unknown count as none."""
    clock = float(workers * _WORKER_BYTES)
    if workload.timing_only:
        return {WORKERS: clock}
    facts = find_task(workload.task).facts(workload.options, seed)
    copies = 2 + _moments(workload.optimizer)
    rows = workload.batch_size * (facts.example_numbers + 2 * facts.activations) * _NUMBER_BYTES
    each_example = facts.example_numbers * _NUMBER_BYTES + _ORDERS * _INDEX_BYTES
    return {
        WORKERS: clock,
        MODELS: float(workers * facts.num_parameters * _NUMBER_BYTES * copies),
        EXAMPLES: float(facts.num_examples * each_example),
        BATCHES: float(rows + workers * workload.batch_size * _BATCHES_AHEAD * _INDEX_BYTES),
    }


def _moments(optimizer: OptimizerSettings) -> int:
    return 2 if optimizer.lr is None else int(optimizer.momentum > 0)


def free_bytes() -> float:
    """The bytes that this process may still take: free memory, and the limits of its group and its own."""
    return min(_limits_bytes(), default=float("inf"))


def _limits_bytes() -> Iterator[float]:
    for path, key in ((Path("/proc/meminfo"), "MemAvailable:"), (Path("/sys/fs/cgroup/memory.max"), "")):
        try:
            words = next(line for line in path.read_text().splitlines() if line.startswith(key)).split()
            yield float(words[1]) * 1024 if key else float(words[0])
        except (OSError, ValueError, IndexError, StopIteration):  # another system, or no limit ("max")
            continue
    own, _ = resource.getrlimit(resource.RLIMIT_DATA)
    if own != resource.RLIM_INFINITY:
        yield float(own - _data_bytes())


def _data_bytes() -> int:
    """What counts towards this process's own limit already: torch alone takes some hundred megabytes."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[5])
    except (OSError, ValueError, IndexError):  # another system
        return 0
    return pages * resource.getpagesize()
