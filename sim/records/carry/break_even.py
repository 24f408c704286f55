"""Break-even in examples: how much of a verdict the seconds alone decide, without any theory of learning.

Time to target is examples times seconds per example, run by run. So on a seed the first scheme W stays ahead
of the second S exactly while its examples over those of S are fewer than S's seconds per example over W's.
All workers' examples count; as every scheme has the same workers and batch, ratios of steps are theirs.

A proxy's ratio is held against the factors by which such ratios moved between tasks of the same partition and
level of the loss, whatever their batches: ``python -m benchmarks.carry_over`` (docs/proxies.md).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from ..intervals import finite, median_ratio, of_ratio
from ..verdict import TIED_WITHIN, BreakEven, Verdict, find_winner, format_bound, format_factor

Columns = Mapping[str, Mapping[int, float]]
"""Label -> seed -> number."""

PROXY_SAYS: Final = "this proxy says"
"""Beginning of the phrase where the trained model stands for another one."""

COMPARED: Final = "five tasks of 650 to 84,160 parameters"
LARGEST: Final = "814,090"
"""Parameters of the task that the factors were checked on."""
MOVED: Final = 1.22
"""Factor in the median."""
MOVED_RARELY: Final = 1.72
"""Factor that one case in ten exceeds."""


def find_break_even(
    verdict: Verdict,
    steps: Columns,
    step_s: Columns,
    whose: str = "these runs say",
    under: str = "",
    unstudied: Mapping[str, Sequence[str]] | None = None,
    between: tuple[float, float] = (0.0, 0.0),
) -> BreakEven | None:
    """The ratio of examples that turns a verdict round; None where it has no second, or no steps were taken.

    Args:
        steps: steps of a worker to the target, infinite where it was not met.
        step_s: seconds per step up to there, or of the whole run where it was not met.
        whose: beginning of the phrase about the ratio of these runs.
        under: choices that this ratio depends on, as a phrase.
        unstudied: by scheme, what the study of proxies did not have; None: unknown.
        between: the least and the largest ratio that the points of measured curves allow; alike: unknown.
    """
    first, second = verdict["first"], verdict["second"]
    if first is None or second is None or not {first, second} <= step_s.keys():
        return None
    limit, here = of_ratio(step_s[second], step_s[first]), of_ratio(steps[first], steps[second])
    equal = find_winner(step_s)
    if not limit["median"] or equal is None:
        return None
    behind = {x: median_ratio(step_s[x], step_s[equal]) or math.inf for x in step_s if x != equal}
    nearest = min(behind, key=behind.__getitem__)
    factor = behind[nearest]
    ahead = f"{equal} first, {format_factor(factor)} as fast as {nearest}"
    order = ahead if factor > 1 + TIED_WITHIN else f"{equal} and {nearest} tie"
    at = f"fewer than {format_bound(limit['median'])} times {second}'s examples"
    place = "first" if verdict["settled"] else "ahead"
    beside = _beside(second, limit["median"], here["median"], whose, *between) + (under and f" ({under})")
    text = f"{first} is {place} as long as it needs {at}; {beside}. If all needed equally many: {order}."
    if whose == PROXY_SAYS and here["median"] and here["median"] < limit["median"]:
        missing = None if unstudied is None else {x: None for y in (first, second) for x in unstudied[y]}
        text += _carries(limit["median"] / here["median"], missing)
    return BreakEven(
        text=text, examples=limit, here=here,
        equal_first=equal, equal_second=nearest, equal_factor=finite(factor),
    )  # fmt: skip


def _beside(second: str, limit: float, here: float | None, whose: str, low: float, high: float) -> str:
    if not here:  # infinite for the second, or for both
        return f"{second} never met the target"
    span = f", {format_bound(low)} to {format_bound(high)} by their points and noise" if low < high else ""
    # Each median may be of another seed, so that the two may contradict the order.
    return f"{whose} {format_bound(here)}{span}" + (", too close to tell" if max(here, high) >= limit else "")


def _carries(factor: float, missing: Collection[str] | None) -> str:
    """Whether an order that a move by ``factor`` turns outlives those of the study, inside what it had."""
    if missing is None or missing:
        why = f": the study has nothing on {', '.join(missing)}" if missing else ""
        return f" How far the ratio carries to other tasks is not known{why}."
    survives = "neither"
    if factor > MOVED:
        survives = "both" if factor > MOVED_RARELY else f"{MOVED} and not {MOVED_RARELY}"
    moved = f"by {MOVED} in the median and by more than {MOVED_RARELY} in one case of ten"
    tested = f"nothing above {LARGEST} parameters was tested"
    return f" Between {COMPARED} such a ratio moved {moved}: this order would survive {survives}; {tested}."
