"""Break-even in examples: how much of a verdict the seconds alone decide, without any theory of learning.

Time to target is examples times seconds per example, run by run. So on a seed the first scheme W stays ahead
of the second S exactly while its examples over those of S are fewer than S's seconds per example over W's.
All workers' examples count; as every scheme has the same workers and batch, ratios of steps are theirs.

A proxy's ratio is held against the factors by which such ratios moved in the nearest of ``STUDIES``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from ..intervals import finite, median_ratio, of_ratio
from ..scenario_facts import Scope
from ..verdict import TIED_WITHIN, BreakEven, Verdict, find_winner, format_bound, format_factor
from .studies import STUDIES

FEWEST_ROUNDS: Final = 16
"""Rounds of averaging below which a run says little of longer ones."""


def too_few_rounds(steps: Mapping[str, float], scope: Scope) -> str:
    """A sentence about schemes that have averaged too seldom; empty where none has. ``steps``: by label."""
    rounds = {
        label: max(0, int(steps[label] - first)) // period
        for label, (first, period) in scope["periods"].items()
        if label in steps
    }
    few = [
        f"{label} {number} round{'' if number == 1 else 's'} of {scope['periods'][label][1]:,} steps"
        for label, number in rounds.items()
        if number < FEWEST_ROUNDS
    ]
    if not few:
        return ""
    return (
        f"Too short to say: {', '.join(few)}. Below {FEWEST_ROUNDS} rounds a scheme has hardly begun, and "
        "with a period scaled down to the run it is another scheme."
    )


Columns = Mapping[str, Mapping[int, float]]
"""Label -> seed -> number."""

PROXY_SAYS: Final = "this proxy says"
"""Beginning of the phrase where the trained model stands for another one."""


def find_break_even(
    verdict: Verdict,
    steps: Columns,
    step_s: Columns,
    whose: str = "these runs say",
    under: str = "",
    scope: Scope | None = None,
    between: tuple[float, float] = (0.0, 0.0),
) -> BreakEven | None:
    """The ratio of examples that turns a verdict round; None where it has no second, or no steps were taken.

    Args:
        steps: steps of a worker to the target, infinite where it was not met.
        step_s: seconds per step up to there, or of the whole run where it was not met.
        whose: beginning of the phrase about the ratio of these runs.
        under: choices that this ratio depends on, as a phrase.
        scope: what the nearest study of proxies did not have; None: unknown.
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
        text += _carries(limit["median"] / here["median"], scope, (first, second))
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


def _carries(factor: float, scope: Scope | None, schemes: Sequence[str]) -> str:
    """Whether an order that a move by ``factor`` turns outlives those of a study, inside what it had."""
    missing = {x: None for y in schemes for x in scope["unstudied"][y]} if scope else {}
    if scope is None or missing:
        why = f": the study has nothing on {', '.join(missing)}" if missing else ""
        return f" How far the ratio carries to other tasks is not known{why}."
    study = STUDIES[scope.get("study", "SGD")]
    survives = "neither"
    if factor > study.moved:
        both = factor > study.moved_rarely
        survives = "both" if both else f"{study.moved} and not {study.moved_rarely}"
    moved = f"by {study.moved} in the median and by more than {study.moved_rarely} in one case of ten"
    tested = f"nothing above {study.largest} parameters was tested"
    order = f"this order would survive {survives}"
    return f" Between {study.compared} such a ratio moved {moved}: {order}; {tested}."
