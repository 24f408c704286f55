"""Curves: a metric against the clock, or against steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import pandas as pd

from reports import words
from reports.drawing import INK, PAPER, WIDTH_IN, figure, svg
from reports.study import Part, Study
from sim.summary import RunRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

_FAR: Final = 8.0
"""Ends of runs this many times apart call for a logarithmic clock."""


def curves(study: Study, metric: str, by: Literal["time_s", "step"]) -> str:
    """A metric against the clock or against steps.

    The training loss has a logarithmic axis, and so has the clock if some schemes take far longer than
    others. Of several repeats the one with the median time to target is drawn thick.
    """
    import seaborn as sns

    frames = {part.source: _scores(part, metric, by) for part in study.parts}
    every = pd.concat(list(frames.values()))
    name, unit_s = words.time_unit([every["x"].max() / 10]) if by == "time_s" else ("", 1.0)
    stand_ins = {label: f"#02f0{i:02x}" for i, label in enumerate(study.styles)}
    target = study.main.results.summary["target"]
    goal = target["value"] if target and target["metric"] == metric else None
    with figure(WIDTH_IN, 3.3) as (drawn, plot):
        ax = drawn.subplots()
        _y_axis(ax, study, every, metric, goal)
        _x_axis(ax, every, unit_s, by)
        for part in study.parts:
            measured = part is study.measured
            frame = frames[part.source].assign(x=frames[part.source]["x"] / unit_s)
            dashes = {label: (4, 1.6) if measured else s.dashes or "" for label, s in study.styles.items()}
            common: dict[str, Any] = {
                "x": "x", "y": metric, "hue": "label", "style": "label", "units": "seed",
                "palette": stand_ins, "dashes": dashes,
                "sort": False, "estimator": None, "legend": False, "ax": ax,
            }  # fmt: skip
            if ax.get_xscale() == "log":
                frame = frame[frame["x"] > 0]
            for chosen, width, alpha in ((~frame["middle"], 0.7, 0.45), (frame["middle"], 2.0, 1.0)):
                if chosen.any():
                    sns.lineplot(data=frame[chosen], linewidth=width, alpha=alpha, **common)
            _ends(ax, part, frame[frame["middle"]], metric, stand_ins)
        if goal is not None:
            _target_line(ax, goal, rising=every[metric].iloc[0] < goal)
        label = f"wall clock ({name})" if by == "time_s" else "steps per worker"
        ax.set_xlabel(label + (", log scale" if ax.get_xscale() == "log" else ""))
        ax.set_ylabel(words.plain(metric) + (", log scale" if ax.get_yscale() == "log" else ""))
    colours = {stand_ins[label]: style.colour for label, style in study.styles.items()}
    return svg(plot, f"{study.key}-{metric}-{by}", colours)


def _y_axis(ax: Axes, study: Study, every: pd.DataFrame, metric: str, goal: float | None) -> None:
    """Scale and limits; a diverged run must not squeeze all the others."""
    if metric == "train_loss" and every[metric].notna().any():
        _make_log(ax, "y")
    diverged = {
        (run["source"], run["label"], run["seed"])
        for part in study.parts
        for run in part.runs
        if run["status"] == "diverged"
    }
    keys = zip(every["source"], every["label"], every["seed"], strict=True)
    kept = np.array([key not in diverged for key in keys], dtype=bool)
    values = [*every.loc[kept | (every["step"] == 0), metric].dropna(), *([] if goal is None else [goal])]
    if not values:
        return
    low, high = min(values), max(values)
    if ax.get_yscale() == "log":
        ax.set_ylim(low / 1.25, high * 1.3)
    elif high > low:
        ax.set_ylim(low - 0.04 * (high - low), high + 0.1 * (high - low))


def _x_axis(ax: Axes, every: pd.DataFrame, unit_s: float, by: str) -> None:
    ends = every.groupby(["source", "label", "seed"])["x"].max() / unit_s
    scored = every.loc[every["x"] > 0, "x"] / unit_s
    if by == "time_s" and len(scored) and ends.max() > _FAR * ends[ends > 0].min():
        _make_log(ax, "x")
        ax.set_xlim(scored.min() / 1.15, ends.max() * 1.25)
    elif ends.max() > 0:
        ax.set_xlim(0, ends.max() * 1.05)


def _make_log(ax: Axes, which: Literal["x", "y"]) -> None:
    """A logarithmic axis with plain numbers."""
    ax.set(**{f"{which}scale": "log"})
    axis: Axis = ax.xaxis if which == "x" else ax.yaxis

    def minor(value: float, _: Any) -> str:
        low, high = axis.get_view_interval()
        lead = round(value / 10 ** math.floor(math.log10(value)))
        told = () if high / low > 200 else (2, 5) if high / low > 4 else (2, 3, 4, 5, 6, 8)
        return f"{value:g}" if lead in told else ""

    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_minor_formatter(minor)


def _scores(part: Part, metric: str, by: str) -> pd.DataFrame:
    """The scored rows at ``x``, schemes in the order of the table; ``middle`` marks each one's median repeat.

    A logarithmic axis has no place for a training loss that is not positive.
    """
    frame = part.results.metrics
    values = frame[metric] if metric in frame else pd.Series(np.nan, frame.index)
    if metric == "train_loss":
        values = values.where(values > 0)
    order = {row["label"]: place for place, row in enumerate(part.rows)}
    middle = {row["label"]: _median_seed(part, row["label"]) for row in part.rows}
    label = frame["label"].astype(object)
    return pd.DataFrame(
        {
            "source": part.source,
            "label": label,
            "seed": frame["seed"],
            "step": frame["step"],
            "x": frame[by].astype(float),
            metric: values,
            "place": label.map(order),
            "middle": frame["seed"] == label.map(middle),
        }
    ).sort_values(["place", "seed", "step"], kind="stable")


def _median_seed(part: Part, label: str) -> int:
    """The repeat with the median time to target; the lower one of two."""

    def order(run: RunRow) -> tuple[float, float, int]:
        time_s = run["time_to_target_s"]
        return (math.inf if time_s is None else time_s, run["wall_clock_s"], run["seed"])

    mine = sorted((run for run in part.runs if run["label"] == label), key=order)
    return mine[(len(mine) - 1) // 2]["seed"]


def _ends(ax: Axes, part: Part, middle: pd.DataFrame, metric: str, colours: Mapping[str, str]) -> None:
    """Mark how each thick curve ends: target reached, stopped before, diverged."""
    drawn = middle[middle[metric].notna()]
    for run in part.runs:
        mine = drawn[(drawn["label"] == run["label"]) & (drawn["seed"] == run["seed"])]
        if not len(mine):
            continue
        colour, diverged = colours[run["label"]], run["status"] == "diverged"
        ax.plot(
            mine["x"].iloc[-1],
            mine[metric].iloc[-1],
            marker="X" if diverged else "o",
            markersize=7 if diverged else 6,
            markerfacecolor=colour if run["reached_target"] or diverged else PAPER,
            markeredgecolor=colour,
            zorder=5,
        )


def _target_line(ax: Axes, value: float, rising: bool) -> None:
    """The target, with its name at the end of the line, on the side from which no curve comes."""
    ax.axhline(value, color=INK, linewidth=1, dashes=(2, 2), zorder=1)
    ax.annotate(
        f"target {value:g}",
        (1, value),
        xycoords=("axes fraction", "data"),
        xytext=(0, 4 if rising else -4),
        textcoords="offset points",
        ha="right",
        va="bottom" if rising else "top",
        fontsize=9,
        color=INK,
        bbox={"facecolor": PAPER, "edgecolor": "none", "alpha": 0.75, "pad": 0.8},
        zorder=6,
    )
