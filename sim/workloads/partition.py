"""Which worker holds which training examples, and which of them are in a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from sim import seeds
from sim.errors import InputError
from sim.settings import Settings

Indices = NDArray[np.int64]


class Partition(Settings):
    """How the training examples are spread over the workers."""

    kind: Literal["iid", "dirichlet", "by_label"] = Field(
        default="iid", description="iid, dirichlet (label shares), or by_label (sorted, then cut)"
    )
    alpha: float = Field(
        default=0.5, gt=0, allow_inf_nan=False, description="dirichlet: small values give unequal label shares"
    )


def shards(
    partition: Partition, num_examples: int, labels: Indices | None, workers: int, seed: int
) -> tuple[Indices, ...]:
    """The examples of each worker: disjoint, all of them, none empty.

    ``dirichlet``: for each class the workers' shares are drawn from Dirichlet(alpha), as in Hsu et al.,
    2019 (arXiv 1909.06335); a worker that would get nothing takes one example from the largest shard.

    Raises:
        InputError: more workers than examples, or a task without labels.
    """
    if workers > num_examples:
        raise InputError(f"{workers} workers need at least as many training examples, there are {num_examples}")
    rng = seeds.generator(seed, seeds.SHARED, "partition")
    order = rng.permutation(num_examples)
    if partition.kind == "iid":
        return tuple(np.sort(part) for part in np.array_split(order, workers))
    if labels is None:
        raise InputError(f"partition {partition.kind} needs a task with labels; choose iid")
    if partition.kind == "by_label":
        by_label = order[np.argsort(labels[order], kind="stable")]
        return tuple(np.sort(part) for part in np.array_split(by_label, workers))
    held: list[list[int]] = [[] for _ in range(workers)]
    for label in np.unique(labels):
        members = order[labels[order] == label]
        share = rng.dirichlet(np.full(workers, partition.alpha))
        cuts = np.round(np.cumsum(share)[:-1] * len(members)).astype(int)
        for worker, part in enumerate(np.split(members, cuts)):
            held[worker].extend(part.tolist())
    for shard in held:
        if not shard:
            shard.append(max(held, key=len).pop())
    return tuple(np.sort(np.array(shard, dtype=np.int64)) for shard in held)


@dataclass(frozen=True)
class Batches:
    """Batch ``index`` of a worker, as a pure function.

    Batches run on across reshuffled epochs, so that their size is constant even where a shard is
    smaller than a batch.
    """

    shards: Sequence[Indices]
    batch_size: int
    seed: int
    _epochs: dict[int, tuple[int, Indices]] = field(default_factory=dict, repr=False)

    def _epoch(self, worker: int, epoch: int) -> Indices:
        known = self._epochs.get(worker)
        if known is None or known[0] != epoch:
            rng = seeds.generator(self.seed, worker, "batches", epoch)
            known = self._epochs[worker] = (epoch, rng.permutation(self.shards[worker]))
        return known[1]

    def examples(self, worker: int, index: int) -> Indices:
        """Indices [batch_size] of the training examples in this batch."""
        size = len(self.shards[worker])
        first, last = index * self.batch_size, (index + 1) * self.batch_size
        parts = []
        while first < last:
            epoch, offset = divmod(first, size)
            take = min(size - offset, last - first)
            parts.append(self._epoch(worker, epoch)[offset : offset + take])
            first += take
        return parts[0] if len(parts) == 1 else np.concatenate(parts)
