"""The lead of one scheme over another: the difference of their times, decomposed.

A time to target is steps times the cost of a step, and a step is computing, transferring and waiting. With N
steps of cost C, the difference between two schemes is

    N2 C2 - N1 C1 = (N2 - N1) (C1 + C2) / 2  +  (C2 - C1) (N1 + N2) / 2,

so every part gets its share whichever way one walks from the one to the other (the Shapley value of two
factors), and the parts add up.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import pandas as pd

from paceline.sim.records.summary import SchemeSummary

from .. import words
from ..folders import ReportSources, SourceRuns
from .drawing import FAINT, INK, PHASES, WIDTH_IN, Picture, annotate, cut, figure, picture, set_up_bars

_COLOURS: Final = {
    "number of steps": FAINT,
    "computing": PHASES["compute"],
    "transferring": PHASES["communicate"],
    "waiting": PHASES["wait"],
}
"""The parts of a difference."""


@dataclass(frozen=True)
class Gap:
    """The difference between the median times to target of two schemes, by labels, in seconds.

    ``parts_s``: cost of more steps, or saving by fewer; likewise of longer or shorter phases of a step.
    """

    first: str
    second: str
    first_s: float
    second_s: float
    parts_s: dict[str, float]


def gap(part: SourceRuns) -> Gap | None:
    """Decompose the gap between the best and the second of a table; None without both medians and steps."""
    costs = list(filter(None, map(_costs, part.rows[:2])))
    if len(costs) < 2:
        return None
    one, two = costs
    steps = (one[0] + two[0]) / 2
    both = (sum(one[1:]) + sum(two[1:])) / 2
    phases_s = ((b - a) * steps for a, b in zip(one[1:], two[1:], strict=True))
    return Gap(
        first=part.rows[0]["label"],
        second=part.rows[1]["label"],
        first_s=part.rows[0]["time_to_target_s"]["median"] or 0.0,
        second_s=part.rows[1]["time_to_target_s"]["median"] or 0.0,
        parts_s=dict(zip(_COLOURS, ((two[0] - one[0]) * both, *phases_s), strict=True)),
    )


def _costs(row: SchemeSummary) -> list[float] | None:
    """Steps to the target, and the computing, transferring and waiting time of a step."""
    time_s, steps, wall_s = row["time_to_target_s"]["median"], row["steps_to_target"], row["wall_clock_s"]
    if not time_s or not steps or not wall_s:
        return None
    shares = row["time_s"]
    phases = shares["compute"], shares["communicate"], shares["wait"]
    return [steps, *(time_s / steps * part / wall_s for part in phases)]


def draw_waterfall(study: ReportSources, of: Gap) -> Picture:
    """Draw bars from the time of one scheme to that of the other, what saves time last: none is below 0."""
    name, unit_s = words.time_unit([of.first_s])
    parts_s = dict(sorted(of.parts_s.items(), key=lambda part: part[1] < 0))
    ends_s = list(accumulate(parts_s.values(), initial=of.first_s))
    parts = zip(parts_s, ends_s[:-1], ends_s[1:], strict=True)
    bars = [(of.first, 0.0, of.first_s), *parts, (of.second, 0.0, of.second_s)]
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
