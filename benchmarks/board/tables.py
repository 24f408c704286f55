"""Tables of the board: their rows, what they are compared with, and how far predictions are off."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import combinations
from pathlib import Path
from types import ModuleType
from typing import Final

from paceline.sim.config.csv_tables import read_table
from paceline.sim.errors import InputError, RunError, did_you_mean

HERE: Final = Path(__file__).parent
APART: Final = 1.05
"""Two measurements at least this far apart have an order."""


@dataclass(frozen=True)
class Line:
    """A row of a table.

    Attributes:
        cells: what was run, by column.
        predicted: in the table's unit.
        measured: likewise; None: not known.
        counts: whether no constant was read off it.
    """

    cells: Mapping[str, str]
    predicted: float
    measured: float | None
    counts: bool = True

    @property
    def error_pct(self) -> float | None:
        """Of the prediction, in per cent of the measured value."""
        return None if self.measured is None else _error_pct(self.predicted, self.measured)


@dataclass(frozen=True)
class Score:
    """How far the counted rows of a table are off, and how many pairs are in the right order."""

    rows: int
    mean_pct: float
    worst_pct: float
    ordered: int
    pairs: int


def names() -> list[str]:
    """All tables, by name of their folder."""
    return sorted(path.parent.name for path in HERE.glob("*/mapping.py"))


def mapping_of(table: str) -> ModuleType:
    """How rows become scenarios and seconds: ``TITLE``, ``UNIT``, ``BLIND``, ``FITTED`` and ``predict(row)``.

    Raises:
        InputError: no such table.
    """
    if table not in names():
        raise InputError(f"there is no table {table!r}; {did_you_mean(table, names())}")
    return import_module(f"benchmarks.board.{table}.mapping")


def lines_of(table: str, rows: Path | None = None) -> list[Line]:
    """Predict the rows of a table, or other rows with its columns; the measured column may be empty, and
    ``fitted`` missing.

    Raises:
        InputError: no such table, or the file has other columns.
    """
    mapping = mapping_of(table)
    own = HERE / table / "measured.csv"
    path = rows or own
    columns, given = read_table(own).names, read_table(path)
    if given.names not in (columns, tuple(name for name in columns if name != "fitted")):
        raise InputError(f"{path}: has other columns than {table}: {', '.join(columns)}")
    lines = []
    for number, row in given.rows:
        cells = dict(zip(given.names, row, strict=True))
        measured = cells.pop(columns[-1])
        counts = not cells.pop("fitted", "")
        try:
            value = float(measured) if measured else None
            lines.append(Line(cells, mapping.predict(cells), value, counts))
        except (ValueError, InputError, RunError) as error:
            raise InputError(f"{path}:{number}: {error}") from None
    return lines


def score_of(lines: Sequence[Line]) -> Score | None:
    """The score of rows that count; None where nothing was measured."""
    known = [(line.predicted, line.measured) for line in lines if line.counts and line.measured is not None]
    if not known:
        return None
    errors = [_error_pct(predicted, measured) for predicted, measured in known]
    right = [
        (a < b) == (real_a < real_b)
        for (a, real_a), (b, real_b) in combinations(known, 2)
        if max(real_a, real_b) >= APART * min(real_a, real_b)
    ]
    return Score(len(known), statistics.fmean(map(abs, errors)), max(errors, key=abs), sum(right), len(right))


def predictions_in(path: Path) -> list[float]:
    """The last column of a file with another simulator's predictions.

    Raises:
        InputError: it cannot be read, or has something else there.
    """
    values = []
    for number, cells in read_table(path).rows:
        try:
            values.append(float(cells[-1]))
        except ValueError as error:
            raise InputError(f"{path}:{number}: {error}") from None
    return values


def _error_pct(predicted: float, measured: float) -> float:
    return 100 * (predicted / measured - 1)
