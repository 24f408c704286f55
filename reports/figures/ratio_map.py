"""A map of the first two schemes: the ratio of their examples against bandwidth, and who is first where."""

from __future__ import annotations

import numpy as np
import pandas as pd

from paceline.sim.records.summary import verdict_of

from ..folders import ReportSources
from .drawing import INK, WIDTH_IN, Picture, annotate, cut, figure, picture
from .metric_curves import make_log


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
