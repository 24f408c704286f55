"""Local steps of a period: as many on every worker, or by time as many as fit beside the fastest's.

By time the fastest worker takes N steps in a period, and one of speed v

    max(1, floor(N v / v_max))

(DyLU), so that all come to an average within one of their own steps. Steps are counted as the fastest takes
them, by all: what a slower worker leaves out lasts no time there, and draws no batch. The steps that it takes
are spread over the period, each behind those left out, so that it is never ahead of the fastest. Its
optimiser counts, and its learning rate follows, the steps that it takes.

Averages are plain means: a worker of few steps counts as much as one of many.

Source: Liu et al., arXiv 2401.09135 (DyLU; the rule is quoted from memory), where workers do not wait for
each other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import Discriminator, Field, Tag

from ...config.settings import Settings
from ...errors import NotInLockstep
from ...program.groups import Groups
from ...program.worker import Worker


class ByTime(Settings):
    """As many local steps on each worker as fit into the same time."""

    by: Literal["time"] = Field(description="what is alike on all workers")
    steps: int = Field(ge=1, description="steps of the fastest worker; the others take as many as fit")


BY_FORM: Final = Discriminator(
    lambda value: "by time" if isinstance(value, ByTime | Mapping) else "number of steps"
)
TimedPeriod = Annotated[ByTime, Tag("by time")]
Period = Annotated[Annotated[int, Field(ge=1), Tag("number of steps")] | TimedPeriod, BY_FORM]
BY_TIME: Final = "; or `{by: time, steps: 8}`, the fastest worker's, and of each other as many as fit"


def is_by_time(options: Any) -> bool:
    """Whether a scheme's workers take different numbers of steps in a period."""
    return isinstance(getattr(options, "period", None), ByTime)


def period_steps(period: int | ByTime) -> int:
    """Steps of a period, of the fastest worker."""
    return period.steps if isinstance(period, ByTime) else period


def weighs_models(options: Any) -> Literal["models"] | None:
    """``weighs`` of a scheme of local steps: by time, models count alike, whatever is behind them."""
    return None if is_by_time(options) else "models"


def own_steps(period: int | ByTime, speeds: Sequence[float], groups: Groups | None = None) -> tuple[int, ...]:
    """Steps of each worker in a period; with ``groups`` their members step together, as the slowest can.

    >>> own_steps(ByTime(by="time", steps=4), [2.0, 1.0, 0.3])
    (4, 2, 1)
    """
    steps, slowest = period_steps(period), [*speeds]
    if not isinstance(period, ByTime):
        return (steps,) * len(speeds)
    for group in groups or ():
        for rank in group:
            slowest[rank] = min(speeds[each] for each in group)
    return tuple(max(1, math.floor(steps * each / max(slowest) + 1e-9)) for each in slowest)


class LocalSteps:
    """Which steps one worker takes, or all workers at once; ``groups``: of workers that step together."""

    def __init__(self, worker: Worker, period: int | ByTime, groups: Groups | None = None) -> None:
        each = own_steps(period, worker.speeds or (1.0,) * worker.size, groups)
        self._steps, self._own = period_steps(period), {each[rank] for rank in worker.ranks}

    def takes(self, since: int) -> bool:
        """Whether the worker takes step ``since``, counted from the beginning of a period; all before it.

        Raises ``NotInLockstep`` where some of all workers take it.
        """
        taken = {(since + 1) * own // self._steps > since * own // self._steps for own in self._own}
        if since >= 0 and len(taken) > 1:
            raise NotInLockstep("workers take different numbers of steps: run it on the event driver")
        return since < 0 or taken.pop()
