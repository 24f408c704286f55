"""Decisions on the board: rows that differ in the scheme alone, in which order, and what the pick costs."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from benchmarks.board.tables import Line, counted, mapping_of

APART: Final = 1.05
"""Two measurements at least this far apart have an order."""
CLOSE: Final = 1.5
"""Below this ratio a decision is no easy one."""


@dataclass(frozen=True)
class Decisions:
    """How often schemes come in the right order.

    Attributes:
        right, pairs: pairs of rows that differ in the scheme alone, and are ``APART``.
        close_right, close: those of them that are less than ``CLOSE`` apart.
        regrets: for each set of such rows, the measured time of the scheme that is predicted first, over that
            of the fastest, less one.
    """

    right: int = 0
    pairs: int = 0
    close_right: int = 0
    close: int = 0
    regrets: tuple[float, ...] = ()

    @property
    def regret_pct(self) -> float | None:
        """Mean regret; None: there is nothing to decide."""
        return 100 * statistics.fmean(self.regrets) if self.regrets else None


def decisions_in(table: str, lines: Iterable[Line], by: str | None = None) -> Decisions:
    """The decisions of a table's counted rows, by the prediction, or ``by`` a spreadsheet."""
    mapping = mapping_of(table)
    scheme: Sequence[str] = getattr(mapping, "SCHEME", ())
    steps: str | None = getattr(mapping, "PER", None)
    return decisions_of(
        [
            (_others(line.cells, (*scheme, *((steps,) if steps else ()))), *_times(line, steps, by))
            for line in counted(lines)
        ]
        if scheme
        else []
    )


def decisions_of(rows: Iterable[tuple[object, float, float]]) -> Decisions:
    """Decisions among rows: what they share, their predicted and their measured times.

    >>> decisions_of([("a", 1.0, 1.2), ("a", 1.1, 1.0), ("a", 5.0, 5.0), ("b", 1.0, 1.0)])
    Decisions(right=2, pairs=3, close_right=0, close=1, regrets=(0.19999999999999996,))
    """
    sets: defaultdict[object, list[tuple[float, float]]] = defaultdict(list)
    for shared, predicted, measured in rows:
        sets[shared].append((predicted, measured))
    verdicts = [
        ((a < b) == (real_a < real_b), max(real_a, real_b) / min(real_a, real_b))
        for each in sets.values()
        for (a, real_a), (b, real_b) in combinations(each, 2)
    ]
    verdicts = [(right, ratio) for right, ratio in verdicts if ratio >= APART]
    close = [right for right, ratio in verdicts if ratio < CLOSE]
    regrets = [
        min(each)[1] / min(measured for _, measured in each) - 1 for each in sets.values() if len(each) > 1
    ]
    return Decisions(
        sum(right for right, _ in verdicts), len(verdicts), sum(close), len(close), tuple(regrets)
    )


def together(decisions: Iterable[Decisions]) -> Decisions:
    """Decisions of several tables as one."""
    every = [*decisions]
    return Decisions(
        sum(each.right for each in every),
        sum(each.pairs for each in every),
        sum(each.close_right for each in every),
        sum(each.close for each in every),
        tuple(regret for each in every for regret in each.regrets),
    )


def _others(cells: Mapping[str, str], names: Sequence[str]) -> frozenset[tuple[str, str]]:
    return frozenset(item for item in cells.items() if item[0] not in names)


def _times(line: Line, steps: str | None, by: str | None) -> tuple[float, float]:
    divisor = float(line.cells[steps]) if steps else 1.0
    predicted = line.predicted if by is None else line.nulls[by]
    return predicted / divisor, (line.measured or 0.0) / divisor
