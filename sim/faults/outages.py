"""Outages of a job, drawn from its seed, and its run's clock with them.

Under both policies the steps are those of a run without faults. So its clock alone changes: at an outage
nothing is done until everybody is back, and work that was lost is repeated. ``Timeline`` leads from a moment
of the run without faults to the moment at which the run with faults first gets there.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from .. import seeds
from ..errors import RunError
from ..records.run import INSTANT, Event, FaultCost, Run
from .fault_settings import Checkpoint, Fault, How, Policy

if TYPE_CHECKING:
    from _typeshed import SupportsLenAndGetItem

_MIN_RTO_S: Final = 0.2
_MAX_RTO_S: Final = 120.0
"""Limits of TCP's time-outs in Linux (``tcp_rto_min``, to which the round trip is added; ``TCP_RTO_MAX``)."""

MOST_OUTAGES: Final = 100_000
"""Outages of a run after which it is taken not to come to an end."""


@dataclass(frozen=True, order=True)
class WorkerOutage:
    """A fault.

    Attributes:
        at_s: when it happens.
        seen_s: when the others notice.
        back_s: when who failed is back.
        workers: ranks that fail together.
        how: they fail.
        warning_s: time from its notice; 0: there was none.
    """

    at_s: float
    seen_s: float
    back_s: float
    workers: tuple[int, ...]
    how: How
    warning_s: float = 0.0

    @property
    def over_s(self) -> float:
        """Moment at which all workers can continue."""
        return max(self.seen_s, self.back_s)


@dataclass(frozen=True)
class Churn:
    """The faults of one job, and what its workers do about them.

    Attributes:
        faults: as in the scenario.
        units: what each of them strikes, one by one: ranks that fail together.
        in_step: the workers keep step; else nobody repeats anything when all ``wait``.
        most_s: when the run is cut off.
    """

    faults: tuple[Fault, ...]
    units: tuple[tuple[tuple[int, ...], ...], ...]
    policy: Policy
    checkpoint: Checkpoint | None
    seed: int
    in_step: bool = True
    most_s: float = math.inf

    def outages(self, rank: int | None = None) -> Iterator[WorkerOutage]:
        """All outages, or those of one worker, but for those at a step; in the order of time.

        Without an end where they are random.
        """
        streams = [
            _of_unit(fault, self.seed, f"fault {number}", place, workers)
            for number, (fault, units) in enumerate(zip(self.faults, self.units, strict=True))
            if fault.at_step is None
            for place, workers in enumerate(units)
            if rank is None or rank in workers
        ]
        return heapq.merge(*streams)

    def at_steps(self) -> Mapping[int, Sequence[tuple[Fault, tuple[int, ...]]]]:
        """Faults at the beginning of a step and the ranks in them, by the number of steps before it."""
        at: dict[int, list[tuple[Fault, tuple[int, ...]]]] = {}
        for fault, units in zip(self.faults, self.units, strict=True):
            if fault.at_step is not None:
                at.setdefault(fault.at_step, []).append((fault, tuple(chain(*units))))
        return at


def check_number(outages: int) -> None:
    """Raise ``RunError`` after more outages than a run has that comes to an end."""
    if outages > MOST_OUTAGES:
        raise RunError(f"more than {MOST_OUTAGES:,} faults: they come too often for the run to end")


class Absences:
    """When a worker's computations end, where the others go on without it (``on_fault: skip``).

    A computation that an outage interrupts begins anew when the worker is back.

    Attributes:
        outages: that have struck so far.
        down_s, repeated_s: for which it was away, and for which it had computed what it began anew.
    """

    def __init__(self, churn: Churn, rank: int) -> None:
        self._coming = churn.outages(rank)
        self._next = next(self._coming, None)
        self._at_steps = {
            step: [fault for fault, workers in faults if rank in workers]
            for step, faults in churn.at_steps().items()
        }
        self.outages, self.down_s, self.repeated_s = 0, 0.0, 0.0

    def end_s(self, index: int, start_s: float, duration_s: float) -> float:
        """When computation ``index``, the next one, ends."""
        for fault in self._at_steps.pop(index, ()):
            start_s = self._return_s(start_s, start_s + fault.back_after)
        while self._next is not None and self._next.at_s < start_s + duration_s:
            self.repeated_s += max(0.0, self._next.at_s - start_s)
            start_s = self._return_s(max(start_s, self._next.at_s), self._next.back_s)
            self._next = next(self._coming, None)
        return start_s + duration_s

    def _return_s(self, start_s: float, back_s: float) -> float:
        self.outages += 1
        check_number(self.outages)
        self.down_s += max(0.0, back_s - start_s)
        return max(start_s, back_s)


def outage_of(fault: Fault, at_s: float, workers: tuple[int, ...]) -> WorkerOutage:
    """A fault of these ranks at that time."""
    return WorkerOutage(at_s, at_s + fault.detect, at_s + fault.back_after, workers, fault.how, fault.warning)


def over_tcp(fault: Fault, farthest_s: Callable[[int], float]) -> Fault:
    """``fault``; a cut is over for the others when TCP repeats a packet. ``farthest_s``: longest latency."""
    if fault.how != "cut":
        return fault
    worker = 0 if fault.workers is None else fault.workers[0]
    after_s = resumed_s(fault.back_after, 2 * farthest_s(worker))
    return fault.model_copy(update={"detect": max(fault.detect, after_s)})


def resumed_s(outage_s: float, round_trip_s: float) -> float:
    """Time from a cut to the first repeated packet that gets through: time-outs double (RFC 6298, 5.5)."""
    timeout_s = after_s = _MIN_RTO_S + round_trip_s
    while after_s < outage_s and 2 * timeout_s < _MAX_RTO_S:
        timeout_s *= 2
        after_s += timeout_s
    return after_s + math.ceil(max(0.0, outage_s - after_s) / _MAX_RTO_S) * _MAX_RTO_S


def _of_unit(
    fault: Fault, seed: int, purpose: str, place: int, workers: tuple[int, ...]
) -> Iterator[WorkerOutage]:
    if fault.mean_time_between is None:
        if fault.at is not None:
            yield outage_of(fault, fault.at, workers)
        return
    scale_s = fault.mean_time_between / math.gamma(1 + 1 / fault.shape)
    now_s = 0.0
    for block in count():
        for draw in seeds.uniforms(seed, place, purpose, block).tolist():
            now_s += scale_s * (-math.log1p(-draw)) ** (1 / fault.shape)
            yield (outage := outage_of(fault, now_s, workers))
            now_s = outage.over_s


MOST_CHECKPOINTS: Final = 1_000_000
"""Checkpoints of a run that can be followed in some seconds."""


@dataclass
class Timeline:
    """Seconds lost along a run.

    Attributes:
        work_s: length of the run without faults, as far as this one gets.
        outages: how many there were.
        down_s: until everybody was back, with the restarts.
        repeated_s: work done again.
        writing_s: stops to write checkpoints.
    """

    work_s: float = 0.0
    outages: int = 0
    down_s: float = 0.0
    repeated_s: float = 0.0
    writing_s: float = 0.0
    _from_s: list[float] = field(default_factory=lambda: [0.0])
    _later_s: list[float] = field(default_factory=lambda: [0.0])

    @property
    def lost_s(self) -> float:
        """By how much the run is longer than without faults."""
        return self.down_s + self.repeated_s + self.writing_s

    @property
    def wall_s(self) -> float:
        """Its length with faults."""
        return self.work_s + self.lost_s

    def delay(self, work_s: float) -> None:
        """Note that all moments after ``work_s`` come later, by the time lost so far."""
        if self.lost_s != self._later_s[-1]:
            self._from_s.append(work_s)
            self._later_s.append(self.lost_s)

    def at(self, work_s: float, *, begins: bool = False) -> float:
        """Time in the run of a moment of the run without faults; of what ``begins`` there, its beginning."""
        place = (bisect_right if begins else bisect_left)(self._from_s, work_s)
        return work_s + self._later_s[max(place - 1, 0)]


def follow(
    churn: Churn, step_ends_s: SupportsLenAndGetItem[float], end_s: float, most_s: float = math.inf
) -> Timeline:
    """Follow a job through its outages.

    Args:
        step_ends_s: when all workers were through with each step, without faults.
        end_s: when the run ended, without faults.
        most_s: when the run is cut off, with faults.

    Raises:
        RunError: it does not come to an end.
    """
    follower = _Follower(churn, step_ends_s)
    while follower.done_s < end_s and follower.now_s < most_s:
        follower.go_on(end_s, most_s)
    return follower.ended(most_s)


class _Follower:
    """Where a job is: ``done_s`` in the run without faults, at ``now_s`` in that with them."""

    def __init__(self, churn: Churn, step_ends_s: SupportsLenAndGetItem[float]) -> None:
        self.done_s = self.now_s = self._furthest_s = 0.0
        self._line = Timeline()
        self._ends_s = step_ends_s
        self._checkpoint = churn.checkpoint if churn.policy == "restart" else None
        self._churn = churn
        self._saves = 0
        self._saved_s = self._marked_s = 0.0  # work up to the last checkpoint, and to the last one begun
        self._writing: tuple[float, float] | None = None  # its end, and the work in it
        self._outages = churn.outages()
        self._next = next(self._outages, None)
        moments = [
            (self._moment(steps), *each) for steps, faults in churn.at_steps().items() for each in faults
        ]
        self._at_steps = sorted(moments, key=itemgetter(0), reverse=True)

    def go_on(self, end_s: float, most_s: float) -> None:
        """Work until a checkpoint is due, somebody fails, or the run ends."""
        mark_s = self._next_mark()
        fault_s = self._at_steps[-1][0] if self._at_steps else math.inf
        until_s = min(end_s, mark_s, fault_s)
        stopped_s = min(self.now_s + until_s - self.done_s, most_s)
        if self._next is not None and self._next.at_s < stopped_s:
            self._work(self._next.at_s)
            self._strike(self._take())
            return
        self._work(stopped_s)
        if stopped_s == most_s:
            return
        self.done_s = until_s  # to the bit
        self._furthest_s = max(self._furthest_s, until_s)
        if until_s == end_s:
            return
        if until_s == fault_s:
            _, fault, workers = self._at_steps.pop()
            self._strike(outage_of(fault, self.now_s, workers))
        else:
            self._save(most_s)

    def ended(self, most_s: float) -> Timeline:
        """The timeline; what was charged for the time after the end is taken back."""
        line, beyond_s = self._line, max(0.0, self.now_s - most_s)
        line.down_s -= beyond_s
        line.repeated_s = max(0.0, line.repeated_s - (self._furthest_s - self.done_s))
        line.work_s = self._furthest_s
        return line

    def _work(self, until_s: float) -> None:
        reached_s = self.done_s + max(0.0, until_s - self.now_s)
        if reached_s > self._furthest_s:
            self._line.delay(self._furthest_s)
            self._furthest_s = reached_s
        self.done_s, self.now_s = reached_s, max(until_s, self.now_s)

    def _strike(self, outage: WorkerOutage) -> None:
        """Stop for an outage, and for all that come before everybody is back and has started again."""
        line, restart_s = self._line, self._checkpoint.restart if self._checkpoint else 0.0
        if self._writing is not None and self._writing[0] <= outage.at_s:
            self._saved_s = self._writing[1]
        self._writing = None
        if outage.warning_s and self._checkpoint and self._checkpoint.write <= outage.warning_s:
            # Written beside the work, up to the fault.
            self._saved_s = max(self._saved_s, self.done_s - self._checkpoint.write)
        resumed_s, lost = outage.over_s + restart_s, outage.how == "kill"
        while self._next is not None and self._next.at_s < resumed_s:
            another = self._take()
            resumed_s, lost = max(resumed_s, another.over_s + restart_s), lost or another.how == "kill"
            line.outages += 1
            check_number(line.outages)
        line.outages += 1
        check_number(line.outages)
        again_s = self._repeat_from(lost)
        line.down_s += resumed_s - self.now_s
        line.repeated_s += self.done_s - again_s
        self.done_s, self.now_s, self._marked_s = again_s, resumed_s, again_s

    def _repeat_from(self, lost: bool) -> float:
        if self._churn.policy == "restart":
            return self._saved_s
        steps = bisect_right(self._ends_s, self.done_s)
        return self._moment(steps) if self._churn.in_step and lost else self.done_s

    def _save(self, most_s: float) -> None:
        assert self._checkpoint is not None
        self._saves += 1
        if self._saves > MOST_CHECKPOINTS:
            raise RunError(f"more than {MOST_CHECKPOINTS:,} checkpoints: write fewer, by checkpoint.every")
        self._marked_s = self.done_s
        written_s = self.now_s + self._checkpoint.write
        if not self._checkpoint.blocking:
            if self._writing is None or self._writing[0] <= self.now_s:
                self._saved_s = self._writing[1] if self._writing else self._saved_s
                self._writing = written_s, self.done_s
            return
        ends_s = min(written_s, most_s)
        fails = self._next is not None and self._next.at_s < ends_s
        stopped_s = self._next.at_s if self._next is not None and fails else ends_s
        self._line.writing_s += stopped_s - self.now_s
        self.now_s = stopped_s
        if fails:
            self._strike(self._take())
        else:
            self._saved_s = self.done_s

    def _next_mark(self) -> float:
        """The moment of work at which the next checkpoint is due."""
        if self._checkpoint is None:
            return math.inf
        every = self._checkpoint.every
        if isinstance(every, float):
            return self._marked_s + every
        steps = bisect_right(self._ends_s, self.done_s)
        due = (steps // every + 1) * every
        return self._ends_s[due - 1] if due <= len(self._ends_s) else math.inf

    def _moment(self, steps: int) -> float:
        """When all are through with that number of steps, without faults; infinite if they never are."""
        if steps > len(self._ends_s):
            return math.inf
        return self._ends_s[steps - 1] if steps else 0.0

    def _take(self) -> WorkerOutage:
        outage, self._next = self._next, next(self._outages, None)
        assert outage is not None
        return outage


class CutOff(Exception):
    """With faults a run takes longer than it may; ``work_s``: how far it gets, on the clock without them."""

    def __init__(self, work_s: float) -> None:
        super().__init__(work_s)
        self.work_s = work_s


def with_faults(run: Run, churn: Churn, step_ends_s: Sequence[float], limit_s: float) -> Run:
    """``run`` as it goes with the outages of ``churn``; without them it was limited to ``limit_s``.

    Raises:
        CutOff: it is to be run again, with that limit.
        RunError: it does not come to an end.
    """
    cut = limit_s < churn.most_s and run.wall_clock_s == limit_s
    line = follow(churn, step_ends_s, math.inf if cut else run.wall_clock_s, churn.most_s)
    if line.work_s < run.wall_clock_s * (1 - INSTANT):
        raise CutOff(line.work_s)
    at = line.at
    return replace(
        run,
        wall_clock_s=line.wall_s,
        time_to_target_s=None if run.time_to_target_s is None else at(run.time_to_target_s),
        bracket_s=None if run.bracket_s is None else (at(run.bracket_s[0]), at(run.bracket_s[1])),
        evaluations=tuple(replace(each, time_s=at(each.time_s)) for each in run.evaluations),
        events=tuple(_event(each, line) for each in run.events),
        pace=None if run.pace is None else replace(run.pace, time_s=at(run.pace.time_s)),
        time_s=replace(run.time_s, down=line.wall_s - run.wall_clock_s),
        faults=FaultCost(
            outages=line.outages, down_s=line.down_s, repeated_s=line.repeated_s, writing_s=line.writing_s
        ),
    )


def _event(event: Event, line: Timeline) -> Event:
    start_s, end_s = line.at(event.start_s, begins=True), line.at(event.end_s)
    return replace(
        event, start_s=start_s, end_s=max(start_s, end_s), peer_s=max(start_s, line.at(event.peer_s))
    )
