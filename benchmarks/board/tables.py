"""Tables of the board: their rows, what they are compared with, and how far predictions are off."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Final

from benchmarks.board.null import CLOCKS
from benchmarks.board.runs import timed_by
from paceline.sim.config.csv_tables import read_table
from paceline.sim.errors import InputError, RunError, did_you_mean

HERE: Final = Path(__file__).parent


@dataclass(frozen=True)
class Line:
    """A row of a table.

    Attributes:
        cells: what was run, by column.
        predicted: in the table's unit.
        measured: likewise; None: not known.
        counts: whether no constant was read off it.
        nulls: spreadsheet -> what it says, in the same unit.
        committed: what the file says that is older than the measured value; None: there is none.
    """

    cells: Mapping[str, str]
    predicted: float
    measured: float | None
    counts: bool = True
    nulls: Mapping[str, float] = field(default_factory=dict)
    committed: float | None = None

    @property
    def error_pct(self) -> float | None:
        """Of the prediction, in per cent of the measured value."""
        return self.error_of(self.predicted)

    def error_of(self, predicted: float) -> float | None:
        """Of another prediction, likewise."""
        return None if self.measured is None else 100 * (predicted / self.measured - 1)


@dataclass(frozen=True)
class Score:
    """How far the counted rows of a table are off.

    Attributes:
        rows: how many.
        mean_pct, median_pct: of absolute errors.
        worst_pct: the largest error, with its sign.
        fast: share of rows that are predicted too fast.
        nulls_pct: spreadsheet -> mean absolute error on the same rows.
        committed_pct, today_pct: means of the rows that were committed before they were opened: as committed,
            and as predicted now; None: there are none.
        committed_rows: how many those are.
    """

    rows: int
    mean_pct: float
    median_pct: float
    worst_pct: float
    fast: float
    nulls_pct: Mapping[str, float]
    committed_pct: float | None
    today_pct: float | None
    committed_rows: int


def names() -> list[str]:
    """All tables, by name of their folder."""
    return sorted(path.parent.name for path in HERE.glob("*/mapping.py"))


def mapping_of(table: str) -> ModuleType:
    """How rows become scenarios and seconds: ``TITLE``, ``UNIT``, ``BLIND``, ``FITTED``, ``predict(row)``,
    and ``GRADES``, the grades of its rows with their reasons; ``grade_of(row)`` where there are several.

    Perhaps ``ASSUMED``, constants that no row gave; ``SCHEME``, the columns that name a row's scheme; and
    ``PER``, the column with the steps that a row's time is divided by before schemes are compared.

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
    committed = _committed(table)
    if given.names not in (columns, tuple(name for name in columns if name != "fitted")):
        raise InputError(f"{path}: has other columns than {table}: {', '.join(columns)}")
    lines = []
    for number, row in given.rows:
        cells = dict(zip(given.names, row, strict=True))
        measured = cells.pop(columns[-1])
        counts = not cells.pop("fitted", "")
        try:
            value = float(measured) if measured else None
            before = committed.get(frozenset(cells.items()))
            predicted = mapping.predict(cells)
            lines.append(Line(cells, predicted, value, counts, _nulls(mapping, cells), before))
        except (ValueError, InputError, RunError) as error:
            raise InputError(f"{path}:{number}: {error}") from None
    return lines


def _nulls(mapping: ModuleType, cells: Mapping[str, str]) -> dict[str, float]:
    answers = {}
    for name, clock in CLOCKS.items():
        with timed_by(clock):
            answers[name] = mapping.predict(cells)
    return answers


def _committed(table: str) -> dict[frozenset[tuple[str, str]], float]:
    """Cells -> prediction in the files that are older than the rows; the first of two files counts."""
    known: dict[frozenset[tuple[str, str]], float] = {}
    for path in sorted((HERE / table).glob("predicted-unopened*.csv"), key=lambda each: len(each.name)):
        columns = read_table(path)
        for _, row in columns.rows:
            known.setdefault(frozenset(zip(columns.names, row[:-1], strict=False)), float(row[-1]))
    return known


def counted(lines: Iterable[Line]) -> list[Line]:
    """The rows that were measured and that no constant was read off."""
    return [line for line in lines if line.counts and line.measured is not None]


def score_of(lines: Iterable[Line]) -> Score | None:
    """The score of rows that count; None where nothing was measured."""
    known = counted(lines)
    if not known:
        return None
    errors = _errors(known, [line.predicted for line in known])
    before = [line for line in known if line.committed is not None]
    return Score(
        len(known),
        statistics.fmean(map(abs, errors)),
        statistics.median(map(abs, errors)),
        max(errors, key=abs),
        sum(error < 0 for error in errors) / len(errors),
        {
            name: statistics.fmean(map(abs, _errors(known, (line.nulls[name] for line in known))))
            for name in known[0].nulls
        },
        _mean_pct(before, [line.committed for line in before if line.committed is not None])
        if before
        else None,
        _mean_pct(before, [line.predicted for line in before]) if before else None,
        len(before),
    )


def _errors(lines: Sequence[Line], predicted: Iterable[float | None]) -> list[float]:
    both = (line.error_of(value) for line, value in zip(lines, predicted, strict=True) if value is not None)
    return [error for error in both if error is not None]


def _mean_pct(lines: Sequence[Line], predicted: Iterable[float | None]) -> float | None:
    return statistics.fmean(map(abs, _errors(lines, predicted))) if lines else None


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
