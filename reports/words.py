"""Numbers and conclusions in words, for the terminal and for the report page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

from paceline.sim.records.equal_terms import Goal
from paceline.sim.records.intervals import FEWEST
from paceline.sim.records.run import Source
from paceline.sim.records.summary import SchemeSummary, Summary, ranking

_TIMES: Final = (("µs", 1e-6), ("ms", 1e-3), ("s", 1.0), ("min", 60.0), ("h", 3600.0), ("d", 86400.0))
_SIZES: Final = (("B", 1.0), ("kB", 1e3), ("MB", 1e6), ("GB", 1e9), ("TB", 1e12), ("PB", 1e15))
_SAME: Final = 0.02
"""Ratios that differ from 1 by less than this are called the same."""

_VERBS: Final = {"compute": "computes for", "communicate": "communicates for", "wait": "waits"}


def time_unit(values_s: Iterable[float]) -> tuple[str, float]:
    """Name and seconds of the unit in which these times read best together: that of the smallest."""
    positive = [value for value in values_s if value > 0]
    smallest = min(positive, default=1.0)
    # Minutes and longer begin late: 90 s reads better than 1.5 min.
    starts = [seconds * (2 if seconds >= 60 else 1) for _, seconds in _TIMES]
    best = max((i for i, start in enumerate(starts) if smallest >= start), default=0)
    return _TIMES[best]


def duration(value_s: float, unit: tuple[str, float] | None = None) -> str:
    """A time with three digits and its unit.

    >>> duration(0.0401), duration(84.26), duration(5400)
    ('40.1 ms', '84.3 s', '90 min')
    """
    name, seconds = unit or time_unit([value_s])
    return f"{digits(value_s / seconds)} {name}"


def size(num_bytes: float) -> str:
    """An amount of data with three digits and its unit.

    >>> size(12_340_000_000)
    '12.3 GB'
    """
    name, one = size_unit(num_bytes)
    return f"{digits(num_bytes / one)} {name}"


def size_unit(num_bytes: float) -> tuple[str, float]:
    """Name and bytes of the largest unit of which there is at least one."""
    return next((unit for unit in reversed(_SIZES) if num_bytes >= unit[1]), _SIZES[0])


def digits(value: float) -> str:
    """Three significant digits, or a whole number; thousands set apart, no exponent.

    >>> digits(0.04567), digits(90.0), digits(82.03), digits(12345.6)
    ('0.0457', '90', '82.0', '12,346')
    """
    value = float(f"{value:.9g}")
    if value.is_integer():
        return f"{value:,.0f}"
    return f"{value:,.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def factor(value: float) -> str:
    """A ratio: finer where it is near 1.

    >>> factor(1.042), factor(3.14), factor(31.4)
    ('1.04x', '3.1x', '31x')
    """
    return f"{value:.{2 if value < 2 else 1 if value < 10 else 0}f}x"


def percent(share: float) -> str:
    """A share in whole per cent."""
    return f"{100 * share:.0f} %"


def plain(name: str) -> str:
    """A metric's name with blanks in place of underscores."""
    return name.replace("_", " ")


def goal(target: Goal) -> str:
    """The target in words."""
    return f"a {plain(target['metric'])} of {target['value']:g}"


def ranked(summary: Summary, source: Source | None = None) -> list[SchemeSummary]:
    """The rows of one source (by default of the first run), best first."""
    rows = summary["summary"]
    main = rows[0]["source"] if rows else None
    wanted = source or main
    winner = summary["winner"] if wanted == main else None
    return ranking((row for row in rows if row["source"] == wanted), winner)


def verdict(summary: Summary, source: Source | None = None) -> str:
    """Who wins and by what factor, in one or two sentences."""
    rows = ranked(summary, source)
    target = summary["target"]
    if not rows:
        return "Nothing was run."
    best = rows[0]
    first_s = best["time_to_target_s"]["median"]
    if first_s is None:
        return _without_winner(summary, rows)
    what = goal(target) if target else "the target"
    if len(rows) == 1:
        return f"{best['label']} reaches {what} after {duration(first_s)}."
    second = rows[1]
    second_s = second["time_to_target_s"]["median"]
    ratio = second["ratio_to_best"]["median"]
    if second_s is None or ratio is None:
        text = f"Only {best['label']} reaches {what}, after {duration(first_s)}"
        if best["runs"] > 1:
            text = f"Only {best['label']} reaches {what} in most of its repeats, after {duration(first_s)}"
        bounds = [row["at_least_s"] for row in rows[1:] if row["at_least_s"] is not None]
        far = f"; the others had up to {factor(max(bounds) / first_s)} that time" if bounds else ""
        return f"{text}{far}."
    times = f"{duration(first_s, time_unit([first_s]))} against {duration(second_s, time_unit([first_s]))}"
    if best["runs"] > 1:
        times = f"medians {times}"
    if ratio < 1 + _SAME / 2:
        return f"{best['label']} and {second['label']} reach {what} at the same time: {times}."
    text = f"{best['label']} reaches {what} first, {factor(ratio)} as fast as {second['label']}"
    if first_s <= second_s:
        return f"{text}: {times}."
    return f"{text} on the same seeds, though not in the median of each: {times}."


def confidence(summary: Summary, source: Source | None = None) -> str | None:
    """How sure the order of the first two is; None where there is no order."""
    rows = ranked(summary, source)
    if len(rows) < 2 or rows[0]["time_to_target_s"]["median"] is None:
        return None
    best, second = rows[:2]
    repeats = min(best["runs"], second["runs"])
    if repeats < 2:
        return "One repeat only: how much of this is chance is not known."
    first = f"{best['label']} was first in {best['wins']:g} of {repeats}"
    low, high = second["ratio_to_best"]["low"], second["ratio_to_best"]["high"]
    if repeats < FEWEST:
        return f"{first} paired repeats; how much of the factor is chance takes {FEWEST} to tell."
    if low is None:
        return None
    upper = factor(high) if high is not None else "no bound above"
    text = f"Over {repeats} paired repeats the factor is {factor(low)} to {upper} (95 % interval); {first}"
    if best["p_win"] is not None:
        text += f", so that its chance to be first once more is {percent(best['p_win'])}"
    return text + (". That does not settle who is first." if low <= 1 else ".")


def tuning(summary: Summary) -> list[str]:
    """What each scheme chose for itself, a sentence each; a value at the end of its grid is flagged."""
    sentences = []
    for each in summary.get("tuning", []):
        values = ", ".join(f"{key} {value}" for key, value in each["chosen"].items())
        text = f"{each['label']} runs with {values}, the best of {len(each['trials'])} trials"
        if each["at_edge"]:
            text += (
                f"; {' and '.join(each['at_edge'])} at the edge of the grid: a better value may lie beyond"
            )
        sentences.append(f"{text}.")
    return sentences


def failures(summary: Summary, source: Source | None = None) -> list[str]:
    """One sentence for each scheme with repeats that diverged or broke off."""
    sentences = []
    for row in ranked(summary, source):
        for status, verb in (("diverged", "diverged"), ("partial", "broke off")):
            mine = [
                run
                for run in summary["runs"]
                if (run["source"], run["label"], run["status"]) == (row["source"], row["label"], status)
            ]
            if mine:
                reason = next((run["message"] for run in mine if run.get("message")), "")
                times = f" in {len(mine)} of {row['runs']} repeats" if row["runs"] > 1 else ""
                if status == "partial" and all(run["reached_target"] for run in mine):
                    verb = "went on to the target without everybody"
                sentences.append(f"{row['label']} {verb}{times}{f' ({reason})' if reason else ''}.")
    return sentences


def why(summary: Summary, source: Source | None = None) -> str | None:
    """Why the winner is ahead of the second: number of steps, and what a step costs. None without both."""
    rows = ranked(summary, source)
    if len(rows) < 2 or rows[0]["time_to_target_s"]["median"] is None:
        return None
    best, second = rows[:2]
    if not all(row["iterations"] and row["wall_clock_s"] for row in (best, second)):
        return None
    one, two = best["label"], second["label"]
    mine, other = best["steps_to_target"], second["steps_to_target"]
    if mine is None or other is None or not other:
        return f"A step of {one} costs {_cost(best, second, f'one of {two}')}."
    counts = f"{mine:,.0f} instead of {other:,.0f}"
    few, cheap = mine / other, _step_s(best) / _step_s(second)
    cost = _cost(best, second)
    if abs(few - 1) < _SAME:
        return f"{one} needs as many steps as {two} ({counts}), and each costs {cost}."
    if few >= 2:
        much = f"{factor(few)} as many steps as"
    else:
        much = f"{percent(abs(few - 1))} {'more' if few > 1 else 'fewer'} steps than"
    joint = "but" if (few > 1) != (cheap > 1) and abs(cheap - 1) >= _SAME else "and"
    return f"{one} needs {much} {two} ({counts}), {joint} each costs {cost}."


def _without_winner(summary: Summary, rows: Sequence[SchemeSummary]) -> str:
    target = summary["target"]
    if target is None:
        cheapest = min((row for row in rows if row["iterations"]), key=_step_s, default=None)
        if cheapest is None:
            return "There is no target, so nobody wins."
        return (
            "There is no target, so nobody wins. "
            f"The cheapest step is {cheapest['label']}'s: {duration(_step_s(cheapest))} on average."
        )
    scores = [
        (abs(score - target["value"]), run["label"], score)
        for run in summary["runs"]
        if run["source"] == rows[0]["source"] and (score := run["final"].get(target["metric"])) is not None
    ]
    often = "in most of its repeats" if any(row["reached"] for row in rows) else ""
    text = f"No scheme reached {goal(target)}{' ' + often if often else ''}."
    if scores and not often:
        _, label, score = min(scores)
        text += f" {label} came nearest, with {digits(score)}."
    return text


def _step_s(row: SchemeSummary) -> float:
    return row["wall_clock_s"] / row["iterations"]


def _cost(best: SchemeSummary, second: SchemeSummary, than: str = "") -> str:
    """How the cost of a step compares, and which parts make the difference."""
    ratio = _step_s(best) / _step_s(second)
    if abs(ratio - 1) < _SAME:
        return f"about the same{' as ' + than if than else ''} ({duration(_step_s(best))})"
    extreme = ratio <= 0.5 or ratio >= 2
    much = factor(max(ratio, 1 / ratio)) if extreme else percent(abs(ratio - 1))
    compared = f"{much} {'more' if ratio > 1 else 'less'}{' than ' + than if than else ''}"
    mine, other = _parts(best), _parts(second)
    gaps = {part: other[part] - mine[part] for part in mine}
    total = sum(gaps.values())
    causes = [
        part for part in sorted(gaps, key=lambda part: -gaps[part] / total) if gaps[part] / total > 0.25
    ]
    return f"{compared}: in a step a worker " + " and ".join(
        f"{_VERBS[part]} {duration(mine[part])} instead of {duration(other[part])}" for part in causes
    )


def _parts(row: SchemeSummary) -> dict[str, float]:
    """Seconds per step."""
    shares, steps = row["time_s"], row["iterations"]
    return {
        "compute": shares["compute"] / steps,
        "communicate": shares["communicate"] / steps,
        "wait": shares["wait"] / steps,
    }
