"""Estimate of the memory for a scenario before any of it is taken; ``benchmarks/memory.py`` compares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ..config.units import format_bytes
from ..devices import free_bytes
from ..errors import KeyedError
from ..scenario.batches import batch_sizes
from ..scenario.entries import WorkloadEntry
from ..scenario.schema import Scenario
from ..training.snapshots import Keep, keep_rule
from ..workloads import find_task
from ..workloads.layers.layer_settings import FLOAT_BYTES
from ..workloads.partition import BATCH_BLOCK, EPOCH_BLOCK

_INDEX_BYTES: Final = 8
_ORDERS: Final = 3
"""Orders of the examples in memory at once while they are spread over the workers."""
_COPIES: Final = 7
"""Models of a worker in memory at once, roughly, besides its optimiser's: its own, gradients and
temporary values, and those for averaging and scoring.
"""
_WORKER_BYTES: Final = 20_000
"""Bytes of a simulated worker besides its model, roughly: coroutines, links, operations."""


def check_memory(scenario: Scenario) -> None:
    """Raise ``KeyedError``, with both amounts and the largest part, if a scenario exceeds free memory."""
    _refuse_more_than_free(estimate_bytes(scenario))


def check_task_memory(workload: WorkloadEntry, sizes: Sequence[int], seed: int) -> None:
    """Raise ``KeyedError`` as ``check_memory`` if a task exceeds free memory even for one worker, which has
    the largest of the batches."""
    _refuse_more_than_free(_training_bytes(workload, [max(sizes)], seed))


def _refuse_more_than_free(parts: dict[str, float]) -> None:
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
KEPT: Final = "the models that are kept between two scorings"
EXAMPLES: Final = "the training examples"
BATCHES: Final = "the batches"
_KEYS: Final = {
    WORKERS: ("cluster", "workers"),
    MODELS: ("cluster", "workers"),
    KEPT: ("evaluate",),
    EXAMPLES: ("workload", "task"),
    BATCHES: ("workload", "batch_size"),
}
"""Part of an estimate -> key of the scenario behind it."""


def estimate_bytes(scenario: Scenario) -> dict[str, float]:
    """Estimate the bytes of each part of a simulation; tasks of unknown size count as none."""
    workload, workers = scenario.workload, scenario.cluster.workers
    clock = {WORKERS: float(workers * _WORKER_BYTES)}
    if workload.timing_only:
        return clock
    facts = find_task(workload.task).facts(workload.options, scenario.seed)
    sizes = batch_sizes(workload, scenario.cluster, scenario.seed)
    parts = clock | _training_bytes(workload, sizes, scenario.seed)
    if scenario.stop.target is not None:  # else no step between two scorings is looked up
        model_bytes = facts.num_parameters * FLOAT_BYTES
        parts[KEPT] = float(workers * kept_rule(scenario, model_bytes).between * model_bytes)
    return parts


def _training_bytes(workload: WorkloadEntry, sizes: Sequence[int], seed: int) -> dict[str, float]:
    facts, workers = find_task(workload.task).facts(workload.options, seed), len(sizes)
    copies = _COPIES + workload.optimizer.num_moments
    drawn = max(workload.drawn_examples(sizes))
    rows = drawn // workload.drawn_batches * (facts.example_numbers + 2 * facts.activations) * FLOAT_BYTES
    each_example = facts.example_numbers * FLOAT_BYTES + _ORDERS * _INDEX_BYTES
    shard = facts.num_examples if workload.partition.kind == "replicated" else facts.num_examples // workers
    ahead = BATCH_BLOCK * drawn + max(EPOCH_BLOCK, shard)
    return {
        MODELS: float(workers * facts.num_parameters * FLOAT_BYTES * copies),
        EXAMPLES: float(facts.num_examples * each_example),
        BATCHES: float(rows + workers * ahead * _INDEX_BYTES),
    }


def kept_rule(scenario: Scenario, model_bytes: int) -> Keep:
    """Rule of ``evaluate.keep``; where that is left open, one by which all kept models fit into memory."""
    evaluate = scenario.evaluate
    if evaluate.keep is not None:
        return evaluate.kept
    return keep_rule(scenario.cluster.workers, model_bytes, scenario.stop.max_iterations, evaluate.every)
