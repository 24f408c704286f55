"""The timeline: what the workers did in the first steps of each scheme."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import pandas as pd

from .. import words
from ..folders import Part, Study
from .drawing import INK, PHASE_KEY, PHASES, Picture, cut, figure, picture
from .lanes import Lane, lanes, span_s

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDTH_IN: Final = 9.6
_LANE_IN: Final = 0.11


def timeline(study: Study, part: Part, workers: int) -> Picture:
    """What each of the first ``workers`` workers did in the first steps of each scheme's first repeat."""
    first = {row["label"]: _first_seed(part.results.events, row["label"]) for row in part.rows}
    events = {label: frame for label, frame in first.items() if len(frame)}
    end_s = span_s(list(events.values()))
    name, unit_s = words.time_unit([end_s])
    shown = {label: lanes(frame, end_s, workers) for label, frame in events.items()}
    counts = [len(of) for of in shown.values()]
    height = sum(counts) * _LANE_IN + 0.42 * len(shown) + 0.35
    with figure(_WIDTH_IN, height) as (drawn, plot):
        axes = drawn.subplots(len(shown), 1, sharex=True, squeeze=False, height_ratios=counts)[:, 0]
        for ax, (label, of) in zip(axes, shown.items(), strict=True):
            _draw_lanes(ax, of, unit_s)
            ax.set_title(cut(label, 80), loc="left", fontsize=10, pad=3)
            ax.set_xlim(0, end_s / unit_s)
        axes[-1].set_xlabel(f"time ({name})")
        drawn.supylabel("worker", fontsize=10, color=INK)
    data = pd.DataFrame(
        [
            (label, lane.worker, phase, *box)
            for label, of in shown.items()
            for lane in of
            for phase, boxes in [*lane.main.items(), ("background", lane.background)]
            for box in boxes
        ],
        columns=["label", "worker", "phase", "start_s", "end_s"],
    )
    return picture(plot, f"{study.key}-timeline-{part.source}", data, key=PHASE_KEY)


def _first_seed(events: pd.DataFrame, label: str) -> pd.DataFrame:
    mine = events[events["label"] == label]
    return mine[mine["seed"] == mine["seed"].iloc[0]] if len(mine) else mine


def _draw_lanes(ax: Axes, of: Sequence[Lane], unit_s: float) -> None:
    for phase, colour in PHASES.items():
        boxes = [(*box, i - 0.38, i + 0.18) for i, lane in enumerate(of) for box in lane.main[phase]]
        _draw_boxes(ax, boxes, unit_s, colour)
    beneath = [(*box, i + 0.24, i + 0.42) for i, lane in enumerate(of) for box in lane.background]
    _draw_boxes(ax, beneath, unit_s, PHASES["communicate"])
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
