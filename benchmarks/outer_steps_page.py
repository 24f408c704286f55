"""docs/outer-steps.md: ratios of steps at three rates, what moves them by size, and a figure.

python -m benchmarks.outer_steps_page
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import pandas as pd

from benchmarks.outer_steps import (
    KEYS,
    LEVELS,
    OUTER,
    PERIODS,
    VARIANT_ROWS,
    VARIANTS,
    WORKERS,
    moves,
    ratios,
    read_rows,
    variant_moves,
    variant_ratios,
)
from docs.make.page import renewed, save_picture
from paceline.sim.config.files import write_atomically
from paceline.sim.scenario.entries import RATES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE: Final = Path(__file__).parents[1] / "docs" / "outer-steps.md"
PICTURE: Final = PAGE.with_name("images") / "outer-steps.svg"
MARK: Final = "<!-- Below: python -m benchmarks.outer_steps_page -->"
_LEVEL: Final = "95 %"
_STUDIED: Final = ("batch of 4", "whole sources", "cosine", "transformer")
"""Variants of which a verdict names the moves: the inner optimiser is AdamW, the target a test loss."""
WORDS: Final = {
    "workers": "workers, 1 to 8", "rate": "rate, of all-reduce's best", "seed": "seed", "outer": "outer step",
    "period": "period, 20 to 500",
}  # fmt: skip


def generated() -> str:
    """All below the mark."""
    rows = read_rows()
    parts = ("Ratios at 95 % of the fall", page_lines(rows)), ("What moves a ratio", move_lines(rows))
    variants = ("Variants at 8 workers", variant_lines())
    return "".join(f"\n\n## {title}\n\n" + "\n".join(lines) for title, lines in (*parts, variants)) + "\n"


def page_lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Ratios at three rates, a row a number of workers and an outer step."""
    yield f"| workers, outer rate/momentum | {' | '.join(f'H = {period}' for period in PERIODS)} |"
    yield f"| --- |{' --- |' * len(PERIODS)}"
    cells = ratios(rows, _LEVEL)
    for workers, outer in product(sorted(WORKERS), OUTER):
        own = [cells.get((workers, outer, period), {}) for period in PERIODS]
        if all(len(each) == len(RATES) for each in own):
            yield f"| {workers}, {outer} | {' | '.join(_cell(each) for each in own)} |"


def move_lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What moves a ratio, by size."""
    yield "| what changes | moves | median | exceeded by one in ten |"
    yield "| --- | ---: | ---: | ---: |"
    known = {WORDS[along]: moves(rows, along) for along in KEYS}
    known |= {name: variant_moves(name) for name in variants_with_rows() if name != "as it is"}
    by_size = sorted(((what, own) for what, own in known.items() if own), key=lambda each: -median(each[1]))
    for what, own in by_size:
        yield f"| {what} | {len(own)} | {_ratio(median(own))} | {_ratio(own[int(0.9 * len(own))])} |"


def _ratio(value: float) -> str:
    return "never" if math.isinf(value) else f"{value:.2f}"


def _cell(by_rate: Mapping[float, float]) -> str:
    return " / ".join(map(_ratio, by_rate.values()))


def named_factors() -> tuple[float, float]:
    """The factors that a verdict names: in the median, and exceeded by one in ten.

    At 90 and 95 %: half of the schemes never get to 98 % of what all-reduce reaches.
    """
    all_moves = sorted(factor for name in _STUDIED for factor in variant_moves(name, [*LEVELS][:2]))
    return median(all_moves), all_moves[int(0.9 * len(all_moves))]


def variant_lines() -> Iterator[str]:
    """Ratios of each variant at all three levels."""
    names = variants_with_rows()
    labels = list(dict.fromkeys(label for name in names for label, _ in variant_ratios(name)))
    yield f"| variant | {' | '.join(labels)} |"
    yield f"| --- |{' --- |' * len(labels)}"
    for name in names:
        own = variant_ratios(name)
        cells = (" / ".join(_ratio(own[label, level]) for level in LEVELS) for label in labels)
        yield f"| {name} | {' | '.join(cells)} |"


def variants_with_rows() -> list[str]:
    """Names of the variants that were run."""
    known = set(pd.read_csv(VARIANT_ROWS)["variant"]) if VARIANT_ROWS.exists() else set()
    return [name for name in VARIANTS if name in known]


def draw(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Ratio against the period: a panel a number of workers, a band an outer step, over three rates."""
    from matplotlib.figure import Figure

    cells = {cell: own for cell, own in ratios(rows, _LEVEL).items() if len(own) == len(RATES)}
    workers = sorted({each[0] for each in cells})
    figure = Figure(figsize=(2.3 * len(workers) + 0.8, 3.0), layout="constrained")
    panels = figure.subplots(1, len(workers), sharey=True, squeeze=False)[0]
    for panel, number in zip(panels, workers, strict=True):
        for place, outer in enumerate(OUTER):
            own = [[*cells[number, outer, period].values()] for period in PERIODS]
            low, middle, high = ([pick(each) for each in own] for pick in (min, median, max))
            panel.fill_between(PERIODS, low, [min(each, 10) for each in high], color=f"C{place}", alpha=0.2)
            panel.plot(PERIODS, middle, color=f"C{place}", marker="o", label=f"outer {outer}")
        panel.axhline(1, color="0.5", linewidth=0.8)
        panel.set(xscale="log", yscale="log", ylim=(0.5, 8), title=f"{number} worker{'s' * (number > 1)}")
        panel.set_xticks(PERIODS, map(str, PERIODS))
        panel.set_yticks([0.5, 1, 2, 4, 8], ["0.5", "1", "2", "4", "8"])
        panel.minorticks_off()
        panel.set_xlabel("steps between averages, H")
    panels[0].set_ylabel("steps over all-reduce's")
    panels[0].legend(frameon=False, fontsize=8)
    return figure


if __name__ == "__main__":
    save_picture(PICTURE, draw(read_rows()))
    write_atomically(PAGE, renewed(PAGE.read_text(encoding="utf-8"), MARK, generated()))
