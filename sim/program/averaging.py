"""Results of collectives from all members' values: the same arithmetic under every clock."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from ..devices import to_device
from ..errors import SchemeError
from . import operations as ops
from .encoding import Encoded, Payload, decoded
from .groups import concatenate_shards, shard
from .pattern import Pattern

_OF_NUMPY: Final = (torch.float32, torch.float64)
COLLECTIVES = (
    ops.AllReduce,
    ops.ReduceScatter,
    ops.AllGatherShards,
    ops.AllGather,
    ops.Broadcast,
    ops.Barrier,
)
"""The operations in which all members of a group take part."""


def root_of(operation: ops.Broadcast, rank: int, members: Sequence[int]) -> int:
    """The root of a broadcast for worker ``rank``; ``SchemeError`` if it is not among the ``members``."""
    roots = operation.root
    root = int(roots[rank]) if isinstance(roots, Tensor) and roots.dim() else int(roots)
    if root not in members:
        raise SchemeError(
            f"worker {rank}: broadcast from worker {root}, which is not in the group {tuple(members)}"
        )
    return root


def combined(operation: ops.Operation[Any], inputs: Sequence[Any], members: Sequence[int]) -> Any:
    """The result of a collective (any member's) for the whole group, before each member takes its part.

    ``inputs`` are the values of ``members``, in the order of their ranks.
    """
    match operation:
        case ops.Broadcast():
            return decoded(inputs[members.index(root_of(operation, members[0], members))])
        case ops.AllGather():
            return torch.stack(tuple(inputs))
        case ops.AllGatherShards(length=length):
            return concatenate_shards([decoded(value) for value in inputs], length)
        case ops.Barrier():
            return None
        case ops.AllReduce() if ops.adds_in_half(operation):
            return mean_in_half(inputs)
        case _:
            return mean_model([decoded(value) for value in inputs])


def part(operation: ops.Operation[Any], result: Any, position: int, members: int) -> Any:
    """The part of the ``combined`` result for the member at ``position`` of its group."""
    if not isinstance(operation, ops.ReduceScatter):
        return result
    cut = isinstance(operation.value, Encoded)  # into shards, before encoding
    return result[..., position, :] if cut else shard(result, position, members)


def weighted_sum(own: float, value: Tensor, weights: Sequence[float], others: Sequence[Tensor]) -> Tensor:
    """``own * value + weights[0] * others[0] + ...``, added from left to right."""
    total = value * _scalar(own, value.dtype)
    for weight, other in zip(weights, others, strict=True):
        total.add_(other, alpha=weight)
    return total


def mix_values(operation: ops.Mix, rank: int, values: Iterable[Payload], *, trains: bool) -> Tensor:
    """A worker's result of a mix with the values of its sources; its own where nothing ``trains``."""
    own = decoded(operation.value)
    if not trains:
        return own
    pattern = operation.pattern
    return weighted_sum(pattern.own[rank], own, pattern.weights[rank], [decoded(value) for value in values])


@lru_cache(maxsize=1024)
def _scalar(number: float, dtype: torch.dtype) -> Tensor:
    """A number as a tensor: torch multiplies by it twice as fast as by a Python float."""
    return torch.tensor(number, dtype=dtype)


@lru_cache(maxsize=256)
def _slots(
    pattern: Pattern, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, list[tuple[Tensor, Tensor | float]]]:
    """Own weights [n, 1] and, for the k-th source of every worker, its rank [n] and weight [n, 1].

    Workers with fewer sources are padded with weight 0 on themselves. On a CPU, where each worker is the
    source of one worker and all weights are equal, instead: each one's receiver [n], and the weight.
    """
    own = _column(pattern.own, dtype, device)
    slots: list[tuple[Tensor, Tensor | float]] = []
    for k in range(max((len(row) for row in pattern.sources), default=0)):
        rank = [row[k] if k < len(row) else i for i, row in enumerate(pattern.sources)]
        weight = [row[k] if k < len(row) else 0.0 for row in pattern.weights]
        if device.type == "cpu" and len(set(weight)) == 1 and len(set(rank)) == len(rank):
            slots.append((torch.tensor(rank).argsort(), weight[0]))
        else:
            slots.append((to_device(torch.tensor(rank), device), _column(weight, dtype, device)))
    return own, slots


def _column(values: Sequence[float], dtype: torch.dtype, device: torch.device) -> Tensor:
    return to_device(torch.tensor(values, dtype=dtype).unsqueeze(1), device)


def weighted_sum_vectorised(pattern: Pattern, values: Tensor) -> Tensor:
    """``W @ values`` for values [n, d] of all workers, in the order of ``weighted_sum``: the same bits.

    ``add_`` with a scalar, ``index_add_`` with one and ``addcmul_`` with a column all round once, after
    multiply and add.
    """
    own, slots = _slots(pattern, values.dtype, values.device)
    total = values * own
    for ranks, weight in slots:
        if isinstance(weight, Tensor):
            total.addcmul_(values.index_select(0, ranks), weight)  # a fifth of the time of values[ranks]
        else:
            total.index_add_(0, ranks, values, alpha=weight)  # no copy of the values in between
    return total


def mean_model(values: Sequence[Tensor]) -> Tensor:
    """Mean of the workers' models, summed in rank order and in double precision."""
    total = values[0].to(torch.float64, copy=True)
    for value in values[1:]:
        total += value
    return (total / len(values)).to(values[0].dtype)


def mean_in_half(values: Sequence[Encoded]) -> Tensor:
    """Mean of values that are summed in transit in 16 bits, in rank order, and rounded at each addition.

    Each is divided by their number before, as by DistributedDataParallel's hooks (torch,
    distributed/algorithms/ddp_comm_hooks/default_hooks.py). A library sums in its own order: of n values v
    with a unit roundoff u (2^-8 of bfloat16, 2^-11 of half precision) two orders differ by
    2 (n - 1) u sum |v / n| at most, up to terms of u^2, and of two values by nothing.
    """
    halves = [share_in_half(value, len(values)) for value in values]
    total = halves[0]
    for each in halves[1:]:
        total = total + each
    return total.to(values[0].dtype)


def share_in_half(value: Encoded, members: int) -> Tensor:
    """A member's addend to the sum: its part of the mean, rounded to 16 bits."""
    assert value.half is not None
    return value.half / members


def mean_of_rows(values: Tensor) -> Tensor:
    """``mean_model`` of the rows of [n, ...]: the same bits, in a third of the time on a CPU.

    NumPy adds row to row too, but in pairs where a row is a single number.
    """
    as_rows = values.device.type == "cpu" and values.dtype in _OF_NUMPY and values.is_contiguous()
    if not as_rows or values[0].numel() < 2:
        return mean_model(values.unbind())
    total = np.add.reduce(values.detach().numpy(), axis=0, dtype=np.float64)
    return torch.from_numpy(total / len(values)).to(values.dtype)
