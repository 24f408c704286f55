"""Virtual time: SimPy's event queue, with alarms at absolute times.

The only module, with ``event.py``, that imports simpy. SimPy schedules by delay, and ``now + (t - now)``
is not ``t`` in floating point; alarms go into its queue at the exact time instead, so that hand-computed
times can be tested with ``==``.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

import numpy as np
import simpy

NORMAL = 1
LATE = 2
"""Priority of what has to see everything else of its instant first."""


class Alarm(simpy.Event):  # type: ignore[misc]
    """Calls ``callback(value)`` when its time has come."""

    __slots__ = ("_value", "_ok", "_defused", "callbacks", "env")

    def __init__(self, clock: Clock, callback: Callable[[Any], None], value: Any) -> None:
        self.env = clock
        self.callbacks = [lambda _: callback(value)]
        self._ok = True
        self._value = None
        self._defused = False


class Clock(simpy.Environment):  # type: ignore[misc]
    """A SimPy environment with alarms.

    Args:
        permute_seed: None: simultaneous alarms go off in the order in which they were set. A number:
            in an order drawn from it, to show that conclusions do not rest on ties.
    """

    def __init__(self, permute_seed: int | None = None) -> None:
        super().__init__()
        self._shuffle = None if permute_seed is None else np.random.Generator(np.random.Philox(permute_seed))

    def at(self, time_s: float, callback: Callable[[Any], None], value: Any, priority: int = NORMAL) -> None:
        """Call ``callback(value)`` at ``time_s``, which is not in the past."""
        tie = next(self._eid)
        if self._shuffle is not None:
            tie += int(self._shuffle.integers(1 << 40)) << 32
        heapq.heappush(self._queue, (time_s, priority, tie, Alarm(self, callback, value)))
