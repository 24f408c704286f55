"""When a run that is followed ends, and what it then says of a step.

It ends after a wanted span of cycles, or once all were alike for long; or by a rule. Where nothing is random
it ends once it repeats itself, and its further cycles are known. Else it ends when the mean step is known to
``STANDARD_ERROR``, by the spread of ``BATCH_MEANS`` means, and what is rare has happened ``RARE`` times; at
the latest after an amount of work. The first quarter of the cycles is start-up.

Source: batch means, Law and Kelton, Simulation Modeling and Analysis, section 9.5.3.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, pairwise
from typing import Final

from ...errors import RunError
from ...records.accounting import PaceMarks
from ...records.run import Pace

START_SHARE: Final = 4
"""One part in this many of the cycles is start-up."""
STANDARD_ERROR: Final = 0.002
"""Relative standard error of a mean step that is small enough."""
BATCH_MEANS: Final = 12
"""Parts of a run by whose means that error is estimated."""
RARE: Final = 100
"""Slow periods of each kind behind a mean step, and averages of each worker."""
WITHOUT_CHANCE: Final = 1e-12
"""Relative standard error of a mean step without chance, but for rounding."""
BEFORE_REPEATS: Final = 2_000
"""Messages and steps of workers after which a run that repeats itself ends."""


@dataclass(frozen=True)
class Span:
    """Cycles behind a mean step: from the end of ``first`` to that of ``last``."""

    first: int
    last: int


def _after_start(last: int) -> Span:
    """All cycles up to ``last`` but for the start-up."""
    return Span(math.ceil(last / START_SHARE) if last > 1 else 0, last)


Enough = Callable[[int, int], bool]
"""Given the number of complete cycles and the work done, in messages and steps of workers: whether to end."""


@dataclass(frozen=True)
class Followed:
    """A step of a run: means over a span of its cycles.

    Attributes:
        work: messages and steps of workers, including the start.
        here_s: seconds of this processor to simulate a step.
        exchanges: names of the operations by which workers exchanged anything, sorted.
        between: bytes from each site to each, the start included.
        sent_to: receiver -> bytes, of each worker, the start included.
        card_bytes: over the busiest host's card in a step; None where each has one worker, or in lockstep.
        computing: share of their time that all workers together compute, the start included.
        since_s: at a random moment, in the mean, since a worker's last step with no more averages than any
            other has had, the start included.
        ends_s: of the steps of all workers since the span's begin, or since that of a period where it repeats
            itself; where they do not keep step, of one at the pace of the slowest.
        error: relative standard error of the step; 0 where it repeats itself, infinite where unknown.
    """

    span: Span
    pace: Pace
    work: int
    here_s: float
    exchanges: tuple[str, ...] = ()
    between: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    sent_to: Sequence[Mapping[int, int]] = ()
    card_bytes: float | None = None
    computing: float = 1.0
    since_s: float = 0.0
    ends_s: Sequence[float] = (0.0,)
    error: float = math.inf

    @property
    def round_s(self) -> float:
        """Seconds from one exchange of a worker to its next; of a step where there are none."""
        return self.pace.time_s * len(self.pace.steps) / (sum(self.pace.averages) or sum(self.pace.steps))

    @property
    def steps(self) -> int:
        """Mean number of steps over the workers."""
        return round(self.pace.mean_steps)

    @property
    def step_s(self) -> float:
        """Seconds of a step on the simulation's clock."""
        return self.pace.step_s or 0.0

    @property
    def bytes_per_worker(self) -> float:
        """Bytes that a worker sends in a step."""
        return self.pace.bytes_sent / sum(self.pace.steps)


@dataclass
class Watch:
    """Marks the ends of a run's cycles, and decides when to end it.

    Attributes:
        wanted: the cycles to follow, or the rule for enough of them.
        repeats: whether nothing is random, so that it ends once it repeats itself.
        next_look: complete cycles at which the error is looked at next; none before.
        published: steps of all workers so far.
    """

    marks: PaceMarks
    wanted: Enough | Span
    repeats: bool
    next_look: float
    published: int = 0
    _begin_s: float = field(default_factory=lambda: time.process_time())  # whatever clock there is by then
    _ends_s: list[float] = field(default_factory=list)  # of each step, when the last worker was through
    _length_s: float = 0.0  # of all steps of all workers
    _squares: float = 0.0  # of their lengths, and by how far some are ahead
    _ahead: dict[float, list[tuple[float, float]]] = field(default_factory=dict)  # ends after each average
    _span: Span | None = None
    _most_work: float = math.inf

    def publish(self, rank: int, step: int, time_s: float, bytes_sent: int) -> None:
        """Take note of a worker's step."""
        self.published += 1
        before, now = self.marks.publish(rank, step, time_s, bytes_sent)
        self._ends_s += [0.0] * (step + 1 - len(self._ends_s))
        self._ends_s[step] = max(self._ends_s[step], time_s)
        step_s = time_s - before.time_s
        self._length_s += step_s
        self._squares += step_s**2
        if now.averages > before.averages:
            ends = self._ahead.setdefault(now.averages, [])
            ends.append((time_s, step_s))
            if len(ends) == self.marks.workers:  # who was ahead by an average went back by that step as well
                last_s = max(ends)[0]
                self._squares += 2 * sum((last_s - end_s) * each_s for end_s, each_s in ends)
                del self._ahead[now.averages]

    def is_over(self, work: int) -> bool:
        """Whether all is known; workers within a step are waited for, within limits."""
        complete = self.marks.complete
        if self._span is None:
            # As if all did the steps of the first: on another network they may, in the same cycles.
            behind = max(complete * self.marks.cycle * self.marks.workers - self.published, 0)
            last = self._last(complete, work + behind)
            if not last:
                return last is not None
            self._span = _after_start(last)
            if isinstance(self.wanted, Span) and self.wanted.last == last:
                self._span = self.wanted
            self._most_work = 2 * work
        return self.marks.is_known(self._span.last) or work >= self._most_work

    def _last(self, complete: int, work: int) -> int | None:
        """The last cycle that counts, if the run ends with ``complete`` ones; None: not yet."""
        wanted = self.wanted
        if isinstance(wanted, Span):
            if complete >= wanted.last or (self.repeats and self.marks.repeat()):
                return wanted.last
            if complete < self.next_look:  # so it is after almost every step
                return None
            known = next(each for each in range(complete, -1, -1) if self.marks.is_known(each))
            is_alike = self._is_time(known) and self._error(_after_start(known)) <= WITHOUT_CHANCE
            return known if is_alike else None
        if wanted(complete, work) or self._is_precise(complete):
            return complete
        if self.repeats and work >= BEFORE_REPEATS and self.marks.repeat():
            done = self.published / (self.marks.cycle * self.marks.workers)  # of cycles, or more
            return next(each for each in count(complete) if wanted(each, int(work * each / done)))
        return None

    def _is_precise(self, complete: int) -> bool:
        if self.repeats or not self._is_time(complete):
            return False
        if self._error(_after_start(complete)) > STANDARD_ERROR:
            return False
        return self.marks.in_step or min(self.marks.at(complete).averages) >= RARE

    def _is_time(self, complete: int) -> bool:
        """Whether to look at the error with that many cycles; seldom, since a look takes time."""
        if complete < self.next_look:
            return False
        self.next_look = 1.125 * complete
        return True

    def _error(self, span: Span) -> float:
        """Relative standard error of a step over these cycles."""
        last = span.last
        length = (last - span.first) // BATCH_MEANS
        if not length:
            return math.inf
        ends = [self.marks.at(each) for each in range(last - BATCH_MEANS * length, last + 1, length)]
        steps_s = [end.since(begin).step_s or 0.0 for begin, end in pairwise(ends)]
        mean_s = statistics.fmean(steps_s) * math.sqrt(BATCH_MEANS)
        return statistics.stdev(steps_s) / mean_s if mean_s else 0.0

    def too_long(self, steps: float) -> RunError:
        """Error after ``steps`` that are no cycle."""
        each = f"{self.marks.cycle:,} steps" if self.marks.cycle > 1 else "step"
        error = RunError(f"it repeats itself every {each}, which is more than can be followed")
        error.here_s = (time.process_time() - self._begin_s) / steps
        return error

    def followed(self, work: int) -> Followed:
        """Mean over the cycles; ``RunError`` if the run ended before they did."""
        if self._span is None:
            if self.published:
                raise self.too_long(self.published / self.marks.workers)
            raise RunError("no worker came through a step")
        pace = self.marks.at(self._span.last).since(self.marks.at(self._span.first))
        ends = self.marks.seen(self._span.first, self._span.last)
        start_s, (first, last) = self.marks.at(ends[0]).time_s, (self.marks.cycle * each for each in ends)
        return Followed(
            span=self._span,
            pace=pace,
            since_s=self._squares / 2 / (self._length_s or 1.0),
            ends_s=[each - start_s for each in self._ends_s[first:last]]
            if self.marks.in_step
            else [pace.time_s / max(min(pace.steps), 1.0)],
            error=0.0 if self.repeats and self.marks.repeat() else self._error(self._span),
            work=work,
            here_s=(time.process_time() - self._begin_s) * self.marks.workers / self.published,
        )
