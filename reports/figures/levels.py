"""The race elsewhere: who is first at each level of the recorded scores, and at each bandwidth."""

from __future__ import annotations

import math
from functools import partial
from itertools import groupby
from typing import Any, Final

import numpy as np
import pandas as pd

from paceline.sim.records.intervals import median_ratio, or_inf
from paceline.sim.records.rates import seconds_to_levels
from paceline.sim.records.summary import Equal, TuningTrial, orders_of_trials, race_s, verdict_of
from paceline.sim.records.verdict import find_winner

from .. import words
from ..folders import ReportSources, SourceRuns
from .drawing import INK, WIDTH_IN, Picture, annotate, cut, figure, picture
from .metric_curves import make_log

_LEVELS: Final = 100
_HIGHEST: Final = 10.0
"""Ratio to the first at which the figure ends."""
_OPEN: Final = 0.25
"""Opacity of the strip where the order is open by learning rate."""


def runs_scored(frame: pd.DataFrame, metric: str) -> dict[tuple[str, int], pd.DataFrame]:
    """The rows of each label and seed that have the metric."""
    known = frame.dropna(subset=[metric]).groupby(["label", "seed"], observed=True)
    return {(str(label), int(str(seed))): run for (label, seed), run in known}


def rank_levels(part: SourceRuns, equal: Equal, target: float) -> pd.DataFrame:
    """Columns level, first, label and ratio: the median paired ratio of a scheme's time to the first's.

    ``_LEVELS`` levels at equal distances up to the target, whose times are the runs' own. Levels that all
    runs passed before their second scoring, or that no scheme reaches in most repeats, are left out. Where
    learning rates were tuned, low and high are the ends of the same ratio over those of ``RateOrders``, and
    settled_by_rates says whether the first is first at three.
    """
    sign = -1.0 if equal["falling"] else 1.0
    runs = runs_scored(part.results.metrics, equal["metric"])
    start = min((sign * run[equal["metric"]].iloc[:2]).max() for run in runs.values())
    levels = np.linspace(start, sign * target, _LEVELS + 1)[1:]
    times: list[dict[str, dict[int, float]]] = [{} for _ in levels]
    for row in part.runs:
        if (run := runs.get((row["label"], row["seed"]))) is None:
            continue
        seconds = seconds_to_levels(run["time_s"].to_numpy(), sign * run[equal["metric"]].to_numpy(), levels)
        seconds[-1] = race_s(row, by_step=False)
        for at_level, time_s in zip(times, seconds, strict=True):
            at_level.setdefault(row["label"], {})[row["seed"]] = float(time_s)
    tuned = [
        each
        for each in part.results.summary.get("tuning", [])
        if part.source == "simulated" and any("levels" in trial for trial in each["trials"])
    ]
    rows = []
    for level, at_level in zip(sign * levels, times, strict=True):
        if (first := find_winner(at_level)) is not None:
            trial_s = partial(_trial_s, sign=sign, level=level, target=target)
            orders = orders_of_trials(tuned, part.rows, at_level.keys(), first, trial_s)
            for label, mine in at_level.items():
                line: dict[str, Any] = {
                    "level": level, "first": first, "label": label,
                    "ratio": median_ratio(mine, at_level[first]),
                }  # fmt: skip
                if orders is not None:
                    ratios = [or_inf(each) for each in orders["behind"].get(label, [1.0])]
                    line |= {"low": min(ratios), "high": max(ratios), "settled_by_rates": orders["settled"]}
                rows.append(line)
    return pd.DataFrame(rows)


def _trial_s(trial: TuningTrial, *, sign: float, level: float, target: float) -> float:
    """Seconds of a trial to a level of the score; to the target those of the verdict."""
    if level == target:
        return or_inf(trial["time_to_target_s"])
    scores, times_s = np.array(trial["levels"]).reshape(-1, 2).T
    return float(seconds_to_levels(times_s, sign * scores, np.array([sign * level]))[0])


def draw_levels(study: ReportSources) -> Picture | None:
    """Draw each scheme's time over the first's against the level; None without a target."""
    results = study.main.results
    target, equal = results.summary["target"], results.summary["equal"]
    if target is None or equal is None or equal["metric"] != target["metric"] or len(study.main.rows) < 2:
        return None
    data = rank_levels(study.main, equal, target["value"])
    if not len(data):
        return None
    seen, lows = (data.filter(columns).to_numpy() for columns in (["ratio", "high"], ["low"]))
    highest = max(1.5, 1.1 * seen[seen <= _HIGHEST].max())
    lowest = min([1.0, *lows[lows >= 1 / _HIGHEST]])
    with figure(WIDTH_IN, 2.9) as drawn:
        ax = drawn.subplots()
        for label, mine in data.groupby("label", sort=False):
            ratio = mine["ratio"].where(mine["ratio"] <= _HIGHEST, math.nan)
            style = study.styles[str(label)]
            if "low" in mine:
                low, high = (mine[end].clip(lowest, _HIGHEST) for end in ("low", "high"))
                ax.fill_between(mine["level"], low, high, color=style.stand_in, alpha=0.16, linewidth=0)
                ax.plot(mine["level"], mine[["low", "high"]], color=style.stand_in, linewidth=0.6)
            ax.plot(mine["level"], ratio, color=style.stand_in, linewidth=2, dashes=style.dashes)
        firsts = ["level", "first", "settled_by_rates"]
        levels = data.drop_duplicates("level").reindex(columns=firsts, fill_value=True).to_numpy().tolist()
        apart = (levels[-1][0] - levels[0][0]) / max(len(levels) - 1, 1) / 2
        for (first, settled), group in groupby(levels, key=lambda each: each[1:]):
            at = [level for level, *_ in group]
            ax.axvspan(
                at[0] - apart, at[-1] + apart, 0, 0.05, color=study.styles[first].stand_in, linewidth=0,
                alpha=None if settled else _OPEN,
            )  # fmt: skip
        make_log(ax, "y")
        ax.set_ylim(lowest * (highest / lowest) ** -0.07, highest)  # the strip lies below all
        if equal["falling"]:
            ax.invert_xaxis()
        ax.set(xlabel=f"target: {words.plain(equal['metric'])}", ylabel="time to it, over the first's")
    return picture(drawn, f"{study.key}-levels", data, study.styles, key=())


def draw_break_even(study: ReportSources) -> Picture | None:
    """Draw the ratio of examples at which first and second are level, against a factor on all bandwidths.

    At the scenario's own it is the verdict's; elsewhere seconds per step change as followed on the clock
    (``Bounds.by_bandwidth``), with the same algorithms. None where that is not known.
    """
    verdict = verdict_of(study.main.results.summary, study.main.source)
    first, second, known = verdict["first"], verdict["second"], verdict.get("break_even")
    known_s = {
        row["label"]: bounds.get("by_bandwidth", ())
        for row in study.main.rows
        if (bounds := row.get("bounds"))
    }
    pairs = [np.array(known_s.get(label or "", ())) for label in (first, second)]
    if first is None or second is None or known is None or not all(map(len, pairs)):
        return None
    limit, here = known["examples"]["median"] or 1.0, known["here"]["median"]
    factors, relative = pairs[0][:, 0], pairs[1][:, 1] / pairs[0][:, 1]
    data = pd.DataFrame({"bandwidth": factors, "examples": limit * relative / relative[factors == 1.0]})
    ends = [*data["examples"], *([here] if here else [])]
    low, high = min(ends) / 1.6, max(ends) * 1.6
    with figure(WIDTH_IN, 2.9) as drawn:
        ax = drawn.subplots()
        for label, edge, at, side in ((first, low, 0.02, "bottom"), (second, high, 0.98, "top")):
            ax.fill_between(
                data["bandwidth"], data["examples"], edge, color=study.styles[label].stand_in, alpha=0.25
            )
            ax.text(0.02, at, f"{cut(label, 26)} first", transform=ax.transAxes, va=side)
        ax.plot(data["bandwidth"], data["examples"], color=INK, linewidth=2, marker=".")
        make_log(ax, "x")
        make_log(ax, "y")
        if here:
            ax.plot(1.0, here, marker="o", color=INK)
            annotate(ax, "these runs", (1.0, here), (7, 0))
        ax.set(xlim=(data["bandwidth"].min(), data["bandwidth"].max()), ylim=(low, high))
        ax.set_xlabel("all bandwidths, over the scenario's")
        ax.set_ylabel(f"examples of {cut(first, 16)}\nover {cut(second, 16)}")
    return picture(drawn, f"{study.key}-break-even", data, study.styles, key=())
