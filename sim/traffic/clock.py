"""Virtual time: SimPy's event queue, with alarms at absolute times.

SimPy schedules by delay, and ``now + (t - now)`` is not ``t`` in floating point; alarms enter its queue at
the exact time, so that hand-computed times can be tested with ``==``. An alarm is a bare callback: a million
of them run per second, three times as many as SimPy's events.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

import numpy as np
import simpy

NORMAL = 1
LATE = 2
"""Priority after all NORMAL alarms of the same instant, so that rates are solved once per instant."""


class Clock(simpy.Environment):
    """A SimPy environment with alarms.

    Args:
        permute_seed: None: simultaneous alarms go off in the order in which they were set. A number: in an
            order drawn from it, to show that conclusions do not depend on ties.

    Attributes:
        now: seconds since the run began.
    """

    now = 0.0  # SimPy's is a property: a call each time it is read

    def __init__(self, permute_seed: int | None = None) -> None:
        super().__init__(0.0)
        self._alarms: list[Any] = self._queue  # one list: alarms and SimPy's events, by time
        self._shuffle = None if permute_seed is None else np.random.Generator(np.random.Philox(permute_seed))

    def at(self, time_s: float, callback: Callable[[Any], None], value: Any, priority: int = NORMAL) -> None:
        """Call ``callback(value)`` at ``time_s``, which is not in the past."""
        tie = next(self._eid)
        if self._shuffle is not None:
            tie += int(self._shuffle.integers(1 << 40)) << 32
        heapq.heappush(self._alarms, (time_s, priority, tie, (callback, value)))

    def replay(self, start_s: float, begin: Callable[[], None]) -> None:
        """Go back to ``start_s``, ``begin`` there, and process what follows from it, before the present."""
        present_s, others = self.now, self._alarms.copy()
        self._alarms.clear()
        self.now = self._now = start_s
        begin()
        while self._alarms and self._alarms[0][0] < present_s:
            self.step()
        self.now = self._now = present_s
        self._alarms.extend(others)
        heapq.heapify(self._alarms)

    def step(self) -> None:
        """Process the next alarm or SimPy event; ``EmptySchedule``: nothing is left."""
        queue = self._alarms
        if queue and type(queue[0][3]) is tuple:
            self.now, _, _, (callback, value) = heapq.heappop(queue)
            self._now = self.now
            callback(value)
        else:
            self.now = queue[0][0] if queue else self.now
            super().step()
