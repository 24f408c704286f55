"""Outages of a job, drawn from its seed."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Final

from .. import seeds
from .settings import Checkpoint, Fault, How, Policy

_MIN_RTO_S: Final = 0.2
_MAX_RTO_S: Final = 120.0
"""Limits of TCP's time-outs in Linux (``tcp_rto_min``, to which the round trip is added; ``TCP_RTO_MAX``)."""


@dataclass(frozen=True, order=True)
class WorkerOutage:
    """A fault.

    Attributes:
        at_s: when it happens.
        seen_s: when the others notice.
        back_s: when who failed is back.
        workers: ranks that fail together.
        how: they fail.
    """

    at_s: float
    seen_s: float
    back_s: float
    workers: tuple[int, ...]
    how: How

    @property
    def over_s(self) -> float:
        """When everybody can go on."""
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
        """Outages but those at a step, of all or of one rank, in order of time; without an end if random."""
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


def outage_of(fault: Fault, at_s: float, workers: tuple[int, ...]) -> WorkerOutage:
    """A fault of these ranks at that time."""
    return WorkerOutage(at_s, at_s + fault.detect, at_s + fault.back_after, workers, fault.how)


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
    while after_s < outage_s:
        timeout_s = min(2 * timeout_s, _MAX_RTO_S)
        after_s += timeout_s
    return after_s


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
