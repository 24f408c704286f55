"""Groups: a partition of the workers, each part of which runs its own collective."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from ..errors import SchemeError

Groups = tuple[tuple[int, ...], ...]
"""Groups of ranks, each rank in exactly one; their order inside a group does not matter."""


def fault(groups: Groups, workers: int) -> str:
    """The fault of ``groups`` as a partition of the ranks, in a sentence that names one of them, or "".

    >>> fault(((0, 1), (1, 2)), 4)
    'worker 1 is in more than one group'
    """
    counts = Counter(rank for group in groups for rank in group)
    foreign = sorted(rank for rank in counts if not 0 <= rank < workers)
    if foreign:
        return f"there is no worker {foreign[0]}; ranks go from 0 to {workers - 1}"
    for rank in range(workers):
        if counts[rank] != 1:
            return f"worker {rank} is in {'no' if counts[rank] == 0 else 'more than one'} group"
    return "" if all(groups) else "a group is empty"


@lru_cache(maxsize=256)
def partition(groups: Groups | None, workers: int) -> Groups:
    """The groups with their ranks ascending; None is one group of all. ``SchemeError``: no partition."""
    if groups is None:
        return (tuple(range(workers)),)
    problem = fault(groups, workers)
    if problem:
        raise SchemeError(f"groups {groups} are no partition of {workers} workers: {problem}")
    return tuple(tuple(sorted(group)) for group in groups)


@lru_cache(maxsize=64)
def _group_of(groups: Groups | None, workers: int) -> dict[int, tuple[int, ...]]:
    return {rank: group for group in partition(groups, workers) for rank in group}


def members(groups: Groups | None, workers: int, rank: int) -> tuple[int, ...]:
    """The group of ``rank``, ascending; raises as ``partition``."""
    return _group_of(groups, workers)[rank]


def shard_length(length: int, members: int) -> int:
    """Elements of a shard, where ``length`` of them are divided among ``members``: rounded up."""
    return -(-length // members)


def shard(value: Tensor, position: int, members: int) -> Tensor:
    """Shard ``position`` of ``members``, padded with zeros: [..., d] becomes [..., ceil(d / members)]."""
    length = shard_length(value.shape[-1], members)
    elements = value[..., position * length : (position + 1) * length]
    missing = length - elements.shape[-1]
    return torch.nn.functional.pad(elements, (0, missing)) if missing else elements


def shards(value: Tensor, members: int) -> Tensor:
    """All shards of a value, padded with zeros: [..., d] becomes [..., members, ceil(d / members)]."""
    length = shard_length(value.shape[-1], members)
    wide = torch.nn.functional.pad(value, (0, members * length - value.shape[-1]))
    return wide.reshape(*value.shape[:-1], members, length)


def concatenate_shards(shards: Sequence[Tensor], length: int) -> Tensor:
    """The shards one after another, without the zeros at the end: [..., length]."""
    return torch.cat(tuple(shards), dim=-1)[..., :length]
