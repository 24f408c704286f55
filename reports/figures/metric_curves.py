"""Curves: a metric against the clock, steps, or bytes sent; the median over repeats in a band."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import pandas as pd

from paceline.sim.records.scenario_facts import CURVES, describe_proxy
from paceline.sim.records.summary import SchemeSummary

from .. import words
from ..folders import ReportSources, SourceRuns
from .drawing import INK, PAPER, WIDTH_IN, Picture, annotate, figure, picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

By = Literal["time_s", "step", "bytes_sent"]

_POINTS: Final = 300
_LOW, _HIGH = 0.1, 0.9
"""Quantiles of the repeats that bound the band."""
_FAR: Final = 8.0
"""Ratio of the ends of runs above which the clock is logarithmic."""


def bands(frame: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Median and 10 % to 90 % band over the repeats of one scheme, up to where half of them have ended.

    Scores between evaluations are interpolated; a repeat that has ended keeps its last one. ``frame`` has
    ``seed``, ``x`` (ascending for each seed) and ``metric``; the result ``x``, ``low``, ``median``, ``high``,
    or is empty.
    """
    known = frame[frame[metric].notna()]
    repeats = [mine for _, mine in known.groupby("seed", sort=True)]
    if not repeats:
        return pd.DataFrame(columns=["x", "low", "median", "high"])
    end = float(np.median([mine["x"].iloc[-1] for mine in repeats]))
    grid = np.unique(np.append(known["x"].to_numpy()[known["x"] <= end], end))
    if len(grid) > _POINTS:
        grid = grid[np.unique(np.linspace(0, len(grid) - 1, _POINTS).round().astype(int))]
    values = np.stack([np.interp(grid, mine["x"], mine[metric]) for mine in repeats])
    low, median, high = np.quantile(values, [_LOW, 0.5, _HIGH], axis=0)
    return pd.DataFrame({"x": grid, "low": low, "median": median, "high": high})


def draw_curves(study: ReportSources, metric: str, by: By) -> Picture:
    """Draw a metric against the clock, steps, or bytes: the median over repeats, in a band (``bands``).

    The training loss has a logarithmic axis, and so have the clock and the bytes if some schemes take far
    more than others.
    """
    frames = {part.source: _scores(part, metric, by) for part in study.parts}
    every = pd.concat(list(frames.values()))
    typical = every["x"].max() / 4
    name, unit = {
        "time_s": words.time_unit([typical]), "bytes_sent": words.size_unit(typical), "step": ("", 1.0),
    }[by]  # fmt: skip
    target = study.main.results.summary["target"]
    goal = target["value"] if target and target["metric"] == metric else None
    drawn_data, heights = [], [] if goal is None else [goal]
    with figure(WIDTH_IN, 2.9) as drawn:
        ax = drawn.subplots()
        if metric.startswith("train_loss") and every[metric].notna().any():
            make_log(ax, "y")
        _x_axis(ax, every, unit, by)
        for part in study.parts:
            measured = part is study.measured
            for row in part.rows:
                mine = frames[part.source]
                band = bands(mine[mine["label"] == row["label"]], metric)
                if ax.get_xscale() == "log":
                    band = band[band["x"] > 0]
                if not len(band):
                    continue
                style = study.styles[row["label"]]
                dashes = (4, 1.6) if measured else style.dashes
                x = band["x"].to_numpy() / unit
                if row["runs"] > 1:
                    ax.fill_between(
                        x, band["low"], band["high"], color=style.stand_in, alpha=0.16, linewidth=0
                    )
                ax.plot(x, band["median"], color=style.stand_in, linewidth=2, dashes=dashes)
                _end(ax, row, x[-1], float(band["median"].iloc[-1]), style.stand_in)
                drawn_data.append(band.assign(label=row["label"], source=part.source))
                # A diverged run must not squeeze all the others.
                seen = band[["low", "median", "high"]] if not row["diverged"] else band["median"].iloc[:1]
                heights += seen.to_numpy().ravel().tolist()
        set_limits(ax, heights)
        if goal is not None:
            _target_line(ax, goal, rising=every[metric].iloc[0] < goal)
        words_x = {
            "time_s": f"wall clock ({name})",
            "step": "steps per worker",
            "bytes_sent": f"sent ({name})",
        }
        ax.set_xlabel(words_x[by] + (", log scale" if ax.get_xscale() == "log" else ""))
        whose = " of the proxy" if describe_proxy(study.scenario) not in (None, CURVES) else ""
        ax.set_ylabel(words.plain(metric) + whose + (", log scale" if ax.get_yscale() == "log" else ""))
    data = pd.concat(drawn_data) if drawn_data else pd.DataFrame()
    return picture(drawn, f"{study.key}-{metric}-{by}", data.rename(columns={"x": by}), study.styles)


def set_limits(ax: Axes, heights: Sequence[float]) -> None:
    """Limits a little beyond what is drawn."""
    low, high = min(heights, default=0.0), max(heights, default=0.0)
    if low == high:
        return
    if ax.get_yscale() == "log":
        beyond = (high / low) ** 0.06
        ax.set_ylim(low / beyond, high * beyond)
    else:
        ax.set_ylim(low - 0.04 * (high - low), high + 0.1 * (high - low))


def _x_axis(ax: Axes, every: pd.DataFrame, unit: float, by: By) -> None:
    runs = every.groupby(["source", "label", "seed"])["x"].max() / unit
    ends = runs.groupby(["source", "label"]).median()
    scored = every.loc[every["x"] > 0, "x"] / unit
    if by != "step" and len(scored) and ends.max() > _FAR * ends[ends > 0].min():
        make_log(ax, "x")
        ax.set_xlim(scored.min() / 1.15, ends.max() * 1.25)
    elif ends.max() > 0:
        ax.set_xlim(0, ends.max() * 1.05)


def make_log(ax: Axes, which: Literal["x", "y"]) -> None:
    """Make an axis logarithmic, with plain numbers at 1, 2 and 5."""
    ax.set(**{f"{which}scale": "log"})
    axis: Axis = ax.xaxis if which == "x" else ax.yaxis

    def minor(value: float, _: Any) -> str:
        low, high = axis.get_view_interval()
        lead = round(value / 10 ** math.floor(math.log10(value)))
        labelled = () if high / low > 200 else (2, 5) if high / low > 4 else (2, 3, 4, 5, 6, 8)
        return f"{value:g}" if lead in labelled else ""

    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_minor_formatter(minor)


def _scores(part: SourceRuns, metric: str, by: By) -> pd.DataFrame:
    """The scored rows at ``x``; losses that are not positive have no place on a logarithmic axis."""
    frame = part.results.metrics
    values = frame[metric] if metric in frame else pd.Series(np.nan, frame.index)
    if metric.startswith("train_loss"):
        values = values.where(values > 0)
    return pd.DataFrame(
        {
            "source": part.source,
            "label": frame["label"].astype(object),
            "seed": frame["seed"],
            "step": frame["step"],
            "x": frame[by].astype(float),
            metric: values,
        }
    )


def _end(ax: Axes, row: SchemeSummary, x: float, y: float, colour: str) -> None:
    """Mark the outcome of most repeats: target reached, stopped before, diverged."""
    reached, diverged = 2 * row["reached"] > row["runs"], 2 * row["diverged"] > row["runs"]
    ax.plot(
        x,
        y,
        marker="X" if diverged else "o",
        markersize=7 if diverged else 6,
        markerfacecolor=colour if reached or diverged else PAPER,
        markeredgecolor=colour,
        zorder=5,
    )


def _target_line(ax: Axes, value: float, rising: bool) -> None:
    """The target, with its name where runs begin, which is on its other side."""
    ax.axhline(value, color=INK, linewidth=1, dashes=(2, 2), zorder=1)
    annotate(
        ax, f"target {value:g}", (0, value), (4, 4 if rising else -4),
        xycoords=("axes fraction", "data"), ha="left", va="bottom" if rising else "top",
        bbox={"facecolor": PAPER, "edgecolor": "none", "alpha": 0.75, "pad": 0.8}, zorder=6,
    )  # fmt: skip
