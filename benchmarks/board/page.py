"""Writes ``docs/board.md`` and its figure from predicted tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Final

from benchmarks.board.tables import Line, Score, mapping_of, score_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MARKS: Final = "osD^vP*X<>hpdH8"
_UNITS_S: Final = {"s": 1.0, "ms": 1e-3}
MARK: Final = "<!-- Below: python -m benchmarks.board -->\n"


def body(tables: Mapping[str, Sequence[Line]]) -> str:
    """The generated part of the page: scores, the figure, and every row."""
    scores = {name: score_of(lines) for name, lines in tables.items()}
    head = [
        "",
        "| table | rows | mean | worst | order right | predicted before opened | fitted |",
        "| --- | ---: | ---: | ---: | ---: | --- | --- |",
        *(_summary(name, score) for name, score in scores.items()),
        _all([score for score in scores.values() if score is not None]),
        "",
        "![Predicted against measured seconds, one mark a table](images/board.svg)",
        "",
    ]
    return "\n".join([*head, *(rows_of(name, lines) for name, lines in tables.items())])


def _all(scores: Sequence[Score]) -> str:
    rows = sum(score.rows for score in scores)
    mean_pct = sum(score.rows * score.mean_pct for score in scores) / rows
    worst_pct = max((score.worst_pct for score in scores), key=abs)
    order = f"{sum(score.ordered for score in scores)} of {sum(score.pairs for score in scores)}"
    return f"| all | {rows} | {mean_pct:.1f} % | {worst_pct:+.1f} % | {order} | | |"


def _summary(name: str, score: Score | None) -> str:
    mapping = mapping_of(name)
    fitted = "; ".join(f"{what}: {value}" for what, value in mapping.FITTED.items()) or "nothing"
    link = f"[{mapping.TITLE}](../benchmarks/board/{name}/README.md)"
    if score is None:
        return f"| {link} | 0 | | | | {mapping.BLIND} | {fitted} |"
    order = f"{score.ordered} of {score.pairs}"
    return (
        f"| {link} | {score.rows} | {score.mean_pct:.1f} % | {score.worst_pct:+.1f} % | {order} "
        f"| {mapping.BLIND} | {fitted} |"
    )


def rows_of(name: str, lines: Sequence[Line], others: Sequence[float] | None = None) -> str:
    """A table of rows, with another simulator's predictions and errors beside them where given."""
    mapping = mapping_of(name)
    beside = ["theirs", "their error"] if others is not None else []
    columns = [*lines[0].cells, "predicted", "measured", "error", *beside]
    text = [
        f"## {name}: {mapping.TITLE}",
        "",
        f"| {' | '.join(columns)} |",
        f"|{' --- |' * len(lines[0].cells)}{' ---: |' * (len(columns) - len(lines[0].cells))}",
    ]
    theirs_or_none: Sequence[float | None] = [None] * len(lines) if others is None else others
    for line, theirs in zip(lines, theirs_or_none, strict=True):
        cells = [*line.cells.values(), _amount(line.predicted, mapping.UNIT), *_against(line, mapping.UNIT)]
        if theirs is not None:
            their = Line(line.cells, theirs, line.measured)
            cells += [_amount(theirs, mapping.UNIT), _error(their)]
        text.append(f"| {' | '.join(cells)} |")
    return "\n".join([*text, "", ""])


def _against(line: Line, unit: str) -> tuple[str, str]:
    return ("" if line.measured is None else _amount(line.measured, unit)), _error(line)


def _amount(value: float, unit: str) -> str:
    return f"{value:.0f} {unit}" if value >= 1000 else f"{value:.4g} {unit}"


def _error(line: Line) -> str:
    if line.error_pct is None:
        return ""
    return f"{line.error_pct:+.1f} %" + ("" if line.counts else " (read off)")


def draw(tables: Mapping[str, Sequence[Line]]) -> Figure:
    """Predicted against measured, both logarithmic, one mark a table; dashed: 15 % off."""
    import matplotlib.pyplot as plt
    import seaborn as sns

    with sns.axes_style("whitegrid"):
        figure, ax = plt.subplots(figsize=(7.6, 5.4), layout="constrained")
    palette = sns.color_palette("colorblind", len(tables))
    every: list[float] = []
    for (name, lines), colour, mark in zip(tables.items(), palette, cycle(_MARKS), strict=False):
        known, unit_s = [line for line in lines if line.measured is not None], _UNITS_S[mapping_of(name).UNIT]
        measured = [unit_s * line.measured for line in known if line.measured is not None]
        predicted = [unit_s * line.predicted for line in known]
        every += measured
        ax.plot(
            measured, predicted, mark, color=colour, label=name, markersize=6, markeredgecolor="white",
            markeredgewidth=0.5,
        )  # fmt: skip
    ends = [0.7 * min(every), 1.4 * max(every)]
    ax.plot(ends, ends, color="0.4", linewidth=0.8, zorder=0)
    for factor in (0.85, 1.15):
        ax.plot(ends, [factor * end for end in ends], "--", color="0.6", linewidth=0.8, zorder=0)
    ax.set(xscale="log", yscale="log", xlabel="measured by others, s", ylabel="predicted, s")
    ax.set(xlim=ends, ylim=ends, aspect="equal")
    ax.legend(
        loc="center left", bbox_to_anchor=(1, 0.5), title="dashed: 15 % off", fontsize=9, title_fontsize=9
    )
    return figure
