"""The verdict: which scheme is first, how sure that is, and one sentence that the repeats support.

Schemes race on the same seeds, so one rule decides everywhere: a scheme is beaten by another if the median of
their paired ratio (``intervals.of_ratio``) says so. The unbeaten scheme is first. If several are unbeaten
(they tie), or none is (a beats b, b beats c and c beats a), the smallest median time among them, or among
all, decides, and then how often they arrive. Schemes that miss the target in most repeats take no part.

The order is *settled* where the 95 % interval of the paired ratio (``intervals.of_ratio``) of every other
scheme to the winner lies above 1. The level is not shared out among the others: the more equals there are,
the less likely the best of them beats all by chance (Gutmann and Maymin 1987). Fewer than
``intervals.FEWEST`` repeats settle only schemes more than ``BEYOND_CHANCE`` apart in all of them, unless
nothing in the runs is random. What the examples of the scores leave open (``carry.score_error``) is added to
what the repeats do, as squares of logarithms.

A tuned scheme may have chosen the wrong values by the chance of its trials. So no order is settled while
other values may make it faster than the winner: trials with them have to be slower than the
winner's repeats by more than chance gives in 5 % of cases (Welch's t, with the spread of the repeats).

Schemes *tie* where the whole interval lies within ``TIED_WITHIN`` of 1: however sure the order of such two
is, a table shows 1.00x for both, and the clock is not known that well (docs/validation.md).

References:
    Gutmann and Maymin, Is the selected population the best?, Annals of Statistics 15, 1987.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from types import MappingProxyType
from typing import Final, NotRequired

import numpy as np
from typing_extensions import TypedDict

from ..config.units import format_seconds
from ..seeds import Floats
from . import intervals
from .rates import RateOrders

MOST_REPEATS: Final = 100
"""Most repeats named as a number; beyond it is "more than 100"."""

TIED_WITHIN: Final = 0.005
"""Relative difference below which two times count as equal."""

_LEVEL_Z: Final = 1.96
"""Standard normal quantile of a 95 % interval."""
_POWER_Z: Final = 0.84
"""Standard normal quantile of 80 %: how often the named number of repeats settles the order."""
_NORMAL: Final = statistics.NormalDist()
_HALF: Final = _NORMAL.inv_cdf(0.75)
"""Size that half of all standard normal values exceed."""
_MEDIAN_SPREAD: Final = math.sqrt(math.pi / 2)
"""Standard error of a median over that of a mean, for normal values."""

BEYOND_CHANCE: Final = 2.0
"""Assumed factor between two equal schemes that one repeat exceeds in 5 % of cases."""
_RUN_SPREAD: Final = math.log(BEYOND_CHANCE) / _LEVEL_Z / math.sqrt(2)
"""Matching deviation of a run's log time: 25 %, more than most trainings have."""


def find_winner(times: Mapping[str, Mapping[int, float]]) -> str | None:
    """Label of the first scheme, None where none arrives.

    Args:
        times: label -> seed -> time to target, infinite where it was not reached. Two schemes that share no
            seed do not beat each other.
    """
    medians = {label: intervals.of_median(list(column.values()))["median"] for label, column in times.items()}
    arrived = {
        label: (median, -sum(map(math.isfinite, times[label].values())))
        for label, median in medians.items()
        if median is not None
    }
    beaten = set()
    for a, b in combinations(arrived, 2):
        ratio = intervals.median_ratio(times[a], times[b])
        if ratio is not None and ratio != 1:
            beaten.add(a if ratio > 1 else b)
    unbeaten = [label for label in arrived if label not in beaten]
    return min(unbeaten or arrived, key=arrived.__getitem__, default=None)


def chance_to_win(wins: float, races: int) -> float:
    """Chance to be first on one more seed, by Jeffreys' estimate: (wins + 1/2) / (races + 1), never 0 or 1.

    A tie is a part of a win. Chances of more than two schemes add up to more than 1: each is against all
    others.

    Source:
        Brown, Cai and DasGupta, Interval estimation for a binomial proportion, Statistical Science 16 (2001).
    """
    return (wins + 0.5) / (races + 1)


def find_winners(columns: Floats) -> Floats:
    """Mark the winners in times [schemes, races] with 1: shared among several, 0 where none arrives."""
    first = (columns == columns.min(axis=0)) & np.isfinite(columns)
    shares: Floats = first / np.maximum(first.sum(axis=0), 1)
    return shares


Value = bool | int | float | str


@dataclass(frozen=True)
class Tried:
    """Number of trials of a scheme with values that it did not choose, and their mean time to the target.

    ``values`` are by key, as in ``tune``; ``time_s`` is infinite where a trial did not get there.
    """

    values: Mapping[str, Value]
    time_s: float
    trials: int


class ScoreError(TypedDict):
    """What is not known of the scores at the target, as medians over runs.

    ``text``: a sentence; ``standard_error``: of a score; ``of_time``: what that is worth, as a share of the
    time to the target; ``of_ratio``: the paired one of the second's time over the first's, 0 where there is
    none.
    """

    text: str
    standard_error: float
    of_time: float
    of_ratio: float


class BreakEven(TypedDict):
    """What the seconds alone decide; see ``break_even``.

    Attributes:
        text: sentences, shown with the verdict.
        examples: ratio of the first's examples to the second's, up to which the first stays ahead.
        here: this ratio in these runs; median 0 or None where the second or both mostly missed the target.
        equal_first, equal_second, equal_factor: the order if all schemes needed equally many examples.
    """

    text: str
    examples: intervals.Interval
    here: intervals.Interval
    equal_first: str
    equal_second: str
    equal_factor: float | None


class Verdict(TypedDict):
    """The first scheme, as far as it is known.

    Attributes:
        text: one sentence without a full stop, shown everywhere.
        settled: the interval supports the order.
        first: the label with the best paired ratio; None if none arrives.
        second: the label to compare with: the next in the ranking, or the next one that cannot be told
            from the first; None where it is alone.
        factor: the median paired ratio of the second to the first; None where most ratios are infinite.
        interval: lower and upper end of the factor's 95 % interval, None for an end that is infinite; None
            with too few repeats.
        repeats_needed: about how many more repeats would settle the order in 80 % of all cases, 0 where it is
            settled; None if more than ``MOST_REPEATS``, or if none would.
        may_be_faster: label -> values of ``tune`` with which it may be faster than the first, as far as its
            trials tell; absent where there are none.
        break_even: absent without a target, and where fewer than two schemes took steps.
        few_rounds: a sentence where schemes averaged too seldom; absent where none did.
        score_error: how well the scores at the target are known; absent where that is not known.
        cheapest: label of the scheme that costs least; absent without prices, or where none arrives.
        settled_by_repeats, settled_by_rates: the two that ``settled`` is, where learning rates were tuned.
        rates: the orders at three of them.
    """

    text: str
    settled: bool
    first: str | None
    second: str | None
    factor: float | None
    interval: list[float | None] | None
    repeats_needed: int | None
    may_be_faster: NotRequired[dict[str, list[dict[str, Value]]]]
    break_even: NotRequired[BreakEven]
    few_rounds: NotRequired[str]
    score_error: NotRequired[ScoreError]
    cheapest: NotRequired[str]
    settled_by_repeats: NotRequired[bool]
    settled_by_rates: NotRequired[bool]
    rates: NotRequired[RateOrders]


def find_verdict(
    ranked: Sequence[str],
    times: Mapping[str, Mapping[int, float]],
    by_step: bool = False,
    exact: bool = False,
    uneven: Mapping[str, float] = MappingProxyType({}),
    at_least: Mapping[str, Mapping[int, float]] | None = None,
    tried: Mapping[str, Sequence[Tried]] | None = None,
    errors: Mapping[str, float] = MappingProxyType({}),
) -> Verdict:
    """Word the verdict on schemes that raced on the same seeds.

    Args:
        ranked: labels, best first.
        times: label -> seed -> seconds to the target, infinite where it was not reached.
        by_step: ``times`` are seconds per step instead, as there is no target.
        exact: nothing in the runs is random, so that one repeat is enough.
        uneven: label -> steps of the fastest worker over those of the slowest, where a mean step therefore
            names no winner.
        at_least: lower bounds on ``times``: without what faults cost, of runs that end before the target, and
            0 where luck in a few draws may decide; absent: ``times``.
        tried: label -> trials with values that the scheme did not choose.
        errors: label -> standard error of the log ratio to the first, by the scores' examples.
    """
    by = " by time per step" if by_step else ""
    arrived = [
        label for label in ranked if intervals.of_median(list(times[label].values()))["median"] is not None
    ]
    if not arrived:
        return _verdict(_nobody(ranked, times, by_step), False, None)
    first, others = ranked[0], list(ranked[1:])
    if not others:
        time_s = format_seconds(intervals.of_median(list(times[first].values()))["median"] or 0.0)
        text = f"{first} takes {time_s} a step" if by_step else f"{first} reaches the target after {time_s}"
        return _verdict(text, True, first, repeats_needed=0)
    tied = {label for label in others if _is_tied(intervals.of_ratio(times[label], times[first]), exact)}
    bounds = at_least or times
    open_ = _may_be_first(first, others, tied, times, bounds, exact, errors)
    unsure = [label for label in open_ if label not in tied]
    by_chance = [x for x in unsure if not _is_behind(times[x], times[first], bounds[x], exact)]
    faster = _may_be_faster(first, others, times, tried or {})
    open_ = [x for x in others if x in open_ or x in faster]
    second = (open_ or others)[0]
    ratio = intervals.of_ratio(times[second], times[first])
    races = len(intervals.paired_ratios(times[second], times[first]))
    factor = ratio["median"]
    measured = [ratio["low"], ratio["high"]] if races >= intervals.FEWEST else None
    interval = measured or ([factor, factor] if exact else None)
    if by_step and first in uneven:
        lead = _lead(second, times[first], times[second], interval, exact, by_step)
        text = f"no winner{by} alone: {first} is ahead{lead}, but its fastest worker does "
        text += f"{format_factor(uneven[first])} the steps of its slowest"
        return _verdict(text, False, first, second, factor, interval)
    if not open_:
        lead = _lead(second, times[first], times[second], interval, exact, by_step)
        return _verdict(f"{first} first{by}{lead}", True, first, second, factor, interval, 0)
    if tied.issuperset(open_):
        equal = all(set(intervals.paired_ratios(times[label], times[first])) == {1.0} for label in open_)
        within = "" if equal else f", within {100 * TIED_WITHIN:g} %"
        text = f"{_choice([first, *open_], 'and', '')} tie{by}{within}"
        return _verdict(text, False, first, second, factor, interval)
    needed = [_repeats_needed(intervals.paired_ratios(times[label], times[first])) for label in by_chance]
    known = [count for count in needed if count is not None]
    most = max(known, default=None) if len(known) == len(needed) else None
    scarce = len(by_chance) < len(unsure)
    text = f"not settled{by}: {_choice([first, *open_])}; {_more(by_chance, most, races, faster, scarce)}"
    verdict = _verdict(text, False, first, second, factor, interval, None if faster or scarce else most)
    return Verdict(**verdict, may_be_faster=faster) if faster else verdict


def _may_be_first(
    first: str,
    others: Sequence[str],
    tied: Collection[str],
    times: Mapping[str, Mapping[int, float]],
    at_least: Mapping[str, Mapping[int, float]],
    exact: bool,
    errors: Mapping[str, float],
) -> list[str]:
    """Those of ``others`` that are ``tied`` with the first, or not surely behind it."""
    open_ = [
        x
        for x in others
        if x in tied or not _is_behind(times[x], times[first], at_least[x], exact, errors.get(x, 0.0))
    ]
    if exact or any(len(intervals.paired_ratios(times[x], times[first])) >= intervals.FEWEST for x in open_):
        return open_
    # Too few repeats to leave anybody out, but a scheme that was never ahead needs no mention.
    return [
        x
        for x in open_
        if x == others[0] or min(intervals.paired_ratios(times[x], times[first]), default=1.0) <= 1
    ]


def _verdict(
    text: str,
    settled: bool,
    first: str | None,
    second: str | None = None,
    factor: float | None = None,
    interval: list[float | None] | None = None,
    repeats_needed: int | None = None,
) -> Verdict:
    return Verdict(
        text=text, settled=settled, first=first, second=second, factor=factor, interval=interval,
        repeats_needed=repeats_needed,
    )  # fmt: skip


def _nobody(ranked: Sequence[str], times: Mapping[str, Mapping[int, float]], by_step: bool) -> str:
    if not ranked:
        return "nothing was run"
    some = any(math.isfinite(time) for label in ranked for time in times[label].values())
    often = " in most of its repeats" if some else ""
    return f"no scheme {'completed its steps' if by_step else 'reached the target'}{often}"


def _is_behind(
    times: Mapping[int, float],
    first: Mapping[int, float],
    at_least: Mapping[int, float],
    exact: bool,
    error: float = 0.0,
) -> bool:
    ratios = intervals.paired_ratios(times if exact else at_least, first)
    if not ratios:
        return False
    low = lead = ratios[0]
    if not exact and len(ratios) < intervals.FEWEST:
        low /= BEYOND_CHANCE
    elif not exact:
        ratio = intervals.of_ratio(times, first)
        low, lead = intervals.or_inf(ratio["low"]), intervals.or_inf(ratio["median"])
    if low <= 1 or math.isinf(low):
        return low > 1
    # The lead exceeds what the repeats and the examples leave open, added as squares of logarithms.
    return math.log(low) * (2 * math.log(lead) - math.log(low)) > (_LEVEL_Z * error) ** 2


def _may_be_faster(
    first: str,
    others: Sequence[str],
    times: Mapping[str, Mapping[int, float]],
    tried: Mapping[str, Sequence[Tried]],
) -> dict[str, list[dict[str, Value]]]:
    """Label -> values whose trials do not show the scheme to be slower than the first, fastest first."""
    faster = {}
    for label in others:
        open_ = [
            each
            for each in tried.get(label, ())
            if each.time_s <= _surely_slower(each, times[label], times[first])
        ]
        if open_:
            faster[label] = [dict(each.values) for each in sorted(open_, key=lambda each: each.time_s)]
    return faster


def _surely_slower(tried: Tried, times: Mapping[int, float], first: Mapping[int, float]) -> float:
    """Mean time above which trials of a scheme show values to be slower than the first."""
    logs, others = (
        [math.log(time) for time in column.values() if 0 < time < math.inf] for column in (first, times)
    )
    if not logs:  # at the target from the start
        return 0.0
    quantile, spreads = _NORMAL.inv_cdf(intervals.LEVEL), (_RUN_SPREAD, _RUN_SPREAD)
    if len(logs) >= intervals.FEWEST:
        from scipy.special import stdtrit  # slow to import, and few verdicts come here

        quantile = float(stdtrit(len(logs) - 1, intervals.LEVEL))
        spreads = (
            statistics.stdev(logs),
            statistics.stdev(others if len(others) >= intervals.FEWEST else logs),
        )
    error = math.hypot(
        _MEDIAN_SPREAD * spreads[0] / math.sqrt(len(logs)), spreads[1] / math.sqrt(tried.trials)
    )
    return math.exp(statistics.median(logs) + quantile * error)


def _is_tied(ratio: intervals.Interval, exact: bool) -> bool:
    ends = (ratio["median"],) if exact else (ratio["low"], ratio["high"])
    return all(end is not None and 1 / (1 + TIED_WITHIN) < end < 1 + TIED_WITHIN for end in ends)


def _lead(
    second: str,
    first_times: Mapping[int, float],
    times: Mapping[int, float],
    interval: list[float | None] | None,
    exact: bool,
    by_step: bool,
) -> str:
    ratios = intervals.paired_ratios(times, first_times)
    factor = intervals.finite(intervals.median_ratio(times, first_times))
    few = "" if interval else f", by {'one repeat' if len(ratios) == 1 else f'{len(ratios)} repeats'}"
    low, high = interval or (intervals.finite(ratios[0]), None)
    if factor is None and not any(first_times.values()):
        return ", which meets the target from the start"
    if factor is None:
        never = "completed its steps" if by_step else "reached the target"
        least = "" if low is None else f", at least {format_factor(low, True)} as fast as {second}"
        return (least or f": {second} never {never}") + few
    if exact:
        return f", {format_factor(factor, True)} as fast as {second} (nothing is random)"
    if few or low is None:
        return f", {format_factor(factor)} as fast as {second}{few}"
    span = f"at least {format_bound(low)}" if high is None else f"{format_bound(low)} to {format_bound(high)}"
    return f", {format_factor(factor)} as fast as {second} ({span})"


def format_bound(value: float) -> str:
    """``format_factor`` with ``apart``, without its x."""
    return format_factor(value, True).removesuffix("x")


def _choice(labels: Sequence[str], conjunction: str = "or", each: str = "one of ") -> str:
    if len(labels) <= 3:
        return f"{', '.join(labels[:-1])} {conjunction} {labels[-1]}"
    return f"{', '.join(labels[:2])} {conjunction} {each}{len(labels) - 2} others"


def _more(
    unsure: Sequence[str],
    repeats: int | None,
    races: int,
    faster: Mapping[str, Sequence[Mapping[str, Value]]],
    scarce: bool,
) -> str:
    how, hard = [], bool(unsure) and repeats is None
    if hard:
        how.append(f"more than {MOST_REPEATS} more repeats")
    elif unsure:
        about = "at least" if races < 2 else "about"
        how.append(f"{about} {repeats} more {'repeat' if repeats == 1 else 'repeats'}")
    if scarce:
        how.append("more examples")
    if faster:
        label, values = next(iter(faster.items()))
        with_ = ", ".join(f"{key} {value}" for key, value in values[0].items())
        others = sum(map(len, faster.values())) - 1
        and_ = "" if not others else f" and {others} other{'s' if others > 1 else ''}"
        how.append(f"more trials ({label} with {with_}{and_})")
    return f"it would take {' and '.join(how)} to tell" if hard else f"{' and '.join(how)} would tell"


def _repeats_needed(ratios: Sequence[float]) -> int | None:
    """Further repeats, at least 1, that settle the order of two in about 80 % of all cases.

    The 95 % interval of a median of n normal values with deviation s is about 1.96 s sqrt(pi / 2n) to either
    side; it has to be shorter than the distance of the true mean logarithm to 0, and more so by the quantile
    of 80 %. Where a scheme did not arrive in every repeat, the share of races won is used alike. ``ratios``
    are paired, of the second to the first, ascending.

    The true distance may differ from the measured one, whose square is increased by that of the median
    deviation: where two look equal, the result is the median over the distances still possible.
    """
    races = len(ratios)
    if races < 2:
        return intervals.FEWEST - races
    logs = [math.log(ratio) if ratio > 0 else -math.inf for ratio in ratios]
    if all(map(math.isfinite, logs)):
        lead, spread = statistics.fmean(logs), statistics.stdev(logs)
        wanted = (_LEVEL_Z + _POWER_Z) * _MEDIAN_SPREAD * spread
    else:
        won = (sum((ratio > 1) + (ratio == 1) / 2 for ratio in ratios) + 0.5) / (races + 1)
        lead, spread = won - 0.5, math.sqrt(won * (1 - won))
        wanted = _LEVEL_Z / 2 + _POWER_Z * spread
    distance = math.hypot(lead, _HALF * spread / math.sqrt(races))
    needed = (wanted / distance) ** 2 if distance else math.inf
    if needed > races + MOST_REPEATS:
        return None
    return max(math.ceil(needed), intervals.FEWEST, races + 1) - races


def format_factor(value: float, apart: bool = False) -> str:
    """Format a ratio, finer near 1; with ``apart`` so fine that a ratio other than 1 does not look like 1.

    >>> format_factor(1.042), format_factor(3.14), format_factor(31.4), format_factor(1.0004, True)
    ('1.04x', '3.1x', '31x', '1.0004x')
    """
    places = 2 if value < 2 else 1 if value < 10 else 0
    while apart and value != 1 and places < 6 and float(f"{value:.{places}f}") == 1:
        places += 1
    return f"{value:.{places}f}x"
