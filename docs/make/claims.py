"""A picture for each page about a paper, from its table of claims: ``python -m docs.make.claims`` draws them.

A row for each claim: the measured ratio with its 95 % interval, and shaded what the paper claims.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from docs.make.page import save_picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPERS: Final = Path(__file__).parents[1] / "papers"
_RATIO: Final = re.compile(r"([\d.e+-]+)(?: \(([\d.e+-]+)(?:\u2013| to )(never|[\d.e+-]+)\))?")
_BOUNDS: Final = re.compile(r"(?:≤ (?P<most>[\d.]+)|≥ (?P<least>[\d.]+)|([\d.]+) to ([\d.]+))")
_COLOURS: Final = {"holds": "#2f7d4f", "does not hold": "#b3372f", "undecided": "#8a6d1f"}
_WIDTH: Final = 46
"""Letters in a line of a claim."""


@dataclass(frozen=True)
class JudgedClaim:
    """A row of the table; ``claimed`` and ``interval`` are bounds of the ratio."""

    says: str
    claimed: tuple[float, float]
    ratio: float
    interval: tuple[float, float]
    verdict: str


def claims_of(page: str) -> list[JudgedClaim]:
    """The claims of a page whose ratio is known."""
    table = page.partition("## Claims\n")[2].partition("\n## ")[0]
    rows = [line.strip("| \n").split(" | ") for line in table.splitlines() if line.startswith("| ")][2:]
    return list(_judged(rows))


def _judged(rows: list[list[str]]) -> Iterator[JudgedClaim]:
    for says, _, _, claimed, ratio_text, verdict in rows:
        bounds, measured = _BOUNDS.match(claimed), _RATIO.match(ratio_text)
        if bounds is None or measured is None:
            continue
        ratio = float(measured[1])
        low = float(measured[2] or ratio)
        high = math.inf if measured[3] == "never" else float(measured[3] or ratio)
        least = float(bounds["least"] or bounds[3] or 0)
        most = float(bounds["most"] or bounds[4] or math.inf)
        yield JudgedClaim(says, (least, most), ratio, (low, high), verdict.partition(":")[0])


def draw_claims(claims: list[JudgedClaim]) -> Figure:
    """Draw the ratios on a logarithmic axis, one above another."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    figure = Figure(figsize=(8.5, 1.0 + 0.44 * len(claims)), layout="constrained")
    axes = figure.subplots()
    axes.set_xscale("log")
    ends = [x for c in claims for x in (*c.claimed, c.ratio, *c.interval) if 0 < x < math.inf]
    left, right = min(ends) / 1.15, max(ends) * 1.15
    for row, claim in enumerate(claims):
        colour = _COLOURS[claim.verdict]
        least, most = max(claim.claimed[0], left), min(claim.claimed[1], right)
        axes.barh(row, most - least, left=least, height=0.72, color="#dfe6ee")
        axes.plot([claim.interval[0], min(claim.interval[1], right)], [row, row], color=colour)
        axes.plot(claim.ratio, row, "o", color=colour)
    axes.axvline(1, color="#555555", linewidth=0.8)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set(xlim=(left, right), ylim=(len(claims) - 0.5, -0.5))
    axes.set_xlabel("ratio, median and 95 % interval; shaded: as claimed")
    axes.set_yticks(range(len(claims)), [_lines(c.says) for c in claims], fontsize=8.5)
    present = [verdict for verdict in _COLOURS if verdict in {c.verdict for c in claims}]
    marks = [Line2D([], [], color=_COLOURS[verdict], marker="o", label=verdict) for verdict in present]
    figure.legend(handles=marks, loc="outside upper right", ncols=len(marks), frameon=False, fontsize=9)
    return figure


def _lines(claim: str) -> str:
    """Not broken between a number and its per cent sign."""
    return textwrap.fill(claim.replace(" %", "\u00a0%"), _WIDTH)


def main() -> None:
    """Draw the pictures of all pages that have claims."""
    for page in sorted(PAPERS.glob("*.md")):
        if claims := claims_of(page.read_text(encoding="utf-8")):
            save_picture(PAPERS / "images" / f"{page.stem}.svg", draw_claims(claims))


if __name__ == "__main__":
    main()
