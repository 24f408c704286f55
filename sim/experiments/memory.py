"""What a scenario needs of memory, reckoned before any of it is taken."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ..config.limits import MAX_WORKERS
from ..config.units import format_bytes
from ..errors import InputError
from ..scenario.entries import WorkloadEntry
from ..training.optimizer import OptimizerSettings
from ..workloads import find_task

_NUMBER_BYTES: Final = 4
_INDEX_BYTES: Final = 8
_BATCHES_AHEAD: Final = 16
"""Batches of a worker whose examples are chosen at once; see ``Batches``."""
_WORKER_BYTES: Final = 20_000
"""Bytes of a simulated worker besides its model, roughly: coroutines, links, operations."""


def check_memory(workload: WorkloadEntry, workers: int, seed: int) -> None:
    """Refuse what does not fit into the memory that is free.

    Args:
        workload: what is trained.
        workers: how many of them this process computes for.
        seed: of the run.

    Raises:
        InputError: it needs more; the message has both amounts, and which part is the largest.
    """
    if workers > MAX_WORKERS:
        raise InputError(f"cluster.workers: must be at most {MAX_WORKERS}, not {workers}")
    parts = estimate_bytes(workload, workers, seed)
    needed, free = sum(parts.values()), free_bytes()
    if needed > free:
        largest = max(parts, key=lambda name: parts[name])
        raise InputError(
            f"workload: needs about {format_bytes(needed)} of memory, and {format_bytes(free)} are free; "
            f"most of it, {format_bytes(parts[largest])}, is for {largest}"
        )


def estimate_bytes(workload: WorkloadEntry, workers: int, seed: int) -> dict[str, float]:
    """Estimate the bytes that each part of a simulation takes; tasks whose size is unknown count as none."""
    clock = float(workers * _WORKER_BYTES)
    if workload.timing_only:
        return {"the workers (cluster.workers)": clock}
    facts = find_task(workload.task).facts(workload.options, seed)
    copies = 2 + _moments(workload.optimizer)
    rows = workload.batch_size * (facts.example_numbers + 2 * facts.activations) * _NUMBER_BYTES
    return {
        "the workers (cluster.workers)": clock,
        "the workers' models (cluster.workers, and the task's options)": float(
            workers * facts.num_parameters * _NUMBER_BYTES * copies
        ),
        "the training examples (the task's options)": float(
            facts.num_examples * facts.example_numbers * _NUMBER_BYTES
        ),
        "the batches (workload.batch_size)": float(
            rows + workers * workload.batch_size * _BATCHES_AHEAD * _INDEX_BYTES
        ),
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
        yield float(own)
