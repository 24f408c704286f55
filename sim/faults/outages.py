"""Outages of a job, drawn from its seed."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count

from .. import seeds
from .settings import Checkpoint, Fault, Policy


@dataclass(frozen=True, order=True)
class WorkerOutage:
    """A fault.

    Attributes:
        at_s: when it happens.
        seen_s: when the others notice.
        back_s: when who failed is back.
        workers: ranks that fail together.
    """

    at_s: float
    seen_s: float
    back_s: float
    workers: tuple[int, ...]

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

    def outages(self) -> Iterator[WorkerOutage]:
        """All outages but those at a step, in the order of time; without an end where they are random."""
        streams = [
            _of_unit(fault, self.seed, f"fault {number}", place, workers)
            for number, (fault, units) in enumerate(zip(self.faults, self.units, strict=True))
            if fault.at_step is None
            for place, workers in enumerate(units)
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
    return WorkerOutage(at_s, at_s + fault.detect, at_s + fault.back_after, workers)


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
