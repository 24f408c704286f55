"""Accounting of a worker's time, and the log of a run's events, for every driver's clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Final, NamedTuple

import numpy as np

from .run import INSTANT, Counts, Event, Pace, TimeShare

LATE_NOTE: Final = "left_out"
"""Note of a step that ends an average: 1 where the worker's contribution came too late for it, else 0."""

SMALL_WEIGHT_NOTE: Final = "small_weight"
"""Note of a step after which a worker's push-sum weight is below 0.001."""


@dataclass(slots=True)
class EventLog:
    """Events of a run that ended before ``until_step``; a log of more than ``at_most`` is dropped whole."""

    until_step: int | None = None
    at_most: int | None = None
    events: list[Event] = field(default_factory=list)
    full: bool = False

    def add(self, event: Event) -> None:
        """Keep an event within the limits."""
        if self.full or (self.until_step is not None and event.step >= self.until_step):
            return
        self.events.append(event)
        if self.at_most is not None and len(self.events) > self.at_most:
            self.events.clear()
            self.full = True


@dataclass(slots=True)
class TimeBreakdown(Counts):
    """Counts and time of one worker.

    The main coroutine's wall clock divides into *compute* (a gradient of this worker is running, or
    the coroutine itself is), *wait* (blocked until the last needed peer has begun) and
    *communicate* (blocked after that). Communication hidden behind a running gradient is compute.
    ``down_s``: away, of a worker that fails and returns.
    """

    wait_s: float = 0.0
    communicate_s: float = 0.0
    down_s: float = 0.0
    ended_s: float | None = None
    _running: int = 0
    _since_s: float = 0.0
    _busy_s: float = 0.0

    def send(self, sends: Iterable[tuple[int, int]]) -> int:
        """Count an operation's bytes by destination; return their sum."""
        total, sent_to = 0, self.sent_to
        for destination, num_bytes in sends:
            total += num_bytes
            sent_to[destination] = sent_to.get(destination, 0) + num_bytes
        self.bytes_sent += total
        return total

    def publish(self, step: int, notes: Mapping[str, float]) -> None:
        """Count a published step, and what its notes say."""
        self.steps = step + 1
        if LATE_NOTE in notes:
            self.averages += 1
            self.left_out += bool(notes[LATE_NOTE])

    def computing(self, now_s: float) -> None:
        """Record that a gradient begins."""
        if self._running == 0:
            self._since_s = now_s
        self._running += 1

    def computed(self, now_s: float) -> None:
        """Record that a gradient has ended."""
        self._running -= 1
        if self._running == 0:
            self._busy_s += now_s - self._since_s

    def busy_s(self, now_s: float) -> float:
        """Seconds up to now with at least one gradient running."""
        return self._busy_s + (now_s - self._since_s if self._running else 0.0)

    def blocked(self, start_s: float, end_s: float, peer_s: float, busy_at_start_s: float) -> None:
        """Account for time blocked on communication; ``busy_at_start_s`` is ``busy_s(start_s)``."""
        exposed = end_s - start_s
        if self._running or self._busy_s != busy_at_start_s:  # a gradient ran meanwhile
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
        """Shares of this worker's ``wall_s``; after its end it waited for the others."""
        idle = 0.0 if self.ended_s is None else max(wall_s - self.ended_s, 0.0)
        wait, communicate, down = self.wait_s + idle, self.communicate_s, self.down_s
        if wait + communicate > wall_s:  # a failed run: blocked beyond the last step that counts
            wait = max(wall_s - communicate, 0.0)
            communicate = min(communicate, wall_s)
        compute = wall_s - wait - communicate - down
        return TimeShare(compute=compute, communicate=communicate, wait=wait, down=down)

    def add(self, part: TimeBreakdown, ranks: Sequence[int]) -> None:
        """Add a part of the run that went on with these counts, and in which worker k was ``ranks[k]``."""
        self.wait_s += part.wait_s
        self.communicate_s += part.communicate_s
        self.ended_s = part.ended_s
        self.send((ranks[place], num_bytes) for place, num_bytes in part.sent_to.items())
        self.go_on(replace(part, sent_to=self.sent_to))


def mean_share(breakdowns: Sequence[TimeBreakdown], until_s: float, wall_s: float) -> TimeShare:
    """Mean time shares over workers up to ``until_s``; the rest of ``wall_s`` is idle."""
    shares = [each.share(until_s) for each in breakdowns]
    parts = (each.name for each in fields(TimeShare))
    means = {part: sum(getattr(share, part) for share in shares) / len(shares) for part in parts}
    return replace(TimeShare(**means), idle=wall_s - until_s)


class Done(NamedTuple):
    """Progress of a worker when it published a step."""

    time_s: float = 0.0
    steps: float = 0.0
    averages: float = 0.0
    bytes_sent: float = 0.0

    def towards(self, later: Done, time_s: float) -> Done:
        """Progress at a moment before ``later``, in proportion."""
        part = (time_s - self.time_s) / (later.time_s - self.time_s)
        return Done(time_s, *(a + part * (b - a) for a, b in zip(self[1:], later[1:], strict=True)))


_MOST_ENDS: Final = 32
"""Most ends of cycles within which they are seen to repeat."""
_ALIKE: Final = 1e-12
"""Difference of times seen as rounding, as a share of the clock."""


@dataclass(slots=True)
class _Mark:
    time_s: float
    done: list[Done | None]
    lacking: int


class PaceMarks:
    """Marks the end of every ``cycle`` steps: of all workers where they keep step, else of the first.

    At a mark of the first, the others are within a step; the part that has passed counts.
    """

    def __init__(self, workers: int, cycle: int, in_step: bool) -> None:
        self.workers, self.cycle, self.in_step = workers, cycle, in_step
        self._latest = [Done()] * workers
        self._marks = [_Mark(0.0, [*self._latest], 0)]
        self._next = [1] * workers
        self._lost: set[int] = set()
        self._known = self._period = 0

    @property
    def complete(self) -> int:
        """Number of ended cycles."""
        return len(self._marks) - 1 - (self.in_step and self._marks[-1].lacking > 0)

    def is_known(self, number: int) -> bool:
        """Whether the end of cycle ``number`` is fully known."""
        return self._period > 0 or (number < len(self._marks) and not self._marks[number].lacking)

    def repeat(self) -> bool:
        """Whether the known ends repeat themselves, so that ``at`` has all further ones; for workers in step.

        That is where all workers came the same time later, with the same bytes, than a period before: at as
        many ends in a row as the period has cycles, and at two more.
        """
        while not self._period and self._known < _MOST_ENDS and self.is_known(self._known + 1):
            self._known += 1
            for period in range(1, (self._known + 1) // 2):
                marks = self._marks[self._known - 2 * period - 1 : self._known + 1]
                ends = np.array([each.done for each in marks], np.float64)  # [end, worker, of ``Done``]
                grown = ends[period:] - ends[:-period]
                if np.ptp(grown[..., 0]) <= _ALIKE * ends[-1, 0, 0] and not np.ptp(grown[..., 1:], 0).any():
                    self._period = self._period or period
        return self._period > 0

    def seen(self, first: int, last: int) -> tuple[int, int]:
        """These ends of cycles, or those of the last period where they repeat and were not all waited for."""
        if self._period and last > self._known:
            return self._known - self._period, self._known
        return first, last

    def begin(self, rank: int, bytes_sent: int) -> None:
        """Record what a worker has sent before the first step that counts here."""
        self._latest[rank] = Done(bytes_sent=bytes_sent)

    def lose(self, rank: int) -> None:
        """Record the death of a worker."""
        self._lost.add(rank)

    def publish(self, rank: int, step: int, time_s: float, bytes_sent: int) -> tuple[Done, Done]:
        """A worker's progress before this step and with it. Called in the order of time."""
        before = self._latest[rank]
        averages = before.averages + (bytes_sent > before.bytes_sent)
        now = self._latest[rank] = Done(time_s, step + 1.0, averages, bytes_sent)
        cycles, rest = divmod(step + 1, self.cycle)
        if not rest:
            while len(self._marks) <= cycles:
                self._marks.append(_Mark(time_s, [None] * self.workers, self.workers))
            if self.in_step:
                mark = self._marks[cycles]
                mark.time_s = max(mark.time_s, time_s)
                self._enter(mark, rank, now)
        for mark in () if self.in_step else self._marks[self._next[rank] :]:
            if mark.time_s > time_s:
                break
            at_once = time_s * (1 - INSTANT) <= mark.time_s
            self._enter(mark, rank, now if at_once else before.towards(now, mark.time_s))
            self._next[rank] += 1
        return before, now

    def _enter(self, mark: _Mark, rank: int, done: Done) -> None:
        mark.lacking -= mark.done[rank] is None
        mark.done[rank] = done

    def at(self, number: int) -> Pace:
        """Pace up to the end of cycle ``number``; steps without a seen end do not count."""
        if self._period and number > self._known:
            times = -((self._known - number) // self._period)  # rounded up
            base, before, now = (
                np.array(self._marks[each].done, np.float64)
                for each in (number - times * self._period, self._known - self._period, self._known)
            )
            done = [Done(*each) for each in (base + times * (now - before)).tolist()]
            return self._pace(max(each.time_s for each in done), done)
        mark = self._marks[number]
        done = [each or latest for each, latest in zip(mark.done, self._latest, strict=True)]
        return self._pace(mark.time_s, done)

    def last(self) -> Pace:
        """Pace up to the end of the last cycle, or up to the last step where none has ended."""
        if self.complete:
            return self.at(self.complete)
        return self._pace(max(each.time_s for each in self._latest), self._latest)

    def _pace(self, time_s: float, done: Sequence[Done]) -> Pace:
        return Pace(
            time_s,
            tuple(each.steps for each in done),
            tuple(each.averages for each in done),
            sum(each.bytes_sent for each in done),
            tuple(sorted(self._lost)) if len(self._lost) < self.workers else (),
        )
