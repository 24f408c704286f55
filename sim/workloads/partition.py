"""Partitions of the training examples over the workers, and their batches."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from .. import seeds
from ..config.limits import MAX_FACTOR
from ..config.problems import mistake
from ..config.settings import Settings
from ..errors import InputError

Indices = NDArray[np.int64]

BATCH_BLOCK = 16
"""Batches of a worker that are cut at once."""
EPOCH_BLOCK = 4096
"""Largest number of examples in jointly shuffled epochs, unless one epoch has more."""
MIN_ALPHA = 1e-6
"""Of a Dirichlet distribution: with less, its random numbers are 0 in double precision."""


class Partition(Settings):
    """Distribution of the training examples over the workers."""

    kind: Literal["iid", "dirichlet", "by_label", "by_source", "replicated"] = Field(
        default="iid",
        description="iid, dirichlet (label shares), by_label (sorted, then cut), by_source (whole sources, "
        "such as the books of a text), or replicated (all to each)",
    )
    alpha: float = Field(
        default=0.5,
        gt=0,
        le=MAX_FACTOR,
        description="dirichlet: small values give unequal label shares",
    )

    @field_validator("alpha")
    @classmethod
    def _check(cls, alpha: float) -> float:
        if alpha < MIN_ALPHA:
            raise mistake(f"must be at least {MIN_ALPHA:g}, not {alpha:g}; write by_label instead")
        return alpha


def shards(
    partition: Partition,
    num_examples: int,
    labels: Indices | None,
    workers: int,
    seed: int,
    sources: Indices | None = None,
) -> tuple[Indices, ...]:
    """The examples of each worker: disjoint, all of them, none empty; but ``replicated`` gives all to each.

    ``dirichlet``: for each class (source, without labels) the workers' shares are drawn from
    Dirichlet(alpha), as in Hsu et al., 2019 (arXiv 1909.06335); a worker with none takes one example from the
    largest shard. ``by_source``: the largest source first, each goes to the worker with the fewest examples
    so far, for every seed alike.
    Raises ``InputError`` for more workers than examples or sources, or a task without labels or sources.
    """
    if workers > num_examples:
        raise InputError(
            f"{workers} workers need at least as many training examples, there are {num_examples}"
        )
    if partition.kind == "replicated":
        return (np.arange(num_examples),) * workers
    if partition.kind == "by_source":
        return _whole_sources(sources, workers)
    rng = seeds.generator(seed, seeds.SHARED, "partition")
    order = rng.permutation(num_examples)
    if partition.kind == "iid":
        return tuple(np.sort(part) for part in np.array_split(order, workers))
    labels = sources if labels is None else labels
    if labels is None:
        raise InputError(f"partition {partition.kind} needs a task with labels or sources; choose iid")
    if partition.kind == "by_label":
        by_label = order[np.argsort(labels[order], kind="stable")]
        return tuple(np.sort(part) for part in np.array_split(by_label, workers))
    return _dirichlet(order, labels, workers, partition.alpha, rng)


def _dirichlet(
    order: Indices, labels: Indices, workers: int, alpha: float, rng: np.random.Generator
) -> tuple[Indices, ...]:
    held: list[list[int]] = [[] for _ in range(workers)]
    for label in np.unique(labels):
        members = order[labels[order] == label]
        share = rng.dirichlet(np.full(workers, alpha))
        cuts = np.round(np.cumsum(share)[:-1] * len(members)).astype(int)
        for worker, part in enumerate(np.split(members, cuts)):
            held[worker].extend(part.tolist())
    largest = [(-len(shard), worker) for worker, shard in enumerate(held)]  # a heap
    heapq.heapify(largest)
    for shard in held:
        if not shard:
            size, worker = largest[0]
            shard.append(held[worker].pop())
            heapq.heapreplace(largest, (size + 1, worker))
    return tuple(np.sort(np.array(shard, dtype=np.int64)) for shard in held)


def _whole_sources(sources: Indices | None, workers: int) -> tuple[Indices, ...]:
    if sources is None:
        raise InputError("partition by_source needs a task whose examples have sources; choose iid")
    numbers, sizes = np.unique(sources, return_counts=True)
    if workers > len(numbers):
        raise InputError(
            f"partition by_source: {workers} workers need as many sources, there are {len(numbers)}"
        )
    held = [(0, worker) for worker in range(workers)]  # a heap: examples so far, worker
    owner = np.empty(len(numbers), np.int64)
    for place in np.argsort(-sizes, kind="stable"):
        examples, worker = held[0]
        owner[place] = worker
        heapq.heapreplace(held, (examples + int(sizes[place]), worker))
    owners = owner[np.searchsorted(numbers, sources)]
    return tuple(np.flatnonzero(owners == worker) for worker in range(workers))


class _Blocks(threading.local):
    """Each thread's own: workers' block numbers [n] and batches [n, BATCH_BLOCK, batch_size], and the number
    and the examples of each worker's latest block of epochs.
    """

    def __init__(self, workers: int, batch_size: int) -> None:
        self.numbers: Indices = np.full(workers, -1)
        self.batches: Indices = np.empty((workers, BATCH_BLOCK, batch_size), np.int64)
        self.epochs: dict[int, tuple[int, Indices]] = {}


@dataclass(frozen=True)
class Batches:
    """Batch ``index`` of a worker, as a pure function.

    Batches run on across reshuffled epochs, so that their size is constant even where a shard is smaller.
    Epochs are shuffled, and batches cut, in blocks: a generator for each would cost more than a small model's
    gradient. Runs in several threads share the object, and each thread has its own blocks. With
    ``replacement`` each example is drawn from all of the shard. ``sizes`` are the workers' own, where these
    differ, and ``batch_size`` is the largest.
    """

    shards: Sequence[Indices]
    batch_size: int
    seed: int
    replacement: bool = False
    sizes: tuple[int, ...] = ()
    _blocks: _Blocks = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_blocks", _Blocks(len(self.shards), self.batch_size))

    @property
    def step_examples(self) -> int:
        """Examples of all workers' batches."""
        return sum(map(self.size_of, range(len(self.shards))))

    def size_of(self, worker: int) -> int:
        """Examples of a worker's batch."""
        return self.sizes[worker] if self.sizes else self.batch_size

    def in_parts(self, number: int) -> Batches:
        """Batches with the same examples, each cut into ``number`` equal parts."""
        sizes = tuple(size // number for size in self.sizes)
        return replace(self, batch_size=self.batch_size // number, sizes=sizes)

    def examples(self, worker: int, index: int) -> Indices:
        """Indices [batch_size], or the worker's own size, of the training examples in this batch."""
        number, offset = divmod(index, BATCH_BLOCK)
        if self._blocks.numbers[worker] != number:
            self._cut(worker, number)
        batch: Indices = self._blocks.batches[worker, offset, : self.size_of(worker)].copy()
        return batch

    def of_workers(self, workers: Sequence[int], indices: Sequence[int]) -> Indices:
        """Indices [m, batch_size] of the training examples in one batch of each of m workers."""
        cut, rows = self._blocks.numbers, np.array(workers)
        numbers, offsets = np.divmod(np.array(indices), BATCH_BLOCK)
        for k in np.flatnonzero(cut[rows] != numbers).tolist():
            self._cut(workers[k], int(numbers[k]))
        if (cut[rows] != numbers).any():  # a worker occurs twice, with two blocks
            return np.stack([self.examples(w, i) for w, i in zip(workers, indices, strict=True)])
        picked: Indices = self._blocks.batches[rows, offsets]
        return picked

    def _cut(self, worker: int, number: int) -> None:
        row = self._blocks.batches[worker, :, : self.size_of(worker)]
        length = row.size
        row[:] = self._sequence(worker, number * length, length).reshape(row.shape)
        self._blocks.numbers[worker] = number

    def _sequence(self, worker: int, first: int, length: int) -> Indices:
        """Places [first, first + length) of all epochs in a row."""
        block = max(1, EPOCH_BLOCK // len(self.shards[worker])) * len(self.shards[worker])
        last, parts = first + length, []
        while first < last:
            number, offset = divmod(first, block)
            take = min(block - offset, last - first)
            parts.append(self._epoch_block(worker, number)[offset : offset + take])
            first += take
        return np.concatenate(parts)

    def _epoch_block(self, worker: int, number: int) -> Indices:
        """Several epochs in a row: the shard, shuffled anew for each."""
        latest = self._blocks.epochs
        known = latest.get(worker)
        if known is None or known[0] != number:
            shard = self.shards[worker]
            epochs = np.tile(shard, (max(1, EPOCH_BLOCK // len(shard)), 1))
            rng = seeds.generator(self.seed, worker, "batches", number)
            drawn = rng.choice(shard, epochs.shape) if self.replacement else rng.permuted(epochs, axis=1)
            known = latest[worker] = (number, drawn.ravel())
        return known[1]
