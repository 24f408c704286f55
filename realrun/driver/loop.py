"""The event loop of a rank: pending calls, and alarms on the wall clock."""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TypeVar

Call = Callable[[], None]

_T = TypeVar("_T")


class Loop:
    """The calls and alarms of one rank, in one thread; ``zero_s``: the run's start, on ``time.monotonic``."""

    def __init__(self, zero_s: float) -> None:
        self.zero_s = zero_s
        self._ready: deque[Call] = deque()
        self._alarms: list[tuple[float, int, Call]] = []
        self._num_alarms = 0

    @property
    def now(self) -> float:
        """Seconds since the run began; negative before that."""
        return time.monotonic() - self.zero_s

    def soon(self, call: Call) -> None:
        """Queue a call behind those already waiting, and before all alarms."""
        self._ready.append(call)

    def at(self, time_s: float, callback: Callable[[_T], None], value: _T) -> None:
        """Call ``callback(value)`` at ``time_s``, or soon if that has passed."""
        if time_s <= self.now:
            self.soon(partial(callback, value))
        else:
            self.alarm(time_s, partial(callback, value))

    def alarm(self, time_s: float, call: Call) -> None:
        """Make a call at ``time_s`` or as soon after it as possible, in the order of due times."""
        self._num_alarms += 1
        heapq.heappush(self._alarms, (time_s, self._num_alarms, call))

    def postpone(self, by_s: float) -> None:
        """Put off all alarms."""
        self._alarms = [(time_s + by_s, number, call) for time_s, number, call in self._alarms]

    def ready(self) -> Call | None:
        """Pop the next call that does not wait for a time."""
        return self._ready.popleft() if self._ready else None

    def due(self, now_s: float) -> Call | None:
        """Pop the next alarm if it is due."""
        return heapq.heappop(self._alarms)[2] if self._alarms and self._alarms[0][0] <= now_s else None

    @property
    def next_s(self) -> float:
        """Time of the next alarm."""
        return self._alarms[0][0] if self._alarms else float("inf")
