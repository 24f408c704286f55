"""Writes ``docs/board.md`` and its figure from predicted tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from statistics import fmean
from typing import TYPE_CHECKING, Final

from benchmarks.board import grades
from benchmarks.board.decisions import Decisions, decisions_in, together
from benchmarks.board.null import CLOCKS
from benchmarks.board.tables import Line, Score, mapping_of, score_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MARKS: Final = "osD^vP*X<>hpdH8"
_UNITS_S: Final = {"s": 1.0, "ms": 1e-3}
MARK: Final = "<!-- Below: python -m benchmarks.board -->\n"


def body(tables: Mapping[str, Sequence[Line]]) -> str:
    """The generated part of the page: scores, decisions, constants, the figure, and every row."""
    scores = {name: score for name, lines in tables.items() if (score := score_of(lines)) is not None}
    whole = score_of([line for lines in tables.values() for line in lines])
    head = [
        "",
        "| table | rows | mean | naive | expert | median | too fast | worst | as committed "
        "| the same rows today | predicted before opened |",
        "| --- |" + " ---: |" * 9 + " --- |",
        *(f"| {_link(name)} {_figures(scores[name])} | {mapping_of(name).BLIND} |" for name in scores),
        *([f"| all, by rows {_figures(whole)} | |"] if whole else []),
        _by_tables([*scores.values()]),
        "",
        *_lead(scores, whole),
        "",
        *grades.section(tables),
        "",
        *_decisions(tables),
        "",
        *_constants(tables),
        "",
        "![Predicted against measured seconds, one mark a table](images/board.svg)",
        "",
    ]
    return "\n".join([*head, *(rows_of(name, lines) for name, lines in tables.items())])


def _link(name: str) -> str:
    return f"[{mapping_of(name).TITLE}](../benchmarks/board/{name}/README.md)"


def _figures(score: Score) -> str:
    committed = f"{_known(score.committed_pct)} ({score.committed_rows})" if score.committed_rows else ""
    cells = [
        str(score.rows),
        _known(score.mean_pct),
        *(_known(score.nulls_pct[name]) for name in CLOCKS),
        _known(score.median_pct),
        f"{score.fast:.0%}".replace("%", " %"),
        f"{score.worst_pct:+.1f} %",
        committed,
        _known(score.today_pct),
    ]
    return f"| {' | '.join(cells)}"


def _known(percent: float | None) -> str:
    return "" if percent is None else f"{percent:.1f} %"


def _by_tables(scores: Sequence[Score]) -> str:
    """The means over tables, each of which counts once."""
    nulls = " | ".join(_known(fmean(score.nulls_pct[name] for score in scores)) for name in CLOCKS)
    mean_pct = fmean(score.mean_pct for score in scores)
    return f"| all, by tables | {len(scores)} tables | {_known(mean_pct)} | {nulls} | | | | | | |"


def _lead(scores: Mapping[str, Score], whole: Score | None) -> list[str]:
    """A sentence about how far the simulator is ahead of the spreadsheets."""
    if whole is None:
        return []
    leads = {name: round(min(each.nulls_pct.values()) - each.mean_pct, 1) for name, each in scores.items()}
    behind = [f"{name} ({-lead:.1f})" for name, lead in leads.items() if lead < 0]
    ahead = sum(lead > _CLOSE_POINTS for lead in leads.values())
    nulls = ", ".join(f"{whole.nulls_pct[name]:.1f} % ({name})" for name in CLOCKS)
    return [
        f"**Lead.** Paceline is {whole.mean_pct:.1f} % off in the mean of {whole.rows} rows; spreadsheets",
        f"are {nulls}. It leads both by more than {_CLOSE_POINTS} points in {ahead} of {len(leads)}",
        f"tables. One of them is ahead in {len(behind)}, by points: {', '.join(behind) or 'none'}.",
    ]


_CLOSE_POINTS: Final = 1.7


def _decisions(tables: Mapping[str, Sequence[Line]]) -> list[str]:
    by: dict[str | None, list[Decisions]] = {
        name: [decisions_in(table, lines, name) for table, lines in tables.items()]
        for name in (None, *CLOCKS)
    }
    rows = [
        f"| {table} | {' | '.join(_decided(by[name][place]) for name in by)} |"
        for place, table in enumerate(tables)
        if by[None][place].pairs
    ]
    every = " | ".join(_decided(together(each)) for each in by.values())
    return [
        "| decisions | pairs | close | regret | naive: pairs | close by naive | naive: regret "
        "| expert: pairs | close by expert | expert: regret |",
        "| --- |" + " ---: |" * 9,
        *rows,
        f"| all | {every} |",
    ]


def _decided(known: Decisions) -> str:
    return (
        f"{known.right} of {known.pairs} | {known.close_right} of {known.close} | {_known(known.regret_pct)}"
    )


def _constants(tables: Mapping[str, Sequence[Line]]) -> list[str]:
    """Numbers that mappings have and the product does not ship."""
    rows = [
        f"| {table} | {what} | {value} | {origin} |"
        for table in tables
        for origin, name in (("read off rows", "FITTED"), ("assumed", "ASSUMED"))
        for what, value in getattr(mapping_of(table), name, {}).items()
        if "packaged since" not in value
    ]
    return [
        f"The board has {len(rows)} constants that the product does not ship:",
        "",
        "| table | constant | value | origin |",
        "| --- | --- | --- | --- |",
        *rows,
    ]


def rows_of(name: str, lines: Sequence[Line], others: Sequence[float] | None = None) -> str:
    """A table of rows, with another simulator's predictions and errors beside them where given."""
    mapping = mapping_of(name)
    beside = ["theirs", "their error"] if others is not None else []
    columns = [*lines[0].cells, "predicted", "measured", "error", *CLOCKS, *beside]
    text = [
        f"## {name}: {mapping.TITLE}",
        "",
        f"| {' | '.join(columns)} |",
        f"|{' --- |' * len(lines[0].cells)}{' ---: |' * (len(columns) - len(lines[0].cells))}",
    ]
    theirs_or_none: Sequence[float | None] = [None] * len(lines) if others is None else others
    for line, theirs in zip(lines, theirs_or_none, strict=True):
        cells = [*line.cells.values(), _amount(line.predicted, mapping.UNIT), *_against(line, mapping.UNIT)]
        cells += [_percent(line.error_of(line.nulls[name])) for name in CLOCKS]
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
    return _percent(line.error_pct) + ("" if line.counts or line.measured is None else " (read off)")


def _percent(error_pct: float | None) -> str:
    return "" if error_pct is None else f"{error_pct:+.1f} %"


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
