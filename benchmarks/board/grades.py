"""Grades of rows by their inputs alone, and how far rows of a grade are off.

The first rule that holds gives the grade:

1. *contradicting*: the source's own numbers exclude one another, or are coarser than what a row asks for;
2. *part*: computing was measured on fewer GPUs than share a host: one, or a part of them;
3. *plate*: a rate between hosts is that of a card or a data sheet;
4. *measured*: rates were shaped or measured, and computing, where there is any, is that of whole hosts.

An interval holds four fifths of the ratios of measured to predicted time, each table of the grade counting as
much as another. Coverage: how many of a table's rows are in the interval of the other tables.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from benchmarks.board.tables import Line, Score, counted, mapping_of, score_of

GRADES: Final = {
    "measured": "a shaped or measured rate, and a step of whole servers",
    "plate": "a name plate's rate",
    "part": "a step of one GPU, or of a part of a server",
    "contradicting": "a source that contradicts itself",
}
_NEXT: Final = {
    "measured": "",
    "plate": "a rate by iperf3 or nccl-tests between two hosts",
    "part": "compute.time of a step on all GPUs of a host",
}
"""What to measure for a better grade."""
TAIL: Final = 0.1
"""Left out of an interval on either side."""
Tables = Mapping[str, Sequence[Line]]
Ratios = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Graded:
    """The counted rows of a grade.

    Attributes:
        score: of its rows.
        ratios: table -> measured over predicted times.
        low, high: the interval that holds four fifths of them.
        covered: share of rows inside the interval of the grade's other tables.
    """

    score: Score
    ratios: Ratios
    low: float
    high: float
    covered: float


def grade_of(table: str, row: Mapping[str, str]) -> str:
    """The grade of a table's row."""
    mapping = mapping_of(table)
    grade: str = mapping.grade_of(row) if hasattr(mapping, "grade_of") else next(iter(mapping.GRADES))
    return grade


def graded(tables: Tables) -> dict[str, Graded]:
    """Grade -> its rows, in the order of ``GRADES``."""
    out = {}
    for grade in GRADES:
        rows = {
            table: [line for line in counted(lines) if grade_of(table, line.cells) == grade]
            for table, lines in tables.items()
        }
        score = score_of([line for lines in rows.values() for line in lines])
        if score is not None:
            ratios = {
                table: [(line.measured or 0.0) / line.predicted for line in lines]
                for table, lines in rows.items()
                if lines
            }
            out[grade] = Graded(score, ratios, *interval(ratios), covered(ratios))
    return out


def interval(ratios: Ratios) -> tuple[float, float]:
    """Ends that leave ``TAIL`` out on either side; each table weighs as much as another.

    >>> interval({"a": [1.0, 2.0, 3.0], "b": [2.0]})
    (1.1, 2.95)
    """
    pairs = sorted((ratio, 1 / len(each)) for each in ratios.values() for ratio in each)
    weights = np.array([weight for _, weight in pairs])
    places = (np.cumsum(weights) - weights / 2) / weights.sum()
    low, high = np.interp([TAIL, 1 - TAIL], places, [ratio for ratio, _ in pairs])
    return round(float(low), 3), round(float(high), 3)


def covered(ratios: Ratios) -> float:
    """Share of rows that are inside the interval of the other tables; 0 where there is one table alone."""
    inside = 0
    for table, own in ratios.items():
        others = {name: each for name, each in ratios.items() if name != table}
        if others:
            low, high = interval(others)
            inside += sum(low <= ratio <= high for ratio in own)
    return inside / sum(map(len, ratios.values()))


def shipped(grades: Mapping[str, Graded]) -> str:
    """The figures that the product says for a user's scenario, as JSON; no user contradicts herself."""
    rows = {
        name: {
            "grade": name,
            "inputs": GRADES[name],
            "next": _NEXT[name],
            "rows": each.score.rows,
            "mean_pct": round(each.score.mean_pct, 1),
            "fast": round(each.score.fast, 2),
            "low": each.low,
            "high": each.high,
        }
        for name, each in grades.items()
        if name != "contradicting"
    }
    return json.dumps(rows, indent=1) + "\n"


def section(tables: Tables) -> list[str]:
    """The page's part: figures by grade, and why a table has its grade."""
    known = graded(tables)
    figures = [
        f"| {name}: {GRADES[name]} | {each.score.rows} | {len(each.ratios)} | {each.score.mean_pct:.1f} % "
        f"| {each.score.nulls_pct['naive']:.1f} % | {each.score.nulls_pct['expert']:.1f} % "
        f"| {each.score.median_pct:.1f} % | {100 * each.score.fast:.0f} % | {each.score.worst_pct:+.1f} % "
        f"| {each.low:.2f} to {each.high:.2f} | {100 * each.covered:.1f} % |"
        for name, each in known.items()
    ]
    usual = {name: each for name, each in known.items() if name != "contradicting"}
    rows = sum(each.score.rows for each in usual.values())
    within = sum(each.covered * each.score.rows for each in usual.values()) / rows
    reasons = [
        f"| {table} | {grade} | {reason} |"
        for table in tables
        for grade, reason in mapping_of(table).GRADES.items()
    ]
    return [
        "| grade | rows | tables | mean | naive | expert | median | too fast | worst "
        "| measured over predicted, four fifths | covered, table left out |",
        "| --- |" + " ---: |" * 10,
        *figures,
        "",
        f"With each table left out in turn, {100 * within:.1f} % of the {rows} rows that do not contradict",
        "themselves are inside the interval of their grade's other tables.",
        "",
        "| graded | grade | reason |",
        "| --- | --- | --- |",
        *reasons,
    ]
