"""The race at other targets: who is first at each level of the score, by the recorded scores."""

from __future__ import annotations

import math
from itertools import groupby
from typing import Final

import numpy as np
import pandas as pd

from paceline.sim.records.intervals import median_ratio
from paceline.sim.records.summary import Equal, race_s
from paceline.sim.records.verdict import find_winner
from paceline.sim.seeds import Floats

from .. import words
from ..folders import ReportSources, SourceRuns
from .drawing import WIDTH_IN, Picture, figure, picture
from .metric_curves import make_log

_LEVELS: Final = 100
_HIGHEST: Final = 10.0
"""Ratio to the first at which the figure ends."""


def seconds_to_levels(times_s: Floats, scores: Floats, levels: Floats) -> Floats:
    """Seconds to each level of a rising score, interpolated between scores; infinite without one."""
    best = np.maximum.accumulate(scores)
    after = np.searchsorted(best, levels)
    after[after == 0] = 1  # met by the first score
    reached = after < len(best)
    seconds = np.full(len(levels), np.inf)
    to, start = after[reached], after[reached] - 1
    part = np.clip((levels[reached] - best[start]) / np.maximum(best[to] - best[start], 1e-300), 0.0, 1.0)
    seconds[reached] = times_s[start] + part * (times_s[to] - times_s[start])
    return seconds


def runs_scored(frame: pd.DataFrame, metric: str) -> dict[tuple[str, int], pd.DataFrame]:
    """The rows of each label and seed that have the metric."""
    known = frame.dropna(subset=[metric]).groupby(["label", "seed"], observed=True)
    return {(str(label), int(str(seed))): run for (label, seed), run in known}


def rank_levels(part: SourceRuns, equal: Equal, target: float) -> pd.DataFrame:
    """Columns level, first, label and ratio: the median paired ratio of a scheme's time to the first's.

    ``_LEVELS`` levels at equal distances up to the target, whose times are the runs' own. Levels that all
    runs passed before their second scoring, or that no scheme reaches in most repeats, are left out.
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
    rows = []
    for level, at_level in zip(sign * levels, times, strict=True):
        if (first := find_winner(at_level)) is not None:
            ratios = {label: median_ratio(mine, at_level[first]) for label, mine in at_level.items()}
            rows += [(level, first, label, ratio) for label, ratio in ratios.items()]
    return pd.DataFrame(rows, columns=["level", "first", "label", "ratio"])


def draw_levels(study: ReportSources) -> Picture | None:
    """Draw each scheme's time over the first's against the level; None without a target."""
    results = study.main.results
    target, equal = results.summary["target"], results.summary["equal"]
    if target is None or equal is None or equal["metric"] != target["metric"] or len(study.main.rows) < 2:
        return None
    data = rank_levels(study.main, equal, target["value"])
    if not len(data):
        return None
    with figure(WIDTH_IN, 2.9) as drawn:
        ax = drawn.subplots()
        for label, mine in data.groupby("label", sort=False):
            ratio = mine["ratio"].where(mine["ratio"] <= _HIGHEST, math.nan)
            style = study.styles[str(label)]
            ax.plot(mine["level"], ratio, color=style.stand_in, linewidth=2, dashes=style.dashes)
        levels = data.drop_duplicates("level")[["level", "first"]].to_numpy().tolist()
        apart = (levels[-1][0] - levels[0][0]) / max(len(levels) - 1, 1) / 2
        for first, group in groupby(levels, key=lambda each: each[1]):
            ends = [level for level, _ in group]
            ax.axvspan(
                ends[0] - apart, ends[-1] + apart, 0, 0.05, color=study.styles[first].stand_in, linewidth=0
            )
        make_log(ax, "y")
        highest = max(1.5, 1.1 * data["ratio"][data["ratio"] <= _HIGHEST].max())
        ax.set_ylim(highest**-0.07, highest)  # the strip lies below 1
        if equal["falling"]:
            ax.invert_xaxis()
        ax.set(xlabel=f"target: {words.plain(equal['metric'])}", ylabel="time to it, over the first's")
    return picture(drawn, f"{study.key}-levels", data, study.styles, key=())
