"""Figures as inline SVG that takes its colours from the page.

Matplotlib draws with stand-in colours; afterwards each is replaced by the CSS that it stands for, so
that text and curves follow the reader's light or dark theme. The same data give the same bytes.
matplotlib and seaborn take seconds to import, so they are imported where they are used.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import pandas as pd

from reports import words
from reports.study import Part, Study
from reports.timeline import Lane, lanes, span_s
from sim.summary import RunRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INK: Final = "#01f001"
_FAINT: Final = "#01f002"
_PAPER: Final = "#01f003"
_PHASES: Final = {"compute": "#01f004", "communicate": "#01f005", "wait": "#01f006"}
_CSS: Final = {
    _INK: "var(--ink)",
    _FAINT: "var(--faint)",
    _PAPER: "var(--paper)",
    **{stand_in: f"var(--{phase})" for phase, stand_in in _PHASES.items()},
}
_WIDTH_IN: Final = 5.3
_WIDE_IN: Final = 9.6
_LANE_IN: Final = 0.11
_LABEL: Final = 22


def curves(study: Study, metric: str, by: Literal["time_s", "step"]) -> str:
    """A metric against the clock or against steps, the training loss on a logarithmic axis.

    Of several repeats the one with the median time to target is drawn thick.
    """
    import seaborn as sns

    logarithmic = metric == "train_loss"
    frames = {part.source: _scores(part, metric, by, logarithmic) for part in study.parts}
    every = pd.concat(list(frames.values()))
    unit, unit_s = words.time_unit([every[by].max() / 10]) if by == "time_s" else ("", 1.0)
    stand_ins = {label: f"#02f0{i:02x}" for i, label in enumerate(study.styles)}
    target = study.main.results.summary["target"]
    goal = target["value"] if target and target["metric"] == metric else None
    with _figure(_WIDTH_IN, 3.3) as (figure, plot):
        ax = figure.subplots()
        if logarithmic and every[metric].notna().any():
            ax.set_yscale("log")
            ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            ax.yaxis.set_minor_formatter(_minor_label(ax))
        _limits(ax, every, metric, goal)
        for part in study.parts:
            measured = part is study.measured
            frame = frames[part.source].assign(x=frames[part.source][by] / unit_s)
            middle = frame[frame["middle"]]
            dashes = {name: (4, 1.6) if measured else s.dashes or "" for name, s in study.styles.items()}
            common: dict[str, Any] = {
                "x": "x", "y": metric, "hue": "label", "style": "label", "units": "seed",
                "palette": stand_ins, "dashes": dashes,
                "sort": False, "estimator": None, "legend": False, "ax": ax,
            }  # fmt: skip
            sns.lineplot(data=frame[~frame["middle"]], linewidth=0.7, alpha=0.45, **common)
            sns.lineplot(data=middle, linewidth=2.0, **common)
            _ends(ax, part, middle, metric, stand_ins)
        if goal is not None:
            _target_line(ax, goal)
        ax.set_xlabel(f"wall clock ({unit})" if by == "time_s" else "steps per worker")
        ax.set_ylabel(words.plain(metric))
        ax.set_xlim(left=0)
    colours = {stand_ins[label]: style.colour for label, style in study.styles.items()}
    return _svg(plot, f"{metric}-{by}", colours)


def cost_of_a_step(study: Study) -> str:
    """Stacked bars: where a worker's mean step went."""
    return _bars(study, per_step=True)


def cost_of_a_run(study: Study) -> str:
    """Stacked bars: where a worker's wall clock went."""
    return _bars(study, per_step=False)


def timeline(study: Study, part: Part, workers: int) -> str:
    """What each of the first ``workers`` workers did in the first steps of each scheme's first repeat."""
    first = {row["label"]: _first_seed(part.results.events, row["label"]) for row in part.rows}
    events = {label: frame for label, frame in first.items() if len(frame)}
    end_s = span_s(list(events.values()))
    name, unit_s = words.time_unit([end_s])
    shown = {label: lanes(frame, end_s, workers) for label, frame in events.items()}
    counts = [len(of) for of in shown.values()]
    height = sum(counts) * _LANE_IN + 0.42 * len(shown) + 0.35
    with _figure(_WIDE_IN, height) as (figure, plot):
        axes = figure.subplots(len(shown), 1, sharex=True, squeeze=False, height_ratios=counts)[:, 0]
        for ax, (label, of) in zip(axes, shown.items(), strict=True):
            _draw_lanes(ax, of, unit_s)
            ax.set_title(_cut(label, 80), loc="left", fontsize=10, pad=3)
            ax.set_xlim(0, end_s / unit_s)
        axes[-1].set_xlabel(f"time ({name})")
        figure.supylabel("worker", fontsize=10, color=_INK)
    return _svg(plot, f"timeline-{part.source}", {})


# --- curves -------------------------------------------------------------------------------------


def _scores(part: Part, metric: str, by: str, positive: bool) -> pd.DataFrame:
    """The scored rows, schemes in the order of the table; ``middle`` marks each scheme's median repeat."""
    frame = part.results.metrics
    if metric not in frame:
        frame = frame.assign(**{metric: np.nan})
    frame = frame[["label", "seed", "step", "time_s", metric]].astype({"label": object})
    if positive:
        frame = frame.assign(**{metric: frame[metric].where(frame[metric] > 0)})
    order = {row["label"]: place for place, row in enumerate(part.rows)}
    middle = {row["label"]: _median_seed(part, row["label"]) for row in part.rows}
    return frame.assign(
        place=frame["label"].map(order), middle=frame["seed"] == frame["label"].map(middle)
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
            markerfacecolor=colour if run["reached_target"] or diverged else _PAPER,
            markeredgecolor=colour,
            zorder=5,
        )


def _limits(ax: Axes, every: pd.DataFrame, metric: str, target: float | None) -> None:
    """Keep a diverging curve from squeezing all the others."""
    values = every[metric].dropna()
    if not len(values):
        return
    first = every.loc[every["step"] == every["step"].min(), metric].dropna()
    low, high = values.min(), values.max()
    if len(first):
        high = min(high, max(2 * first.max(), values.median()))
    if target is not None:
        low, high = min(low, target), max(high, target)
    if ax.get_yscale() == "log":
        ax.set_ylim(low / 1.25, high * 1.15)
    elif high > low:
        ax.set_ylim(low - 0.04 * (high - low), high + 0.1 * (high - low))


def _minor_label(ax: Axes) -> Any:
    """Label 2 and 5 between powers of ten where the axis spans little more than one of them."""

    def label(value: float, _: Any) -> str:
        low, high = ax.get_ylim()
        lead = round(value / 10 ** np.floor(np.log10(value)))
        if high / low > 200:
            return ""
        return f"{value:g}" if lead in ((2, 5) if high / low > 4 else (2, 3, 4, 5, 6, 8)) else ""

    return label


def _target_line(ax: Axes, value: float) -> None:
    ax.axhline(value, color=_INK, linewidth=1, dashes=(2, 2), zorder=1)
    ax.annotate(
        f"target {value:g}",
        (0, value),
        xycoords=("axes fraction", "data"),
        xytext=(4, 3),
        textcoords="offset points",
        fontsize=9,
        color=_INK,
    )


# --- bars ---------------------------------------------------------------------------------------


def _bars(study: Study, per_step: bool) -> str:
    bars = [
        (place, part, row)
        for place, label in enumerate(row["label"] for row in study.main.rows)
        for part in study.parts
        for row in part.rows
        if row["label"] == label and row["iterations"]
    ]
    labels = {place: _wrapped(row["label"]) for place, _, row in bars}
    lengths = [row["wall_clock_s"] / (row["iterations"] if per_step else 1.0) for _, _, row in bars]
    longest = max(lengths) or 1.0
    name, unit_s = words.time_unit([longest / 10])
    paired = study.measured is not None
    with _figure(_WIDTH_IN, 0.75 + (0.52 if paired else 0.42) * len(labels)) as (figure, plot):
        ax = figure.subplots()
        for (place, part, row), length in zip(bars, lengths, strict=True):
            measured = part is study.measured
            at = place + (0.21 if measured else -0.17) * paired
            left = 0.0
            for phase, colour in _PHASES.items():
                share = row["time_s"][phase] / (row["wall_clock_s"] or 1.0)  # type: ignore[literal-required]
                width = share * length / unit_s
                ax.barh(at, width, left=left, height=0.36 if paired else 0.68, color=colour, linewidth=0)
                left += width
            said = words.digits(length / unit_s) + f" {_kind(measured)}" * paired
            ax.annotate(f" {said}", (left, at), va="center", ha="left", fontsize=9, color=_INK)
        ax.set_yticks(list(labels), [""] * len(labels))
        for place, lines in labels.items():
            _write_lines(ax, place, lines)
        ax.tick_params(axis="y", length=0)
        ax.grid(False, axis="y")
        ax.invert_yaxis()
        ax.set_xlim(0, longest / unit_s * (1.3 if paired else 1.15))
        ax.set_xlabel(f"a worker's mean step ({name})" if per_step else f"a worker's whole run ({name})")
    return _svg(plot, "step-cost" if per_step else "run-cost", {})


def _write_lines(ax: Axes, place: float, lines: list[str]) -> None:
    """A label left of the axis, line by line: the page's font is not the one that widths are known of."""
    for i, line in enumerate(lines):
        ax.annotate(
            line,
            (0, place),
            xycoords=("axes fraction", "data"),
            xytext=(-5, 6 * (len(lines) - 1) - 12 * i),
            textcoords="offset points",
            ha="right",
            va="center",
        )


def _kind(measured: bool) -> str:
    return "measured" if measured else "predicted"


# --- timeline -----------------------------------------------------------------------------------


def _first_seed(events: pd.DataFrame, label: str) -> pd.DataFrame:
    mine = events[events["label"] == label]
    return mine[mine["seed"] == mine["seed"].iloc[0]] if len(mine) else mine


def _draw_lanes(ax: Axes, of: Sequence[Lane], unit_s: float) -> None:
    for phase, colour in _PHASES.items():
        boxes = [(*box, i - 0.38, i + 0.18) for i, lane in enumerate(of) for box in lane.main[phase]]
        _draw_boxes(ax, boxes, unit_s, colour)
    beneath = [(*box, i + 0.24, i + 0.42) for i, lane in enumerate(of) for box in lane.background]
    _draw_boxes(ax, beneath, unit_s, _PHASES["communicate"])
    ax.set_ylim(len(of) - 0.4, -0.6)
    every = max(1, len(of) // 4)
    ax.set_yticks(range(0, len(of), every), [str(of[i].worker) for i in range(0, len(of), every)])
    ax.tick_params(axis="y", length=0)
    ax.grid(False)


def _draw_boxes(ax: Axes, boxes: list[tuple[float, float, float, float]], unit_s: float, colour: str) -> None:
    """All boxes of one kind as one path, which keeps the page small."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    if not boxes:
        return
    left, right, top, bottom = (np.array(column) for column in zip(*boxes, strict=True))
    x = np.stack([left, right, right, left, left], -1) / unit_s
    y = np.stack([top, top, bottom, bottom, top], -1)
    codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY] * len(boxes)
    ax.add_patch(PathPatch(Path(np.stack([x.ravel(), y.ravel()], -1), codes), facecolor=colour, linewidth=0))


# --- SVG ----------------------------------------------------------------------------------------


class _Plot:
    """What a figure became; filled in when its block ends."""

    text: str = ""


@contextmanager
def _figure(width_in: float, height_in: float) -> Iterator[tuple[Figure, _Plot]]:
    """A figure drawn in stand-in colours; the block draws, the plot has its SVG text afterwards."""
    import seaborn as sns
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    ours: dict[Any, Any] = {
        "axes.grid": True,
        "text.parse_math": False,
        "svg.fonttype": "none",
        "svg.hashsalt": "paceline",
        "font.size": 10,
        "text.color": _INK,
        "axes.labelcolor": _INK,
        "xtick.color": _INK,
        "ytick.color": _INK,
        "axes.edgecolor": _FAINT,
        "grid.color": _FAINT,
        "grid.linewidth": 0.5,
        "axes.linewidth": 0.8,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.facecolor": "none",
        "figure.facecolor": "none",
    }
    plot = _Plot()
    with sns.axes_style("ticks"), rc_context(ours):
        figure = Figure(figsize=(width_in, height_in), layout="constrained")
        yield figure, plot
        FigureCanvasSVG(figure)
        out = io.StringIO()
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
        plot.text = out.getvalue()


def _svg(plot: _Plot, name: str, colours: Mapping[str, str]) -> str:
    """Make a file of matplotlib's fit to stand inside a page, under ids of its own."""
    text = plot.text[plot.text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<style[^>]*>.*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", text)
    text = text.replace("xlink:href", "href")
    text = re.sub(r'\b(id="|href="#|url\(#)', rf"\g<1>{name}-", text)
    text = re.sub(r"(font: [^\"';]*?px) [^\";]*", r"\1 var(--font)", text)
    # The size comes from the page, the shape from the view box.
    text = re.sub(r'(<svg[^>]*?) (?:width|height)="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) (?:width|height)="[^"]*"', r"\1", text, count=1)
    text = text.replace("<svg", '<svg aria-hidden="true"', 1)
    for stand_in, css in {**_CSS, **colours}.items():
        text = text.replace(stand_in, css)
    return text.strip()


def _cut(label: str, width: int) -> str:
    return label if len(label) <= width else label[: width - 1] + "…"


def _wrapped(label: str) -> list[str]:
    """A label on two lines at most, broken after a blank or an underscore where one is near."""
    if len(label) <= _LABEL:
        return [label]
    places = [i + 1 for i, c in enumerate(label[:_LABEL]) if c in " _-" and i >= _LABEL // 3]
    cut = places[-1] if places else _LABEL
    return [label[:cut].strip(), _cut(label[cut:], _LABEL)]
