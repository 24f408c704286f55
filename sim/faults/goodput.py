"""Useful share of a long run's time under random faults and checkpoints, and how often to write these."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final

import numpy as np

from .outages import Churn, follow

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
    churn, step_s, workers = _random(churn), ends_s[-1] / len(ends_s), len(gradients_s)
    per_s = _outages_per_s(churn)
    if churn.policy in ("shrink", "skip"):
        # Who returns waits for half a round, or under ``skip`` begins its gradient anew. The others repeat
        # what they have begun, and compute on until their next exchange, if the fault is not seen before.
        lost_s, skips = 0.0, churn.policy == "skip"
        for fault, units in zip(churn.faults, churn.units, strict=True):
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
    return _share(churn, tuple(ends_s), min(spans))


def _random(churn: Churn) -> Churn:
    """``churn`` without single faults."""
    kept = [pair for pair in zip(churn.faults, churn.units, strict=True) if pair[0].mean_time_between]
    return replace(churn, faults=tuple(fault for fault, _ in kept), units=tuple(units for _, units in kept))


def _outages_per_s(churn: Churn, warning_s: float = math.inf) -> float:
    """Outages a second of random faults with a shorter warning."""
    return sum(
        len(units) / (fault.mean_time_between + fault.back_after)
        for fault, units in zip(churn.faults, churn.units, strict=True)
        if fault.mean_time_between and fault.warning < warning_s
    )


@lru_cache(maxsize=32)  # schemes share what is independent of their steps
def _share(churn: Churn, ends_s: tuple[float, ...], work_s: float, most_s: float = math.inf) -> float:
    """Share of work in a run of about ``work_s`` without faults, cut off at ``most_s`` with them."""
    steps = max(1, round(work_s * len(ends_s) / ends_s[-1]))
    line = follow(churn, _Stretches(ends_s, steps), steps * (ends_s[-1] / len(ends_s)), most_s)
    return line.work_s / line.wall_s


_TRIED: Final = (np.geomspace(1 / 3, 3, 7), np.geomspace(1 / 1.8, 1.8, 7))
"""Intervals beside Daly's, then beside the best one so far, as factors."""


def best_checkpoints(churn: Churn, step_s: float) -> dict[str, float] | None:
    """Time of work between checkpoints, ``every_s``, at which ``goodput`` is greatest, and goodputs.

    Beside ``goodput`` at this time there is that with ten times as many checkpoints (``tenfold``), and with
    a ``tenth``. The time is that of a step at least. None without restarts and random faults, where one takes
    twice the time between faults to write, and where they cost no time: those follow each other at once.

    Runs with the same outages are followed at intervals around Daly's. What is lost for each useful second is
    ``a + b every + c / every`` under any random faults, if few strike in an interval. This law, fitted, has
    its least at ``sqrt(c / b)``: a fit averages chance out, where the least of single runs follows it.

    Source: J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, FGCS 22,
    2006, equation 37.
    """
    churn, saves = _random(replace(churn, in_step=True)), churn.checkpoint
    if churn.policy != "restart" or saves is None or not saves.write or not saves.blocking:
        return None
    often = saves.write * _outages_per_s(churn, saves.write) / 2  # who is warned in time saves the work
    if not 0 < often < 1:
        return None
    best_s = saves.write * ((1 + math.sqrt(often) / 3 + often / 9) / math.sqrt(often) - 1)
    span_s = min(ENOUGH_OUTAGES / _outages_per_s(churn), MOST_STOPS / 4 * best_s)

    def useful(every_s: float) -> float:
        checkpoint = saves.model_copy(update={"every": every_s})
        # At a goodput of 5 % it is cut off, before it has more outages than a run may have.
        return _share(replace(churn, checkpoint=checkpoint), (span_s,), span_s, 20 * span_s)

    from scipy.optimize import nnls  # slow to import, and few come here

    for tried in _TRIED:
        shares = np.array([useful(best_s * float(each)) for each in tried])
        law = np.stack([tried**0, tried, 1 / tried], axis=1) * (shares / (1 - shares))[:, None]
        _, again, writing = np.maximum(nnls(law, tried**0)[0], 1e-9)
        best_s *= float(np.clip(math.sqrt(writing / again), tried[0], tried[-1]))
    every_s = max(best_s, step_s)
    return {
        "every_s": every_s, "goodput": useful(every_s), "tenfold": useful(every_s / 10),
        "tenth": useful(10 * every_s),
    }  # fmt: skip
