"""Hours and cost of a number of tokens under each scheme; the fastest and the cheapest within limits."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

import torch

from paceline.sim.experiments.costs.tokens import throughput
from paceline.sim.experiments.prepare import resolve
from paceline.sim.records.money.cost import format_money
from paceline.sim.scenario.schema import Scenario

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
