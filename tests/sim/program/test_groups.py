"""Groups are partitions, shards join again, and draws are the same vectorised and single."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.sim.errors import SchemeError
from paceline.sim.program.groups import concatenate_shards, fault, members, partition, shard
from paceline.sim.program.worker import Worker
from paceline.sim.training.optimizer import NullOptimizer

laws = settings(derandomize=True, max_examples=60)


@pytest.mark.parametrize(
    ("groups", "wrong"),
    [
        (((0, 1), (2,)), "worker 3 is in no group"),
        (((0, 1), (1, 2, 3)), "worker 1 is in more than one group"),
        (((0, 1), (2, 3, 4)), "there is no worker 4; ranks go from 0 to 3"),
        (((0, 1, 2, 3), ()), "a group is empty"),
        (((3, 1), (2, 0)), ""),
    ],
)
def test_a_group_is_a_part_of_a_partition(groups: tuple[tuple[int, ...], ...], wrong: str) -> None:
    assert fault(groups, 4) == wrong
    if wrong:
        with pytest.raises(SchemeError, match=wrong):
            partition(groups, 4)
    else:
        assert partition(groups, 4) == ((1, 3), (0, 2))
        assert members(groups, 4, 2) == (0, 2)


@given(length=st.integers(1, 50), n=st.integers(1, 12))
@laws
def test_strips_are_equally_long_and_join_again(length: int, n: int) -> None:
    value = torch.arange(1.0, length + 1).repeat(2, 1)
    shards = [shard(value, position, n) for position in range(n)]
    assert {s.shape for s in shards} == {(2, -(-length // n))}
    assert torch.equal(concatenate_shards(shards, length), value)
    assert sum(s.sum().item() for s in shards) == value.sum().item()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_draws_are_the_same_for_one_and_for_all(dtype: torch.dtype) -> None:
    start = torch.zeros(3, dtype=dtype)
    every = Worker((0, 1, 2), 3, start.expand(3, -1), NullOptimizer(), seed=5)
    for draw in ("uniform", "normal"):
        together = getattr(every, draw)("noise", 7, (4, 2))
        assert (together.shape, together.dtype) == ((3, 4, 2), dtype)
        singles = [
            getattr(Worker((r,), 3, start, NullOptimizer(), seed=5), draw)("noise", 7, (4, 2))
            for r in range(3)
        ]
        assert torch.equal(together, torch.stack(singles))
        assert not torch.equal(singles[0], singles[1])
        assert not torch.equal(singles[0], getattr(every, draw)("noise", 8, (4, 2))[0])


def test_members_and_strips_of_a_worker() -> None:
    groups = ((0, 3), (1, 2))
    start = torch.arange(5.0)
    every = Worker(tuple(range(4)), 4, start.expand(4, -1), NullOptimizer(), seed=1)
    assert every.members(groups).tolist() == [[0, 3], [1, 2], [1, 2], [0, 3]]
    assert every.shard(every.start, groups).tolist() == [[0, 1, 2], [0, 1, 2], [3, 4, 0], [3, 4, 0]]
    one = Worker((2,), 4, start, NullOptimizer(), seed=1)
    assert one.members(groups).tolist() == [1, 2]
    assert one.shard(start, groups).tolist() == [3, 4, 0]
    assert one.members().tolist() == [0, 1, 2, 3]
