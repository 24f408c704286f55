"""Scores at equal time and at equal bytes sent.

Time to target asks which scheme reaches one score first. Scores at one moment, and at one amount of data
sent, also rank schemes that never reach the target.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from typing_extensions import TypedDict

from .intervals import Interval, of_median
from .run import Run
from .scenario_facts import Goal


class Equal(TypedDict):
    """The moment and the amount of data at which schemes are compared.

    Attributes:
        metric: the target's; without a target the test accuracy, or else the training loss.
        falling: whether small scores are good ones.
        time_s: the winner's median time to target; without a winner, the end of the first run to end.
        bytes: the winner's median bytes sent by then; without a winner, the least that a run sent in all.
            None if that is nothing.
    """

    metric: str
    falling: bool
    time_s: float
    bytes: float | None


def equal_terms(runs: Sequence[Run], target: Goal | None, winners: Sequence[Run]) -> Equal | None:
    """Terms on which to compare ``runs``, all of one source; ``winners`` are the winning scheme's, if any.

    None where nothing was scored.
    """
    names = {name for run in runs for each in run.evaluations for name in each.metrics}
    wished = [*([target["metric"]] if target else []), "test_accuracy", "train_loss"]
    metric = next((name for name in wished if name in names), None)
    whole = [run for run in runs if run.status == "completed"]
    if metric is None or not whole:
        return None
    met = [run.met for run in winners]
    if any(met):
        time_s = float(np.median([math.inf if each is None else each.time_s for each in met]))
        sent = float(np.median([math.inf if each is None else each.bytes_sent for each in met]))
    else:
        time_s = min(run.wall_clock_s for run in whole)
        sent = float(min(run.bytes_sent for run in whole))
    return Equal(metric=metric, falling=_falling(metric, target, whole), time_s=time_s, bytes=sent or None)


def score_at(runs: Sequence[Run], equal: Equal, by: Literal["time_s", "bytes_sent"]) -> Interval | None:
    """Median score of a scheme's runs on ``equal`` terms, with its interval.

    A run's score is that of its latest evaluation until then; one that is not finite counts as worst.
    """
    limit = equal["time_s"] if by == "time_s" else equal["bytes"]
    if limit is None:
        return None
    worst = math.inf if equal["falling"] else -math.inf
    scores = []
    for run in runs:
        seen = [each for each in run.evaluations if getattr(each, by) <= limit]
        score = seen[-1].metrics.get(equal["metric"]) if seen else None
        scores.append(worst if score is None else score)
    return of_median(scores)


def _falling(metric: str, target: Goal | None, runs: Sequence[Run]) -> bool:
    """Whether the metric falls to its target, by a run's first score: records do not know the task."""
    if target is None or target["metric"] != metric:
        return metric == "train_loss"
    first = (run.evaluations[0].metrics.get(metric) for run in runs if run.evaluations)
    start = next((score for score in first if score is not None), target["value"])
    return start > target["value"]
