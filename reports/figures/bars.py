"""Bars: the breakdown of a worker's time, and the lead of one scheme over another as a waterfall.

A time to target is steps times the cost of a step, and a step is computing, transferring and waiting. With N
steps of cost C, the difference between two schemes is

    N2 C2 - N1 C1 = (N2 - N1) (C1 + C2) / 2  +  (C2 - C1) (N1 + N2) / 2,

so every part gets its share whichever way one walks from the one to the other (the Shapley value of two
factors), and the parts add up.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Final

import numpy as np
import pandas as pd

from paceline.sim.records.summary import SchemeSummary, is_by_step

from .. import words
from ..folders import ReportSources, SourceRuns
from .drawing import (  # fmt: skip
    FAINT,
    INK,
    PAPER,
    PHASE_KEY,
    PHASES,
    WIDTH_IN,
    Picture,
    annotate,
    cut,
    figure,
    picture,
    set_up_bars,
)

_LABEL_LETTERS: Final = 22
_FAR: Final = 4.0
"""Ratio to the median bar above which a bar is cut off."""


def draw_cost(study: ReportSources, per_step: bool) -> Picture:
    """Stacked bars: breakdown of the median time of a step, or to the target.

    Without a target it is the mean wall clock's in place of the latter.
    """
    bars = [
        (place, part, row)
        for place, label in enumerate(row["label"] for row in study.main.rows)
        for part in study.parts
        for row in part.rows
        if row["label"] == label and row["iterations"]
    ]
    by_step = is_by_step(study.main.results.summary)
    labels = {place: _wrapped(row["label"]) for place, _, row in bars}
    lengths = [words.step_s(row) if per_step else words.run_s(row, by_step) for _, _, row in bars]
    near = [length for length in lengths if length <= _FAR * float(np.median(lengths))]
    limit = max(lengths) if len(near) == len(lengths) else 1.3 * max(near)
    name, unit_s = words.time_unit([limit / 2])
    paired = study.measured is not None
    with figure(WIDTH_IN, 0.75 + (0.52 if paired else 0.42) * len(labels)) as drawn:
        ax = drawn.subplots()
        for (place, part, row), length in zip(bars, lengths, strict=True):
            measured = part is study.measured
            at = place + (0.21 if measured else -0.17) * paired
            height = 0.36 if paired else 0.68
            left = 0.0
            for colour, part_s in zip(PHASES.values(), words.spent(row, length).values(), strict=True):
                right = min(left + part_s, limit)
                width = (right - left) / unit_s
                ax.barh(at, width, left=left / unit_s, height=height, color=colour, linewidth=0)
                left = right
            text = words.digits(length / unit_s)
            if not (per_step or by_step) and row["time_to_target_s"]["median"] is None:
                text = f"{text} to its end" if row["at_least_s"] is None else f"> {text}"
            text += f" {'measured' if measured else 'predicted'}" if paired else ""
            if length > limit:  # a slanted gap near its end
                slant = [0.955 * left / unit_s, 0.965 * left / unit_s], [at + 0.6 * height, at - 0.6 * height]
                ax.plot(*slant, color=PAPER, linewidth=3, solid_capstyle="butt")
                text += " (cut off)"
            annotate(ax, text, (left / unit_s, at), (4, 0))
        ax.set_yticks(list(labels), [""] * len(labels))
        for place, lines in labels.items():  # line by line: text widths in the page's font are unknown
            for i, line in enumerate(lines):
                offset, by = (-5, 6 * (len(lines) - 1) - 12 * i), ("axes fraction", "data")
                annotate(ax, line, (0, place), offset, xycoords=by, ha="right", fontsize=10)
        set_up_bars(ax)
        ax.set_xlim(0, (limit or 1.0) / unit_s * (1.15 + 0.15 * paired + 0.15 * (limit < max(lengths))))
        what = "time per step" if per_step else "wall clock" if by_step else "time to target"
        ax.set_xlabel(f"{what} ({name})")
    data = pd.DataFrame(
        {
            "label": row["label"],
            "source": row["source"],
            **{f"{name}_s": part_s for name, part_s in words.spent(row, length).items()},
        }
        for (_, _, row), length in zip(bars, lengths, strict=True)
    )
    return picture(drawn, f"{study.key}-{'step' if per_step else 'run'}-cost", data, key=PHASE_KEY)


def _wrapped(label: str) -> list[str]:
    """A label on two lines at most, broken after a blank or an underscore where one is near."""
    if len(label) <= _LABEL_LETTERS:
        return [label]
    places = [i + 1 for i, c in enumerate(label[:_LABEL_LETTERS]) if c in " _-" and i >= _LABEL_LETTERS // 3]
    at = places[-1] if places else _LABEL_LETTERS
    return [label[:at].strip(), cut(label[at:], _LABEL_LETTERS)]


_COLOURS: Final = {
    "number of steps": FAINT,
    "computing": PHASES["compute"],
    "transferring": PHASES["communicate"],
    "waiting": PHASES["wait"],
}
"""The parts of a difference."""


def gap(part: SourceRuns) -> dict[str, float] | None:
    """Decompose the seconds between the first two of a table: cost of more steps, or saving by fewer, and of
    longer or shorter phases of a step; None without both medians and steps.
    """
    costs = list(filter(None, map(_costs, part.rows[:2])))
    if len(costs) < 2:
        return None
    one, two = costs
    steps = (one[0] + two[0]) / 2
    both = (sum(one[1:]) + sum(two[1:])) / 2
    phases_s = ((b - a) * steps for a, b in zip(one[1:], two[1:], strict=True))
    return dict(zip(_COLOURS, ((two[0] - one[0]) * both, *phases_s), strict=True))


def _costs(row: SchemeSummary) -> list[float] | None:
    """Steps to the target, and the computing, transferring and waiting time of a step."""
    time_s, steps, wall_s = row["time_to_target_s"]["median"], row["steps_to_target"], row["wall_clock_s"]
    if not time_s or not steps or not wall_s:
        return None
    shares = row["time_s"]
    phases = shares["compute"], shares["communicate"], shares["wait"]
    return [steps, *(time_s / steps * part / wall_s for part in phases)]


def draw_waterfall(study: ReportSources, parts_s: Mapping[str, float]) -> Picture:
    """Draw a ``gap`` from one time to the other, what saves time last: none is below 0."""
    (first, first_s), (second, second_s) = (
        (row["label"], row["time_to_target_s"]["median"] or 0.0) for row in study.main.rows[:2]
    )
    name, unit_s = words.time_unit([first_s])
    parts_s = dict(sorted(parts_s.items(), key=lambda part: part[1] < 0))
    ends_s = list(accumulate(parts_s.values(), initial=first_s))
    parts = zip(parts_s, ends_s[:-1], ends_s[1:], strict=True)
    bars = [(first, 0.0, first_s), *parts, (second, 0.0, second_s)]
    data = pd.DataFrame(bars, columns=["part", "from_s", "to_s"])
    colours = [INK, *(_COLOURS[part] for part in parts_s), INK]
    with figure(WIDTH_IN, 2.7) as drawn:
        ax = drawn.subplots()
        for place, (bar, colour) in enumerate(zip(bars, colours, strict=True)):
            _, start, end = bar
            total = place in (0, len(bars) - 1)
            width = round((end - start) / unit_s, 6) + 0.0  # else rounding, or -0.0, is shown as a part
            ax.barh(place, width, left=start / unit_s, height=0.62, color=colour, linewidth=0)
            text = words.digits(end / unit_s) if total else f"{'+' * (width > 0)}{words.digits(width)}"
            annotate(ax, text, (max(start, end) / unit_s, place), (4, 0))
            if place < len(bars) - 1:
                ax.plot([end / unit_s] * 2, [place, place + 1], color=INK, linewidth=0.6, zorder=0)
        ax.set_yticks(range(len(bars)), [cut(label, 26) for label, _, _ in bars])
        set_up_bars(ax)
        ax.set_xlim(0, 1.14 * max(max(start, end) for _, start, end in bars) / unit_s)
        ax.set_xlabel(f"time to target ({name})")
    return picture(drawn, f"{study.key}-waterfall", data)
