"""The smallest period whose averages take little of the time, by seconds alone.

With T seconds of a step and A of one average, H steps and an average take H T + A. The smallest H with
A <= s (H T + A) is ceil((1 / s - 1) A / T). Where computing times are random, T and A depend on H too, and H
is the fixed point.
"""

from __future__ import annotations

import math
from typing import Any, Final

from ...errors import RunError
from ...scenario.entries import SchemeEntry
from ...scenario.schema import Scenario
from ..costs.step_cost import ENOUGH_PART_WORK, follow, on_free_network, whole_job

SHARE: Final = 0.1
"""Most of the time that averages take."""


def smallest_periods(scenario: Scenario) -> list[dict[str, Any]]:
    """A row for each scheme with a period, or for local SGD if there is none.

    A row has ``step_s`` of a step without average, ``average_s`` of one average, and ``period``; a problem in
    their place where the scheme cannot be followed.
    """
    own = [
        x
        for x in scenario.schemes
        if getattr(x.options, "period", None) and not getattr(x.options, "delay", 0)
    ]
    entries = own or [SchemeEntry.model_validate({"local_sgd": {"period": 1, "label": "local_sgd"}})]
    return [{"label": entry.label, **_smallest(scenario, entry)} for entry in entries]


def _smallest(scenario: Scenario, entry: SchemeEntry) -> dict[str, Any]:
    period, least = 0, getattr(entry.options, "fragments", 1)
    step_s = average_s = 0.0
    try:
        while period != least:
            period = least
            step_s, average_s = _seconds(scenario, entry, period)
            least = max(period, smallest_period(step_s, average_s))
    except RunError as error:
        return {"problem": str(error)}
    share = average_s / (period * step_s + average_s)
    return {"step_s": step_s, "average_s": average_s, "period": period, "share": share}


def smallest_period(step_s: float, average_s: float) -> int:
    """The smallest number of steps to an average with which averages take at most ``SHARE`` of the time.

    >>> smallest_period(1.0, 2.0)
    18
    """
    return max(1, math.ceil((1 / SHARE - 1) * average_s / step_s * (1 - 1e-9)))


def _seconds(scenario: Scenario, entry: SchemeEntry, period: int) -> tuple[float, float]:
    """Seconds of a step without its average, and of an average, at a period."""
    at = entry.model_copy(update={"options": entry.options.model_copy(update={"period": period})})
    job = whole_job(scenario, at)
    whole = follow(job, lambda complete, work: complete > 1 and work >= ENOUGH_PART_WORK)
    free_s = follow(on_free_network(job), whole.span).step_s
    return free_s, period * (whole.step_s - free_s)
