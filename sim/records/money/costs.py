"""Costs in a summary: of each run, of each scheme, and which scheme is the cheapest."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ..intervals import Interval
from ..rows import RunRow
from ..run import Run
from ..verdict import find_winner
from .cost import Cheapest, PriceRecord, cost, format_money


def add_costs(row: RunRow, run: Run, price: PriceRecord) -> None:
    """Add the cost of a run, and to its target, by when pairs of sites have their part of the bytes."""
    sent, met = run.between, run.met
    row["cost"] = cost(price, run.wall_clock_s, sent)
    row["cost_to_target"] = None
    if met is not None:
        share = met.bytes_sent / run.bytes_sent if run.bytes_sent else 0.0
        by_then = {a: {b: share * count for b, count in to.items()} for a, to in sent.items()}
        row["cost_to_target"] = cost(price, met.time_s, by_then)


def race_cost(run: RunRow, by_step: bool) -> float:
    """Cost to the target, or of a step of a whole run; infinite for a run that did not get there."""
    if by_step:
        whole = run["status"] == "completed" and run["iterations"] > 0
        return run["cost"] / run["iterations"] if whole else math.inf
    spent = run["cost_to_target"]
    return math.inf if spent is None else spent


def find_cheapest(
    first: str | None, runs: Sequence[RunRow], costs: Mapping[str, Interval], currency: str, by_step: bool
) -> Cheapest | None:
    """The cheapest scheme by paired ratios, if it is not the ``first``; ``costs``: medians by label."""
    by_seed: dict[str, dict[int, float]] = {}
    for run in runs:
        by_seed.setdefault(run["label"], {})[run["seed"]] = race_cost(run, by_step)
    label = find_winner(by_seed)
    if label in (first, None) or first is None:
        return None
    least, other = (format_money(costs[each]["median"] or 0.0, currency) for each in (label, first))
    unit = "a step" if by_step else "to the target"
    return Cheapest(label=label, text=f"{label} costs least: {least} {unit}, where {first} costs {other}")
