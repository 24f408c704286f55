"""An operation in flight on one rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from paceline.sim.drivers.tasks.runner import InFlight

from .rank_log import Exchange


class ClusterPending(InFlight):
    """An operation that takes time, from its start to its completion."""

    exchange = Exchange()
    compute: Callable[[], None] | None = None  # begins a gradient's computation, until it has begun
    computed = False  # the gradient's value is known
    padded = False  # the gradient's duration in the compute model has passed
    parts: dict[int, Tensor]  # known segments of a gradient, by first element
    on_part: Callable[[], None] | None = None  # a waiter for a segment or for the gradient
    result: Callable[[], Any] | None = None  # reply of a completed exchange
