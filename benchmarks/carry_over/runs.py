"""Finished runs of the study, a row each, which a later call does not repeat."""

from __future__ import annotations

import csv
import math
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Final, Self

FOLDER: Final = Path(__file__).parent
LEVELS: Final = (70, 90)
"""Per cent of the fall of the loss in a long all-reduce run."""


@dataclass(frozen=True)
class Cell:
    """A task under a partition with one batch size of a worker."""

    task: str
    partition: str
    batch: int


@dataclass(frozen=True)
class Row:
    """One run; its learning rate is 2^(rate / 2), and steps are infinite where ``cap`` came first."""

    task: str
    partition: str
    batch: int
    scheme: str
    rate: int
    seed: int
    cap: int
    steps_70: float
    steps_90: float

    @classmethod
    def read(cls, text: list[str]) -> Self:
        """The row written as ``cells`` gives it."""
        task, partition, batch, scheme, rate, seed, cap, *steps = text
        numbers = (float(each) if each else math.inf for each in steps)
        return cls(task, partition, int(batch), scheme, int(rate), int(seed), int(cap), *numbers)

    def cells(self) -> list[str]:
        """Its text in the table."""
        *known, first, second = astuple(self)
        return [*map(str, known), *("" if math.isinf(each) else f"{each:.4g}" for each in (first, second))]


class Table:
    """The rows of ``runs.csv``; what is added is on disk at once."""

    def __init__(self, file: Path = FOLDER / "runs.csv") -> None:
        self.file = file
        if not file.is_file():
            file.write_text(",".join(field.name for field in fields(Row)) + "\n")
        with file.open(newline="") as lines:
            read = [Row.read(text) for text in list(csv.reader(lines))[1:]]
        self.rows = {(Cell(x.task, x.partition, x.batch), x.scheme, x.rate, x.seed): x for x in read}

    def add(self, rows: list[Row]) -> None:
        """Append ``rows``; they count as they are written, rounded."""
        written = [row.cells() for row in rows]
        with self.file.open("a", newline="") as lines:
            csv.writer(lines, lineterminator="\n").writerows(written)
        for row in map(Row.read, written):
            self.rows[Cell(row.task, row.partition, row.batch), row.scheme, row.rate, row.seed] = row
