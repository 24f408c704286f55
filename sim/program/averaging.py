"""What collectives return, given everybody's values: the same arithmetic under every clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..errors import SchemeError
from ..training.scoring import mean_model
from . import operations as ops
from .encoding import Encoded, decoded
from .strips import joined, strip

COLLECTIVES = (ops.AllReduce, ops.ReduceScatter, ops.GatherStrips, ops.AllGather, ops.Broadcast, ops.Barrier)
"""The operations in which all members of a group take part."""


def root_of(operation: ops.Broadcast, rank: int, members: Sequence[int]) -> int:
    """The root of a broadcast for the worker ``rank``.

    Raises:
        SchemeError: it is not one of the ``members`` of that worker's group.
    """
    root = operation.root
    found = int(root[rank]) if isinstance(root, torch.Tensor) and root.dim() else int(root)
    if found not in members:
        raise SchemeError(
            f"worker {rank}: broadcast from worker {found}, which is not in the group {tuple(members)}"
        )
    return found


def combined(operation: ops.Operation[Any], inputs: Sequence[Any], members: Sequence[int]) -> Any:
    """What a group's values come to, before each member takes its part of it.

    Args:
        operation: any member's, one of ``COLLECTIVES``.
        inputs: the members' values, in the order of their ranks.
        members: their ranks, ascending.
    """
    match operation:
        case ops.Broadcast():
            return decoded(inputs[members.index(root_of(operation, members[0], members))])
        case ops.AllGather():
            return torch.stack(tuple(inputs))
        case ops.GatherStrips(length=length):
            return joined([decoded(value) for value in inputs], length)
        case ops.Barrier():
            return None
        case _:
            return mean_model([decoded(value) for value in inputs])


def part(operation: ops.Operation[Any], result: Any, position: int, members: int) -> Any:
    """What the member at ``position`` of its group gets of ``combined``."""
    if not isinstance(operation, ops.ReduceScatter):
        return result
    cut = isinstance(operation.value, Encoded)  # into all strips, before they were encoded
    return result[..., position, :] if cut else strip(result, position, members)
