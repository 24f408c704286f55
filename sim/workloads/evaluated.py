"""A gradient, with the loss that it came with."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

Tensor = torch.Tensor


class Evaluated(NamedTuple):
    """A gradient [..., d] and the loss [..., 1] on its batch, which it computes on the way."""

    value: Tensor
    loss: Tensor


Told = Callable[[int, int, Evaluated], None]
"""``told(start, stop, so_far)``: elements [start, stop) of the gradient ``so_far`` [d] are known now."""
