"""Virtual time: SimPy's event queue with alarms at absolute times, and how late workers notice them.

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

from .. import seeds
from ..network.transport import TransferModel

NORMAL = 1
LATE = 2
"""Priority after all NORMAL alarms of the same instant, so that rates are solved once per instant."""


class Clock(simpy.Environment):
    """A SimPy environment with alarms.

    Args:
        start_s: the time at first.
        permute_seed: None: simultaneous alarms go off in the order in which they were set. A number: in an
            order drawn from it, to show that conclusions do not depend on ties.

    Attributes:
        now: seconds since the run began.
    """

    now = 0.0  # SimPy's is a property: a call each time it is read

    def __init__(self, permute_seed: int | None = None, start_s: float = 0.0) -> None:
        super().__init__(start_s)
        self.now = start_s
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


class WakeUpDelays:
    """Delays from an event until its coroutine resumes: its timer, its helper threads, the code around it.

    Constant, or drawn from measured values with the transfer model's seed; there are none without a profile.

    Attributes:
        staggered: whether workers begin apart, each at its ``after_gradient_s`` of gradient 0.
        none_after_exchanges: whether ``after_exchange_s`` is always 0.
    """

    def __init__(self, transfer: TransferModel, workers: int) -> None:
        self._seed = transfer.seed
        self._resume_s, self._jitter_s = transfer.resume_s, transfer.resume_jitter_s
        self._late_s, self._delays_s = transfer.late_s, transfer.wake_up_delays_s
        self._exchanges = [0] * workers
        self.staggered = bool(transfer.wake_up_delays_s)
        self.none_after_exchanges = not transfer.resume_s and not transfer.resume_jitter_s

    def after_exchange_s(self, rank: int) -> float:
        """Seconds from the end of a worker's next exchange until its coroutine resumes."""
        known = self._jitter_s
        if not known:
            return self._resume_s
        number = self._exchanges[rank]
        self._exchanges[rank] = number + 1
        drawn = known[seeds.integer(self._seed, rank, "unevenness", number, len(known))]
        return max(0.0, self._resume_s + drawn)

    def after_gradient_s(self, rank: int, number: int) -> float:
        """Seconds by which the end of a worker's gradient ``number`` (from 1) is noticed late."""
        known = self._delays_s
        if not known:
            return self._late_s
        first = seeds.integer(self._seed, rank, "lateness", 0, len(known))
        return known[(first + number) % len(known)]
