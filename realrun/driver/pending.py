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
    compute: Callable[[], None] | None = None  # a gradient, where that has not begun
    computed = False  # a gradient's value is there
    padded = False  # a gradient's duration in the compute model has passed
    parts: dict[int, Tensor]  # of a gradient, by where they begin: segments that are known
    on_part: Callable[[], None] | None = None  # somebody waits for one of them, or for the whole
    result: Callable[[], Any] | None = None  # once an exchange is complete: what it has brought
