"""CSV files of quantities with units: one header line, then one row of cells each.

Cells are parted by commas, or by semicolons or tabs where the header has no comma. The unit stands in
the header (``step_time [ms]``) or in every cell (``51.2 ms``). Lines that begin with
``#`` and empty lines are skipped.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..errors import InputError, did_you_mean, quote
from .problems import one_line
from .yaml_file import read_text

MAX_TABLE_BYTES: Final = 64 * 2**20

_VALUE: Final = re.compile(r"-?[0-9][0-9.,]*\s*(us|ms|s|min|h|\S*(bit|B)/s)")


@dataclass(frozen=True)
class Table:
    """Content of a CSV file, the ``source``.

    Columns have ``names`` without units, and ``units``, empty where the cells have them; ``rows`` are (line
    in the file, cells), all of the header's length.
    """

    source: str
    names: tuple[str, ...]
    units: tuple[str, ...]
    rows: tuple[tuple[int, tuple[str, ...]], ...]

    def find(self, name: str | None) -> int:
        """Index of a column; without a name, of the only one. ``InputError``: none, or several candidates."""
        if name is None and len(self.names) == 1:
            return 0
        if name is None:
            names = ", ".join(f"'{name}'" for name in self.names[:8])
            raise InputError(f"{self.source}: has {len(self.names)} columns; name one of {names}")
        if name not in self.names:
            raise InputError(f"{self.source}: has no column {quote(name)}; {did_you_mean(name, self.names)}")
        return self.names.index(name)

    def refuse_others(self, names: Sequence[str]) -> None:
        """Raise ``InputError`` for a column that has none of these names."""
        for name in self.names:
            if name not in names:
                raise InputError(f"{self.source}: takes no column {quote(name)}; {did_you_mean(name, names)}")

    def values(self, name: str | None, parse: Callable[[object], float]) -> list[float]:
        """Values of a column of quantities, by a ``parse`` of ``paceline.sim.config.units``. ``InputError``,
        with line and column: no such column, or a cell of another kind.
        """
        column = self.find(name)
        unit = self.units[column]
        return [self.value(line, column, cells, parse, unit) for line, cells in self.rows]

    def value(
        self, line: int, column: int, cells: tuple[str, ...], parse: Callable[[object], float], unit: str
    ) -> float:
        """Parse one cell as a quantity; ``unit`` is empty if the cell has its own. Errors: as ``values``."""
        text = f"{cells[column]} {unit}".strip()
        try:
            return parse(text)
        except InputError as error:
            raise InputError(f"{self.source}:{line}: {self.names[column]}: {error}") from None


def read_table(path: Path) -> Table:
    """Read a CSV file; ``InputError`` if unreadable, without rows, or with rows unlike the header."""
    text = read_text(path, MAX_TABLE_BYTES, foreign=True)
    head = next((line for line in text.splitlines() if line.strip() and not line.startswith("#")), "")
    comma = next((each for each in ",;\t" if each in head), ",")
    lines, filled = csv.reader(text.splitlines(), delimiter=comma, skipinitialspace=True, strict=True), []
    try:
        for cells in lines:
            if any(map(str.strip, cells)) and not cells[0].startswith("#"):
                filled.append((lines.line_num, tuple(cell.strip() for cell in cells)))
    except csv.Error as error:
        raise InputError(f"{path}:{lines.line_num}: not valid CSV: {error}") from None
    if len(filled) < 2:
        raise InputError(f"{path}: needs a header line and at least one row")
    (first, header), *rows = filled
    if len(header) == 1 and re.search(r"^-----|[:=]\S", header[0]):  # lines of it would stand in messages
        raise InputError(f"{path}:{first}: is no header of a table, but what files of passwords or keys have")
    if all(map(_VALUE.fullmatch, header)):
        raise InputError(f"{path}:{first}: is a row of values; write the names of columns in a line above it")
    for line, row in rows:
        if len(row) != len(header):
            raise InputError(f"{path}:{line}: has {len(row)} cells, the header has {len(header)}")
    split = [_split_unit(name) for name in header]
    names = tuple(one_line(name, 60) for name, _ in split)
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"{path}:{first}: two columns are called {quote(twice[0])}")
    return Table(str(path), names, tuple(unit for _, unit in split), tuple(rows))


def _split_unit(header: str) -> tuple[str, str]:
    name, bracket, rest = header.partition("[")
    return (name.rstrip(), rest[:-1]) if bracket and rest.endswith("]") else (header, "")
