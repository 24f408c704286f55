"""The arithmetic of ``mix``, in one fixed order, so that every driver gets the same bits."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch

from ..devices import on_device
from .pattern import Pattern

Tensor = torch.Tensor


def weighted_sum(own: float, value: Tensor, weights: Sequence[float], others: Sequence[Tensor]) -> Tensor:
    """``own * value + weights[0] * others[0] + ...``, added from left to right."""
    total = value * _scalar(own, value.dtype)
    for weight, other in zip(weights, others, strict=True):
        total.add_(other, alpha=weight)
    return total


@lru_cache(maxsize=1024)
def _scalar(number: float, dtype: torch.dtype) -> Tensor:
    """A number as a tensor: torch multiplies by it twice as fast as by a Python float."""
    return torch.tensor(number, dtype=dtype)


@lru_cache(maxsize=256)
def _slots(
    pattern: Pattern, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """Own weights [n, 1] and, for the k-th source of every worker, its rank [n] and weight [n, 1].

    Workers with fewer sources are filled up with weight 0 on themselves.
    """
    own = _column(pattern.own, dtype, device)
    slots = []
    for k in range(max((len(row) for row in pattern.sources), default=0)):
        rank = [row[k] if k < len(row) else i for i, row in enumerate(pattern.sources)]
        weight = [row[k] if k < len(row) else 0.0 for row in pattern.weights]
        slots.append((on_device(torch.tensor(rank), device), _column(weight, dtype, device)))
    return own, slots


def _column(values: Sequence[float], dtype: torch.dtype, device: torch.device) -> Tensor:
    return on_device(torch.tensor(values, dtype=dtype).unsqueeze(1), device)


def weighted_sum_stacked(pattern: Pattern, values: Tensor) -> Tensor:
    """``W @ values`` for values [n, d], in the order of ``weighted_sum``: the same bits.

    ``add_`` with a scalar and ``addcmul_`` with a column both round once, after multiply and add.
    """
    own, slots = _slots(pattern, values.dtype, values.device)
    total = values * own
    for rank, weight in slots:
        total.addcmul_(values[rank], weight)
    return total
