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
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Discriminator, Field, Tag

from ...config.settings import Settings
from ...program.worker import Worker


class ByTime(Settings):
    """As many local steps on each worker as fit into the same time."""

    by: Literal["time"] = Field(description="what a period is alike in on all workers, in place of steps")
    steps: int = Field(
        ge=1, description="steps of the fastest worker; others take as many as fit, at least 1"
    )


BY_FORM: Final = Discriminator(
    lambda value: "by time" if isinstance(value, ByTime | Mapping) else "number of steps"
)
TimedPeriod = Annotated[ByTime, Tag("by time")]
LocalPeriod = Annotated[Annotated[int, Field(ge=1), Tag("number of steps")] | TimedPeriod, BY_FORM]


def is_by_time(options: Any) -> bool:
    """Whether a scheme's workers take different numbers of steps in a period."""
    return isinstance(getattr(options, "period", None), ByTime)


def period_steps(period: int | ByTime) -> int:
    """Steps of a period, of the fastest worker."""
    return period.steps if isinstance(period, ByTime) else period


def own_steps(worker: Worker, options: Any) -> tuple[int, ...]:
    """Steps of each worker in a period by time, N of the fastest; of any other period 1 of each, alike."""
    if not is_by_time(options):
        return (1,) * worker.size
    fits = options.period.steps / max(worker.speeds) * (1 + 1e-9)
    return tuple(max(1, math.floor(speed * fits)) for speed in worker.speeds)


def taken_steps(worker: Worker, options: Any) -> Callable[[int], bool]:
    """Whether a worker takes a step, given its number from the beginning of a period; all before that."""
    if not is_by_time(options):
        return lambda since: True
    steps, own = options.period.steps, own_steps(worker, options)[worker.rank]
    return lambda since: since < 0 or (since + 1) * own // steps > since * own // steps
