"""The record of a run whose faults change its clock alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ..records.run import INSTANT, Event, FaultCost, Run
from .outages import Churn
from .timeline import Timeline, follow


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
