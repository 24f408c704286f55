"""Outages of a job, drawn from its seed."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from .. import seeds
from .settings import Checkpoint, Fault, Policy


@dataclass(frozen=True, order=True)
class WorkerOutage:
    """A fault.

    Attributes:
        at_s: when it happens.
        seen_s: when the others notice.
        back_s: when who failed is back.
    """

    at_s: float
    seen_s: float
    back_s: float

    @property
    def over_s(self) -> float:
        """When everybody can go on."""
        return max(self.seen_s, self.back_s)


@dataclass(frozen=True)
class Churn:
    """The faults of one job, and what its workers do about them.

    Attributes:
        faults: as in the scenario.
        units: number of workers or sites that each of them strikes, one by one.
        in_step: the workers keep step; else nobody repeats anything when all ``wait``.
        most_s: when the run is cut off.
    """

    faults: tuple[Fault, ...]
    units: tuple[int, ...]
    policy: Policy
    checkpoint: Checkpoint | None
    seed: int
    in_step: bool = True
    most_s: float = math.inf

    def outages(self) -> Iterator[WorkerOutage]:
        """All outages but those at a step, in the order of time; without an end where they are random."""
        streams = [
            _of_unit(fault, self.seed, f"fault {number}", unit)
            for number, (fault, units) in enumerate(zip(self.faults, self.units, strict=True))
            if fault.at_step is None
            for unit in range(units)
        ]
        return heapq.merge(*streams)

    def at_steps(self) -> Mapping[int, Sequence[Fault]]:
        """Faults at the beginning of a step, by the number of steps before it."""
        at: dict[int, list[Fault]] = {}
        for fault in self.faults:
            if fault.at_step is not None:
                at.setdefault(fault.at_step, []).append(fault)
        return at


def outage_of(fault: Fault, at_s: float) -> WorkerOutage:
    """A fault at that time."""
    return WorkerOutage(at_s, at_s + fault.detect, at_s + fault.back_after)


def _of_unit(fault: Fault, seed: int, purpose: str, unit: int) -> Iterator[WorkerOutage]:
    if fault.mean_time_between is None:
        if fault.at is not None:
            yield outage_of(fault, fault.at)
        return
    scale_s = fault.mean_time_between / math.gamma(1 + 1 / fault.shape)
    now_s = 0.0
    for block in count():
        for draw in seeds.uniforms(seed, unit, purpose, block).tolist():
            now_s += scale_s * (-math.log1p(-draw)) ** (1 / fault.shape)
            yield (outage := outage_of(fault, now_s))
            now_s = outage.over_s
