"""Useful share of a long run's time under random faults and checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from .outages import Churn
from .timeline import follow

ENOUGH_OUTAGES: Final = 4_000
"""Outages in the run; their mean cost is then known to some 2 %."""
MOST_STOPS: Final = 100_000
"""Checkpoints in it, which may leave time for fewer outages."""


class _Stretches:
    """Ends of steps that take as long as those of one stretch, again and again: too many for a list."""

    def __init__(self, ends_s: Sequence[float], steps: int) -> None:
        self._ends_s, self._steps = ends_s, steps

    def __len__(self) -> int:
        return self._steps

    def __getitem__(self, place: int) -> float:
        stretches, place = divmod(place, len(self._ends_s))
        return stretches * self._ends_s[-1] + self._ends_s[place]


def goodput(
    churn: Churn, gradients_s: Sequence[float], ends_s: Sequence[float], since_s: float, round_s: float
) -> float:
    """Useful steps of all workers over those without faults, in a long run; single faults do not count.

    Args:
        gradients_s: of each worker, which repeats one under ``skip``.
        ends_s: of the steps of all workers in a stretch, as of ``Followed``.
        since_s: from the end of a worker's last step to a fault, in the mean: what it repeats under
            ``shrink``. More than half a step where some are longer.
        round_s: from one exchange to the next.

    Raises:
        RunError: faults come too often for any progress.
    """
    step_s, workers = ends_s[-1] / len(ends_s), len(gradients_s)
    random = [
        (fault, units)
        for fault, units in zip(churn.faults, churn.units, strict=True)
        if fault.mean_time_between
    ]
    per_s = sum(
        len(units) / (fault.mean_time_between + fault.back_after)
        for fault, units in random
        if fault.mean_time_between
    )
    if churn.policy in ("shrink", "skip"):
        # Who returns waits for half a round, or under ``skip`` begins its gradient anew. The others repeat
        # what they have begun, and compute on until their next exchange, if the fault is not seen before.
        lost_s, skips = 0.0, churn.policy == "skip"
        for fault, units in random:
            away_s, detect_s = max(fault.back_after, fault.detect), fault.detect
            cycle_s = (fault.mean_time_between or 0.0) + away_s
            blocked_s = detect_s - round_s / 2 if detect_s > round_s else detect_s**2 / (2 * round_s)
            for unit in units:
                own_s = away_s + round_s / 2
                if skips:
                    own_s = fault.back_after + sum(gradients_s[rank] for rank in unit) / len(unit) / 2
                others = (workers - len(unit)) * (1 - away_s / cycle_s) * (not skips)
                lost_s += len(unit) * own_s / cycle_s
                lost_s += others * (blocked_s + since_s) / cycle_s
        return max(0.0, 1.0 - lost_s / workers)
    saves, checkpoint = churn.policy == "restart", churn.checkpoint
    spans = [ENOUGH_OUTAGES / per_s] if per_s else []
    if saves and checkpoint is not None:
        every = checkpoint.every
        spans.append(MOST_STOPS * (every if isinstance(every, float) else every * step_s))
    if not spans:
        return 1.0
    steps = max(1, round(min(spans) / step_s))
    alone = replace(
        churn, faults=tuple(fault for fault, _ in random), units=tuple(units for _, units in random)
    )
    line = follow(alone, _Stretches(ends_s, steps), steps * step_s)
    return line.work_s / line.wall_s
