"""How examples are spread over many workers."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.sim import seeds
from paceline.sim.workloads.partition import Partition, shards


@pytest.mark.parametrize(("workers", "alpha"), [(7, 0.1), (40, 0.01), (60, 1e-6)])
def test_who_gets_nothing_takes_an_example_of_the_first_of_the_largest(workers: int, alpha: float) -> None:
    labels = np.arange(64) % 4
    held: list[list[int]] = [[] for _ in range(workers)]
    rng = seeds.generator(3, seeds.SHARED, "partition")
    order = rng.permutation(64)
    for label in range(4):
        of_label = order[labels[order] == label]
        cuts = np.round(np.cumsum(rng.dirichlet(np.full(workers, alpha)))[:-1] * 16).astype(int)
        for worker, part in enumerate(np.split(of_label, cuts)):
            held[worker].extend(part.tolist())
    for shard in held:
        if not shard:
            shard.append(max(held, key=len).pop())
    drawn = shards(Partition(kind="dirichlet", alpha=alpha), 64, labels, workers, 3)
    assert [part.tolist() for part in drawn] == [sorted(shard) for shard in held]
