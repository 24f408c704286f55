"""The timeline: activities of the workers in the first steps of each scheme, from recorded events.

A worker's row divides as its time breakdown does: *compute* while a gradient of it runs, *wait* while its
main coroutine is blocked and the last needed peer has not started, *communicate* while it is blocked after
that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import pandas as pd

from paceline.sim.records.run import COMPUTING, RESUMPTIONS

from .. import words
from ..folders import ReportSources, SourceRuns
from .drawing import INK, PHASE_KEY, PHASES, Picture, cut, figure, picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Box = tuple[float, float]
"""Begin and end of an interval, in seconds."""

_STEPS: Final = 4
"""Least number of steps shown of each scheme, if that leaves the fastest one visible."""
_MOST_STEPS: Final = 40
"""Largest number of steps shown of the fastest scheme."""
_WIDTH_IN: Final = 9.6
_ROW_IN: Final = 0.11
_NO_EXCHANGE: Final = (
    RESUMPTIONS | COMPUTING | {"segment", "poll", "now", "next_step", "sleep", "await_signal"}
)


def shown_span_s(runs: Sequence[pd.DataFrame]) -> float:
    """The common time span: some steps and an exchange of each run, less if the fastest needs less."""
    needed = [max(_steps_end_s(run, _STEPS), _first_exchange_s(run)) for run in runs]
    most = [_steps_end_s(run, _MOST_STEPS) for run in runs]
    return min(max(needed, default=0.0), min(most, default=0.0)) or 1.0


def timeline_rows(events: pd.DataFrame, end_s: float, workers: int) -> dict[int, dict[str, list[Box]]]:
    """Rank -> activity -> disjoint intervals up to ``end_s``, of the first ``workers`` workers of one run.

    Beside ``compute``, ``communicate`` and ``wait`` there is ``background``: transfers of started operations
    and of services, after their peers had started.
    """
    shown = events[(events["start_s"] < end_s) & (events["worker"] < workers)]
    return {int(str(worker)): _activities(mine, end_s) for worker, mine in shown.groupby("worker", sort=True)}


def _activities(events: pd.DataFrame, end_s: float) -> dict[str, list[Box]]:
    operation = events["operation"].astype(str)
    computes = operation.isin(COMPUTING)
    gradients = events[computes]
    compute = _union(zip(gradients["start_s"], gradients["end_s"], strict=True), end_s)
    resumed = (events["handle"] < 0) | operation.isin(RESUMPTIONS)
    awaited = events[~computes & (events["task"] == 0) & resumed]
    peer_s = np.where(awaited["operation"].astype(str) == "sleep", awaited["end_s"], awaited["peer_s"])
    wait = _union(zip(awaited["start_s"], peer_s, strict=True), end_s)
    communicate = _union(zip(peer_s, awaited["end_s"], strict=True), end_s)
    beside = events[~operation.isin(_NO_EXCHANGE) & ((events["task"] > 0) | (events["handle"] >= 0))]
    return {
        "compute": compute,
        "communicate": _without(communicate, compute),
        "wait": _without(wait, compute),
        "background": _union(zip(beside["peer_s"], beside["end_s"], strict=True), end_s),
    }


def _steps_end_s(run: pd.DataFrame, steps: int) -> float:
    main = run[(run["task"] == 0) & (run["step"] < steps)]
    return float(main.groupby("worker")["end_s"].max().median())


def _first_exchange_s(run: pd.DataFrame) -> float:
    """The median worker's end of its first exchange; 0 if there was none."""
    exchanges = run[(run["task"] == 0) & ~run["operation"].astype(str).isin(_NO_EXCHANGE)]
    return float(exchanges.groupby("worker")["end_s"].min().median()) if len(exchanges) else 0.0


def _union(boxes: Iterable[Box], end_s: float) -> list[Box]:
    """Disjoint intervals, ascending, cut off at ``end_s``."""
    out: list[Box] = []
    for start, end in sorted(boxes):
        end = min(end, end_s)
        if start >= end:
            continue
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], end))
        else:
            out.append((start, end))
    return out


def _without(boxes: Sequence[Box], holes: Sequence[Box]) -> list[Box]:
    """Disjoint intervals less other disjoint intervals."""
    lefts, rights = (np.array(holes).reshape(-1, 2)[:, side].tolist() for side in (0, 1))
    free = list(zip([-math.inf, *rights], [*lefts, math.inf], strict=True))
    parts = ((max(start, left), min(end, right)) for start, end in boxes for left, right in free)
    return [part for part in parts if part[0] < part[1]]


def draw_timeline(study: ReportSources, part: SourceRuns, workers: int) -> Picture:
    """Activities of the first ``workers`` workers in the first steps of each scheme's first repeat."""
    events = {}
    for row in part.rows:
        mine = part.results.events[part.results.events["label"] == row["label"]]
        if len(mine):
            events[row["label"]] = mine[mine["seed"] == mine["seed"].iloc[0]]
    end_s = shown_span_s(list(events.values()))
    name, unit_s = words.time_unit([end_s])
    shown = {label: timeline_rows(frame, end_s, workers) for label, frame in events.items()}
    counts = [len(rows) for rows in shown.values()]
    height = sum(counts) * _ROW_IN + 0.42 * len(shown) + 0.35
    with figure(_WIDTH_IN, height) as drawn:
        axes = drawn.subplots(len(shown), 1, sharex=True, squeeze=False, height_ratios=counts)[:, 0]
        for ax, (label, rows) in zip(axes, shown.items(), strict=True):
            _draw_rows(ax, rows, unit_s)
            ax.set_title(cut(label, 80), loc="left", fontsize=10, pad=3)
            ax.set_xlim(0, end_s / unit_s)
        axes[-1].set_xlabel(f"time ({name})")
        drawn.supylabel("worker", fontsize=10, color=INK)
    data = pd.DataFrame(
        [
            (label, worker, phase, *box)
            for label, rows in shown.items()
            for worker, activities in rows.items()
            for phase, boxes in activities.items()
            for box in boxes
        ],
        columns=["label", "worker", "phase", "start_s", "end_s"],
    )
    return picture(drawn, f"{study.key}-timeline-{part.source}", data, key=PHASE_KEY)


def _draw_rows(ax: Axes, rows: Mapping[int, Mapping[str, list[Box]]], unit_s: float) -> None:
    heights = {"background": (0.24, 0.42)}
    for phase, colour in {**PHASES, "background": PHASES["communicate"]}.items():
        top, bottom = heights.get(phase, (-0.38, 0.18))
        boxes = [(*box, i + top, i + bottom) for i, row in enumerate(rows.values()) for box in row[phase]]
        _draw_boxes(ax, boxes, unit_s, colour)
    ax.set_ylim(len(rows) - 0.4, -0.6)
    every = max(1, len(rows) // 4)
    ax.set_yticks(range(0, len(rows), every), list(map(str, rows))[::every])
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
