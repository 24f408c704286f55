"""Number of repeats: fixed, or until the ratios between schemes are known precisely enough.

Looking at the data to decide when to stop makes intervals a little too narrow; ``docs/records.md`` says by
how much.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema

from ..config.limits import MAX_REPEATS
from ..config.problems import format_value, mistake
from ..config.settings import Settings
from ..records.intervals import FEWEST, Interval, of_median, of_ratio, or_inf
from ..records.run import Run
from ..records.verdict import find_winner

_PERCENT: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) *%")


def _read_percent(value: object) -> float:
    match = _PERCENT.fullmatch(value.strip()) if isinstance(value, str) else None
    if not match:
        raise mistake(f"must be a share such as '10 %', not {format_value(value)}")
    return float(match[1]) / 100


Percent = Annotated[
    float,
    BeforeValidator(_read_percent),
    PlainSerializer(lambda share: f"{100 * share:.10g} %", return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "pattern": "^[0-9.]+ *%$", "examples": ["10 %"]}),
]
"""Field written as ``10 %``, held as a share."""


class AutoRepeats(Settings):
    """Repeat until the 95 % interval of every scheme's ratio to the best is narrow enough."""

    half_width: Annotated[Percent, Field(ge=1e-4, le=10)] = Field(
        default=0.1, description="stop at this half-width of the interval, relative to the ratio"
    )
    most: int = Field(default=30, ge=FEWEST, le=MAX_REPEATS, description="maximum number of repeats")


Repeats = Annotated[int, Field(ge=1, le=MAX_REPEATS)] | AutoRepeats


def read_auto(value: Any) -> Any:
    """Replace ``auto`` by its settings; refuse anything but those or a valid number."""
    if value == "auto":
        return {}
    if isinstance(value, bool) or not isinstance(value, int | Mapping | AutoRepeats):
        raise mistake(
            f"must be a number, 'auto' or {{half_width: 10 %, most: 30}}, not {format_value(value)}"
        )
    if isinstance(value, int) and value < 1:
        raise mistake(f"must be at least 1, not {value}")
    if isinstance(value, int) and value > MAX_REPEATS:
        raise mistake(f"must be at most {MAX_REPEATS}, not {format_value(value)}")
    return value


def max_repeats(repeats: int | AutoRepeats) -> int:
    """Largest possible number of repeats."""
    return repeats.most if isinstance(repeats, AutoRepeats) else repeats


def are_enough(repeats: int | AutoRepeats, labels: Sequence[str], runs: Sequence[Run]) -> bool:
    """Whether ``runs``, complete repeats of all ``labels`` in order of seed, suffice.

    A scheme that reaches the target in less than half of its repeats has no ratio that could get narrower.
    """
    done = len(runs) // len(labels)
    if not isinstance(repeats, AutoRepeats):
        return done >= repeats
    if done < FEWEST:
        return False
    if done >= repeats.most:
        return True
    times = {
        label: {x.seed: or_inf(x.time_to_target_s) for x in runs if x.label == label} for label in labels
    }
    medians = {label: of_median(list(column.values())) for label, column in times.items()}
    arrived = {label: interval for label, interval in medians.items() if interval["median"] is not None}
    if len(arrived) < 2:
        return all(_half_width(interval) <= repeats.half_width for interval in arrived.values())
    best = find_winner(times)
    assert best is not None
    ratios = (of_ratio(times[label], times[best]) for label in arrived if label != best)
    return all(_half_width(ratio) <= repeats.half_width for ratio in ratios)


def _half_width(interval: Interval) -> float:
    """Half of an interval over its median; infinite where it has no end."""
    median, low, high = interval["median"], interval["low"], interval["high"]
    if not median or low is None or high is None:
        return math.inf
    return (high - low) / 2 / median
