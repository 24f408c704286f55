"""Advice by seconds alone: hours and cost of a number of tokens, and the smallest period.

With T seconds of a step and A of an average, H steps and an average take H T + A. The smallest H with
A <= s (H T + A) is ceil((1 / s - 1) A / T). Where computing times vary, T and A depend on H.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

import torch

from paceline.sim.config.units import format_seconds
from paceline.sim.errors import RunError
from paceline.sim.experiments.costs.step_cost import ENOUGH_PART_WORK, follow, on_free_network, whole_job
from paceline.sim.experiments.costs.tokens import throughput
from paceline.sim.experiments.prepare import resolve
from paceline.sim.records.money.cost import format_money
from paceline.sim.scenario.entries import SchemeEntry
from paceline.sim.scenario.schema import Scenario
from paceline.sim.schemes.common.local_steps import ByTime, is_by_time

from .frameworks import how_to_run, ways_to_run


def plan(scenario: Scenario, tokens: float, hours: float, budget: float) -> dict[str, Any]:
    """``schemes``, fastest first: ``hours``, ``cost`` (0 without prices), ``late`` and ``over_budget``.

    ``fastest`` and ``cheapest`` are labels of those that are neither ``late`` nor ``over_budget``; None
    without any. ``to_run``: label of each -> its rows (``ways_to_run``). ``text`` holds it in sentences.
    """
    scenario = resolve(scenario, torch.device("cpu"))
    answer = throughput(scenario, tokens, with_needs=False)
    text = [f"{row['label']}: not known: {row['problem']}." for row in answer["schemes"] if row["problem"]]
    rows, unit = [], (answer["price"] or {"currency": ""})["currency"]
    for row in sorted((row for row in answer["schemes"] if not row["problem"]), key=itemgetter("hours")):
        cost = (row["costs"] or {"all tokens": 0.0})["all tokens"]
        over = {"late": row["hours"] > hours, "over_budget": cost > budget}
        parts = [
            f"{row['hours']:,.1f} h", *["too late"] * over["late"],
            *[format_money(cost, unit)] * bool(unit), *["over budget"] * over["over_budget"],
        ]  # fmt: skip
        text.append(f"{row['label']}: {', '.join(parts)}.")
        rows.append({"label": row["label"], "hours": row["hours"], "cost": cost, **over})
    within = [row for row in rows if not row["late"] and not row["over_budget"]]
    first, cheapest = (min(within, key=itemgetter(key), default={}).get("label") for key in ("hours", "cost"))
    text.append(f"Recommended: {first}." if first else "Nothing ends in time and within the budget.")
    if first != cheapest:
        text[-1] = f"Fastest: {first}. Cheapest: {cheapest}."
    named = [entry for entry in scenario.schemes if entry.label in (first, cheapest)]
    to_run = {entry.label: ways_to_run(scenario, entry) for entry in named}
    text += [how_to_run(entry, to_run[entry.label], entry.label) for entry in named]
    return {"scenario": scenario.name, "transport": answer["transport"], "tokens": tokens, "schemes": rows,
            "fastest": first, "cheapest": cheapest, "to_run": to_run, "text": text}  # fmt: skip


SHARE: Final = 0.1
"""Most of the time that averages take."""
NOTE: Final = (
    "By seconds alone: nothing is trained here, and averaging seldom may cost examples. With a task and "
    "stop.target, or with measured curves (workload.curves), candidates race."
)


def smallest_periods(scenario: Scenario) -> list[dict[str, Any]]:
    """A row for each scheme with a period that waits for its averages, or for local SGD without any.

    ``step_s`` of a step without average, ``average_s`` of an average, ``period``, the ``share`` of averages
    with it, and how ``to_run`` it; or a ``problem``.
    """
    own = [x for x in scenario.schemes if hasattr(x.options, "period") and not getattr(x.options, "delay", 0)]
    entries = own or [SchemeEntry.model_validate({"local_sgd": {"period": 1, "label": "local_sgd"}})]
    return [{"label": entry.label, **_smallest(scenario, entry)} for entry in entries]


def _with_steps(entry: SchemeEntry, steps: int) -> SchemeEntry:
    """A scheme with so long a period, by time where it was."""
    written = ByTime(by="time", steps=steps) if is_by_time(entry.options) else steps
    return entry.model_copy(update={"options": entry.options.model_copy(update={"period": written})})


def describe(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence for each advice, with the labels of all rows that have it, and on how to run each."""
    labels: dict[str, list[str]] = {}
    for row in rows:
        labels.setdefault(_advice(row), []).append(row["label"])
    advices = [f"{', '.join(own)}: {advice}" for advice, own in labels.items()]
    return [*advices, *(row["text"] for row in rows if "text" in row)]


def _advice(row: Mapping[str, Any]) -> str:
    if "problem" in row:
        return f"{row['problem']}."
    how, beyond = "in every step", ""
    if row["period"] > 1:
        how = f"every {row['period']:,} steps, or more seldom"
        beyond = f", and over {100 * SHARE:g} % at shorter periods"
    step, average = format_seconds(row["step_s"]), format_seconds(row["average_s"])
    share = f"averages are {100 * row['share']:.1f} % of the time{beyond}"
    return f"average {how}. A step takes {step}, an average {average}: {share}."


def _smallest(scenario: Scenario, entry: SchemeEntry) -> dict[str, Any]:
    fragments = getattr(entry.options, "fragments", 1)
    period, least = 0, fragments
    step_s = average_s = 0.0
    try:
        while period < least:
            period = least
            step_s, average_s = _seconds(scenario, entry, period)
            least = smallest_period(step_s, average_s)
    except RunError as error:
        return {"problem": str(error)}
    share = average_s / (period * step_s + average_s)
    own = _with_steps(entry, math.ceil(period / fragments) * fragments)
    to_run = ways_to_run(scenario, own)
    return {"step_s": step_s, "average_s": average_s, "period": period, "share": share, "to_run": to_run,
            "text": how_to_run(own, to_run, entry.label)}  # fmt: skip


def smallest_period(step_s: float, average_s: float) -> int:
    """The smallest number of steps to an average with which averages take at most ``SHARE`` of the time.

    >>> smallest_period(1.0, 2.0)
    18
    """
    return max(1, math.ceil((1 / SHARE - 1) * average_s / step_s * (1 - 1e-9)))


def _seconds(scenario: Scenario, entry: SchemeEntry, period: int) -> tuple[float, float]:
    """Seconds of a step without its average, and of an average, at a period."""
    job = whole_job(scenario, _with_steps(entry, period))
    span = follow(job, lambda complete, work: complete > 1 and work >= ENOUGH_PART_WORK).span
    free = on_free_network(job.with_rounds(0.0))
    free_s, whole_s = (follow(each, span).step_s for each in (free, job))  # rounded alike
    return free_s, period * (whole_s - free_s)
