"""Numbers and conclusions in words, for the terminal and for the report page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from paceline.sim.config.units import format_bytes
from paceline.sim.records.carry.score_error import SPOKEN
from paceline.sim.records.comparison import Comparison
from paceline.sim.records.intervals import Interval
from paceline.sim.records.money.cost import format_money
from paceline.sim.records.run import UNTIMED_ENCODING, Source, untimed
from paceline.sim.records.scenario_facts import Goal
from paceline.sim.records.summary import (
    Bounds,
    Cost,
    MemoryRecord,
    SchemeSummary,
    Summary,
    chance_known,
    is_by_step,
    is_uneven,
    main_source,
    num_paired,
    ranking,
    verdict_of,
)
from paceline.sim.records.verdict import format_factor

_TIMES: Final = (("µs", 1e-6), ("ms", 1e-3), ("s", 1.0), ("min", 60.0), ("h", 3600.0), ("d", 86400.0))
_SIZES: Final = (("B", 1.0), ("kB", 1e3), ("MB", 1e6), ("GB", 1e9), ("TB", 1e12), ("PB", 1e15))
UNIT_SIZES: Final = {f" {name}": one for name, one in (*_TIMES, *_SIZES)}
_SAME: Final = 0.02
"""Ratios that differ from 1 by less than this are called the same."""

COSTS: Final[Mapping[Cost, str]] = {
    "compute": "computing",
    "waiting": "waiting",
    "latency": "latency",
    "bandwidth": "bandwidth",
    "software": "software",
}
"""The shares of ``Bounds`` in words."""

_VERBS: Final = {"compute": "computes for", "communicate": "communicates for", "wait": "waits"}


def time_unit(values_s: Iterable[float]) -> tuple[str, float]:
    """Name and seconds of the most readable common unit: that of the smallest time."""
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
    """Name and bytes of the largest unit not above ``num_bytes``."""
    return next((unit for unit in reversed(_SIZES) if num_bytes >= unit[1]), _SIZES[0])


def digits(value: float) -> str:
    """Three significant digits, or a whole number; thousands set apart, no exponent.

    >>> digits(0.04567), digits(90.0), digits(82.03), digits(12345.6)
    ('0.0457', '90', '82.0', '12,346')
    """
    value = float(f"{value:.9g}")
    if value.is_integer():
        return f"{value:z,.0f}"
    return f"{value:,.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def percent(share: float) -> str:
    """A share in whole per cent.

    >>> percent(0.456), percent(-1e-17)
    ('46 %', '0 %')
    """
    return f"{100 * share:z.0f} %"


def plain(name: str) -> str:
    """A metric's name with blanks in place of underscores."""
    return name.replace("_", " ")


def goal(target: Goal) -> str:
    """The target in words."""
    return f"a {plain(target['metric'])} of {target['value']:g}"


def ranked(summary: Summary, source: Source | None = None) -> list[SchemeSummary]:
    """The rows of one source (by default of the first run), best first."""
    main = main_source(summary)
    wanted = source or main
    winner = summary["winner"] if wanted == main else None
    return ranking((row for row in summary["summary"] if row["source"] == wanted), winner)


def deciding(row: SchemeSummary, by_step: bool) -> Interval:
    """The deciding time: to the target, or of a step."""
    return row["step_s"] if by_step else row["time_to_target_s"]


def verdict(summary: Summary, source: Source | None = None) -> str:
    """The winner, as far as the repeats tell (``paceline.sim.records.verdict``)."""
    wanted = source or main_source(summary)
    return summary["verdict"]["text"] if wanted is None else verdict_of(summary, wanted)["text"]


def beside_verdict(summary: Summary, source: Source) -> list[str]:
    """Sentences about what the order depends on, and about who costs least."""
    known, rows = verdict_of(summary, source), {row["label"]: row for row in ranked(summary, source)}
    sentences = [known["break_even"]["text"]] if "break_even" in known else []
    sentences += [known["rates"]["text"]] if "rates" in known else []
    if "scope" in summary and known["first"] in summary["scope"].get("outer", ()):
        sentences.append(
            f"Part of the lead of {known['first']} may be its outer step, which all-reduce can take too "
            "(all_reduce: {outer: {period: 16}})."
        )
    sentences += [known["few_rounds"]] if "few_rounds" in known else []
    if "score_error" in known and known["score_error"]["of_time"] > SPOKEN:
        sentences.append(known["score_error"]["text"])
    first, cheapest = known["first"], known.get("cheapest")
    if not is_by_step(summary):  # beside times per step it is said of each scheme
        sentences += encoded_for_nothing(first, list(rows.values()))
    if first is not None and cheapest is not None and first != cheapest:
        least, more = (cost(rows[label]) for label in (cheapest, first))
        per = "a step" if is_by_step(summary) else "to the target"
        sentences.append(f"{cheapest} costs least: {least} {per}, where {first} costs {more}.")
    return sentences


def encoded_for_nothing(first: str | None, rows: Sequence[SchemeSummary]) -> list[str]:
    """A sentence about encoding that the first does not pay for; empty where it does, or has none."""
    left_out = {each for row in rows if row["label"] == first for each in row.get("leaves_out", ())}
    return [f"{first} is first without {each}." for each in untimed((UNTIMED_ENCODING,)) if each in left_out]


def cost(row: SchemeSummary) -> str:
    """The median cost; "-" if there is none."""
    spent = row["cost"]
    return "-" if spent["median"] is None else format_money(spent["median"], spent["currency"])


def prices(summary: Mapping[str, Any]) -> list[str]:
    """The prices, and what costs leave out of faults, in sentences; empty without any."""
    if (price := summary.get("price")) is None:
        return []
    ends = [format_money(each, price["currency"]) for each in sorted(price["egress"].values()) or [0.0]]
    between = ends[0] if ends[0] == ends[-1] else f"{ends[0]} to {ends[-1]}"
    table = f" (table {price['table']})" if price["table"] else ""
    sentences = [
        f"Prices{table}: {format_money(price['per_hour'], price['currency'])} an hour for all workers, and "
        f"{between} for a GB between sites."
    ]
    if any(row.get("goodput", 1.0) < 1.0 for row in summary.get("schemes") or summary["summary"]):
        sentences.append(
            "Costs have the time in them that faults and checkpoints take, but no bytes of steps that 'wait' "
            "and 'restart' repeat."
        )
    return sentences


def repeats(rows: Sequence[SchemeSummary]) -> str:
    """Number of repeats of some rows, or its range in unfinished results."""
    fewest, most = min(row["runs"] for row in rows), max(row["runs"] for row in rows)
    return f"{most}" if fewest == most else f"{fewest} to {most}"


def medians(summary: Summary, source: Source | None = None) -> str | None:
    """The medians of the two best schemes in a sentence; None where nothing was run."""
    rows = ranked(summary, source)
    if not rows:
        return None
    best = rows[0]
    several = repeats(rows[:2])
    of_repeats = f" (medians of {several} repeats)" if several != "1" else ""
    if is_by_step(summary):
        steps = [(row["label"], row["step_s"]["median"]) for row in rows[:2]]
        known = [(label, step_s) for label, step_s in steps if step_s is not None]
        if not known:
            return None
        unit = time_unit(step_s for _, step_s in known)
        costs = " and ".join(f"{duration(step_s, unit)} under {label}" for label, step_s in known)
        return f"A step takes {costs}{of_repeats}."
    first_s = best["time_to_target_s"]["median"]
    if first_s is None:
        return _nearest(summary, rows)
    target = summary["target"]
    what = goal(target) if target else "the target"
    if len(rows) == 1:
        return f"{best['label']} reaches {what} after {duration(first_s)}{of_repeats}."
    second = rows[1]
    second_s = second["time_to_target_s"]["median"]
    if second_s is None:
        often = " in most of its repeats" if best["runs"] > 1 else ""
        text = f"Only {best['label']} reaches {what}{often}, after {duration(first_s)}"
        bounds = [row["at_least_s"] for row in rows[1:] if row["at_least_s"] is not None]
        far = f"; the others had up to {format_factor(max(bounds) / first_s)} that time" if bounds else ""
        return f"{text}{far}."
    unit = time_unit([first_s])
    text = (
        f"{best['label']} reaches {what} after {duration(first_s, unit)}, {second['label']} after "
        f"{duration(second_s, unit)}{of_repeats}"
    )
    if first_s <= second_s:
        return f"{text}."
    return f"{text}; on the same seeds {best['label']} is ahead."


def paired(summary: Summary, source: Source | None = None) -> str | None:
    """An explanation of factors that differ from the quotient of the medians beside them; else None."""
    rows, by_step = ranked(summary, source), is_by_step(summary)
    examples = bool(rows) and "break_even" in verdict_of(summary, rows[0]["source"])
    factors = "Factors, that of examples too," if examples else "Factors"
    for row in rows[1:]:
        mine, first = (deciding(each, by_step)["median"] for each in (row, rows[0]))
        ratio = row["ratio_to_best"]["median"]
        if mine and first and ratio is not None:
            quotient, factor = format_factor(mine / first), format_factor(ratio)
            if quotient != factor:
                return (
                    f"{factors} are medians of the ratios of paired repeats: {factor} for {row['label']}, "
                    f"where the medians' quotient is {quotient}."
                )
    return None


def confidence(summary: Summary, source: Source | None = None) -> str | None:
    """The winner's share of first places; None without an order."""
    rows = ranked(summary, source)
    if (
        len(rows) < 2
        or rows[0]["ratio_to_best"]["median"] is None
        or (is_by_step(summary) and is_uneven(rows[0]))
    ):
        return None
    best = rows[0]
    races = num_paired(summary, best["source"])
    if races < 2:
        return None if chance_known(summary, best["source"]) else ONE_REPEAT
    text = f"{best['label']} was first in {best['wins']:g} of {races} paired repeats"
    if best["p_win"] is not None:
        text += f", so that its chance to be first once more is {percent(best['p_win'])}"
    return f"{text}."


ONE_REPEAT: Final = "One repeat: how much of this is chance is not known."


def tuning(summary: Summary) -> list[str]:
    """Tuned values, a sentence for each choice; values at the edge of a grid are flagged."""
    labels: dict[str, list[str]] = {}
    for each in summary.get("tuning", []):
        values = ", ".join(f"{key} {value}" for key, value in each["chosen"].items())
        choice = f"{values}, the best of {len(each['trials'])} trials"
        if each["at_edge"]:
            choice += (
                f"; {' and '.join(each['at_edge'])} at the edge of the grid: a better value may lie beyond"
            )
        labels.setdefault(choice, []).append(each["label"])
    sentences = [
        f"{listed(of_choice)} {'runs' if len(of_choice) == 1 else 'each run'} with {choice}."
        for choice, of_choice in labels.items()
    ]
    if labels and "proxy" in summary:
        sentences.append("Values tuned on the proxy are no advice for the real model.")
    return sentences


def gradients(summary: Summary, source: Source | None = None) -> list[str]:
    """What was measured about each scheme's gradients, best scheme first."""
    rows = ranked(summary, source)
    return [f"{row['label']}: {row['gradients']['text']}." for row in rows if "gradients" in row]


def steps_between(estimates: Mapping[str, Mapping[int, float]]) -> list[str]:
    """Estimated steps to the target between two numbers of workers, a sentence for each scheme."""
    how = "between the ends, up to 17 % off in 15 checks"  # docs/checks.md
    sentences = []
    for label, steps in estimates.items():
        each = listed([f"{count:.0f} at {workers}" for workers, count in steps.items()])
        sentences.append(f"{label}: steps by a law {how}: {each} workers")
    return sentences


def listed(names: Sequence[str]) -> str:
    """Names as a list in a sentence.

    >>> listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"])
    ('a', 'a and b', 'a, b and c')
    """
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def bound(bounds: Bounds) -> str:
    """The bounds of a scheme, in a line: every cost with a share of 5 % or more, the largest first."""
    shares = sorted(((bounds[cost], cost) for cost in COSTS), key=lambda each: -each[0])
    return ", ".join(
        f"{percent(share)} {COSTS[cost]}{_for_whom(bounds) if cost == 'waiting' else ''}"
        for share, cost in shares
        if share >= 0.05
    )


def memory(record: MemoryRecord) -> str:
    """Memory of each device of a worker, as a sum."""
    parts = " + ".join(f"{name} {format_bytes(each)}" for name, each in record["parts"].items())
    limit = record["limit_bytes"]
    of_limit = "" if limit is None else f" of {format_bytes(limit)}"
    return f"{format_bytes(record['total_bytes'])}{of_limit} = {parts}"


def not_counted(record: MemoryRecord) -> str:
    """Memory left out of the sum."""
    return f"not counted: {', '.join(record['left_out'])}"


def _for_whom(bounds: Bounds) -> str:
    """The stragglers that a scheme waits for, if mostly the same workers."""
    ranks = bounds["waits_for"]
    if not ranks or bounds["slow_workers"] < bounds["waiting"] / 2:
        return " for whoever is late"
    if len(ranks) == 1:
        return f" for worker {ranks[0]}"
    if len(ranks) <= 4:
        return f" for workers {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
    return f" for {len(ranks)} slow workers"


def failures(summary: Summary, source: Source | None = None, diverged: bool = False) -> list[str]:
    """One sentence for each scheme with repeats that diverged or broke off.

    ``diverged``: of the former alone, where it is known why.
    """
    sentences = []
    for row in ranked(summary, source):
        for status, verb in (("diverged", "diverged"), ("partial", "broke off"))[: 1 if diverged else 2]:
            mine = [
                run
                for run in summary["runs"]
                if (run["source"], run["label"], run["status"]) == (row["source"], row["label"], status)
            ]
            reason = next((run["message"] for run in mine if run.get("message")), "")
            if mine and (reason or not diverged):
                times = f" in {len(mine)} of {row['runs']} repeats" if row["runs"] > 1 else ""
                sentences.append(f"{row['label']} {verb}{times}{f' ({reason})' if reason else ''}.")
    return sentences


def faults(summary: Summary, source: Source | None = None) -> list[str]:
    """Each scheme's goodput and what lowers it, means over repeats, and how surely it gets to the target."""
    sentences = []
    for row in ranked(summary, source):
        costs = [
            run["faults"]
            for run in summary["runs"]
            if (run["source"], run["label"]) == (row["source"], row["label"]) and "faults" in run
        ]
        if n := len(costs):
            down_s, again_s, writing_s = (
                sum(each[key] for each in costs) for key in ("down_s", "repeated_s", "writing_s")
            )
            outages = sum(each["outages"] for each in costs) / n
            parts = [
                f"{duration(down_s / n)} without work",
                f"{duration(again_s / n)} of work repeated",
            ]
            parts += [f"{duration(writing_s / n)} to write checkpoints"] * (writing_s > 0)
            text = (
                f"{row['label']}: goodput {percent(row['goodput'])} of that without faults: "
                f"{outages:.3g} outage{'s' * (outages != 1)}, {', '.join(parts)}."
            )
            if (within_s := row.get("time_to_target_p90_s")) is not None:
                text += f" In 9 of 10 draws it is at the target within {duration(within_s)}."
            elif "time_to_target_p90_s" in row and summary["target"] is not None:
                text += f" It is at the target in {row['reached']} of {row['runs']} draws."
            sentences.append(text)
    return sentences


def validated(comparison: Comparison | None) -> list[str]:
    """Whether predictions are within the stated tolerance; [] without one."""
    if comparison is None or "verdict" not in comparison:
        return []
    text = comparison["verdict"]["text"]
    sentences = [f"{text[:1].upper()}{text[1:]}."]
    if message := comparison.get("message"):
        sentences.append(f"Not all runs were made: {message}.")
    return sentences


def why(summary: Summary, source: Source | None = None) -> str | None:
    """Why the winner is ahead of the second: number and cost of steps. None without both."""
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
    few, cheap = mine / other, step_s(best) / step_s(second)
    cost = _cost(best, second)
    if abs(few - 1) < _SAME:
        return f"{one} needs as many steps as {two} ({counts}), and each costs {cost}."
    if few >= 2:
        much = f"{format_factor(few)} as many steps as"
    else:
        much = f"{percent(abs(few - 1))} {'more' if few > 1 else 'fewer'} steps than"
    joint = "but" if (few > 1) != (cheap > 1) and abs(cheap - 1) >= _SAME else "and"
    return f"{one} needs {much} {two} ({counts}), {joint} each costs {cost}."


def _nearest(summary: Summary, rows: Sequence[SchemeSummary]) -> str | None:
    """The scheme nearest to a target that no run reached; None if one did, or nothing was scored."""
    target = summary["target"]
    if target is None or any(row["reached"] for row in rows):
        return None
    scores = [
        (abs(score - target["value"]), run["label"], score)
        for run in summary["runs"]
        if run["source"] == rows[0]["source"] and (score := run["final"].get(target["metric"])) is not None
    ]
    if not scores:
        return None
    _, label, score = min(scores)
    return f"{label} came nearest to {goal(target)}, with {digits(score)}."


def step_s(row: SchemeSummary) -> float:
    """The time of a step; for incomplete runs the wall clock over their steps."""
    return row["step_s"]["median"] or row["wall_clock_s"] / row["iterations"]


def run_s(row: SchemeSummary, by_step: bool) -> float:
    """A run's time as in the tables: the time to the target, or its bound; else the wall clock."""
    to_target_s = None if by_step else row["time_to_target_s"]["median"] or row["at_least_s"]
    return to_target_s or row["wall_clock_s"]


def _cost(best: SchemeSummary, second: SchemeSummary, than: str = "") -> str:
    """The ratio of the costs of a step, and the parts that make the difference."""
    ratio = step_s(best) / step_s(second)
    if abs(ratio - 1) < _SAME:
        return f"about the same{' as ' + than if than else ''} ({duration(step_s(best))})"
    extreme = ratio <= 0.5 or ratio >= 2
    much = format_factor(max(ratio, 1 / ratio)) if extreme else percent(abs(ratio - 1))
    compared = f"{much} {'more' if ratio > 1 else 'less'}{' than ' + than if than else ''}"
    mine, other = spent(best, step_s(best)), spent(second, step_s(second))
    gaps = {part: other[part] - mine[part] for part in mine}
    total = sum(gaps.values())
    causes = [
        part for part in sorted(gaps, key=lambda part: -gaps[part] / total) if gaps[part] / total > 0.25
    ]
    return f"{compared}: in a step a worker " + " and ".join(
        f"{_VERBS[part]} {duration(mine[part])} instead of {duration(other[part])}" for part in causes
    )


def spent(row: SchemeSummary, time_s: float) -> dict[str, float]:
    """``time_s`` divided by the shares of all runs; an idle end does not count."""
    shares = row["time_s"]
    phases = {"compute": shares["compute"], "communicate": shares["communicate"], "wait": shares["wait"]}
    total_s = sum(phases.values()) or 1.0
    return {name: part_s / total_s * time_s for name, part_s in phases.items()}
