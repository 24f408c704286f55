"""Where a worker's time went, and the log of a run's events: alike under every driver's clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from .run import Event, TimeShare

LATE_NOTE: Final = "left_out"
"""Note of a step that ends an average: 1 where the worker's contribution was too late for it, else 0."""

SMALL_WEIGHT_NOTE: Final = "small_weight"
"""Note of a step after which a worker's push-sum weight is below 0.001."""


@dataclass(slots=True)
class EventLog:
    """The events of a run, up to a limit.

    Attributes:
        until_step: keep only what ended in a step below this one; None: everything.
        at_most: a log that would get longer than this keeps nothing; None: no limit.
    """

    until_step: int | None = None
    at_most: int | None = None
    events: list[Event] = field(default_factory=list)
    full: bool = False

    def add(self, event: Event) -> None:
        """Keep an event, if it is within the limits."""
        if self.full or (self.until_step is not None and event.step >= self.until_step):
            return
        self.events.append(event)
        if self.at_most is not None and len(self.events) > self.at_most:
            self.events.clear()
            self.full = True


@dataclass(slots=True)
class TimeBreakdown:
    """Time, bytes and events of one worker.

    The main coroutine's wall clock divides into *compute* (a gradient of this worker is running, or
    the coroutine itself is), *wait* (blocked until the last needed peer has started) and
    *communicate* (blocked after that). Communication hidden behind a running gradient is compute.
    ``operations`` are the names of what was begun, with ``ANY_SOURCE`` for a receive from anybody.
    ``averages`` is how many averages that leave out who is late were to have a contribution of this worker,
    ``left_out`` how many were made without it.
    """

    worker: int
    bytes_sent: int = 0
    steps: int = 0
    wait_s: float = 0.0
    communicate_s: float = 0.0
    ended_s: float | None = None
    operations: set[str] = field(default_factory=set)
    averages: int = 0
    left_out: int = 0
    _running: int = 0
    _since_s: float = 0.0
    _busy_s: float = 0.0

    def count(self, notes: Mapping[str, float]) -> None:
        """Take what is counted from the notes of a step."""
        if LATE_NOTE in notes:
            self.averages += 1
            self.left_out += bool(notes[LATE_NOTE])

    def computing(self, now_s: float) -> None:
        """A gradient of this worker starts."""
        if self._running == 0:
            self._since_s = now_s
        self._running += 1

    def computed(self, now_s: float) -> None:
        """A gradient of this worker has ended."""
        self._running -= 1
        if self._running == 0:
            self._busy_s += now_s - self._since_s

    def busy_s(self, now_s: float) -> float:
        """Seconds up to now in which at least one gradient ran."""
        return self._busy_s + (now_s - self._since_s if self._running else 0.0)

    def blocked(self, start_s: float, end_s: float, peer_s: float, busy_at_start_s: float) -> None:
        """The main coroutine was blocked on communication; ``busy_at_start_s`` is ``busy_s(start_s)``."""
        exposed = end_s - start_s
        if self._running or self._busy_s != busy_at_start_s:  # a gradient has run meanwhile
            exposed -= self.busy_s(end_s) - busy_at_start_s
        waited = peer_s - start_s
        if waited <= 0.0:
            self.communicate_s += exposed
        elif waited >= exposed:
            self.wait_s += exposed
        else:
            self.wait_s += waited
            self.communicate_s += exposed - waited

    def share(self, wall_s: float) -> TimeShare:
        """Where this worker's share of ``wall_s`` went; after its end it waited for the others."""
        idle = 0.0 if self.ended_s is None else max(wall_s - self.ended_s, 0.0)
        wait, communicate = self.wait_s + idle, self.communicate_s
        if wait + communicate > wall_s:  # a run that failed: blocked beyond the last that counts
            wait = max(wall_s - communicate, 0.0)
            communicate = min(communicate, wall_s)
        return TimeShare(compute=wall_s - wait - communicate, communicate=communicate, wait=wait)


def mean_share(breakdowns: Sequence[TimeBreakdown], until_s: float, wall_s: float) -> TimeShare:
    """Mean over workers of where the time went up to ``until_s``; the rest of ``wall_s`` is idle."""
    shares = [each.share(until_s) for each in breakdowns]
    n = len(shares)
    return TimeShare(
        compute=sum(s.compute for s in shares) / n,
        communicate=sum(s.communicate for s in shares) / n,
        wait=sum(s.wait for s in shares) / n,
        idle=wall_s - until_s,
    )
