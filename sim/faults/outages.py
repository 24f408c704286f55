"""Outages of a job, drawn from its seed."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Final

from .. import seeds
from ..errors import RunError
from .fault_settings import Checkpoint, Fault, How, Policy

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
