"""Predict other people's measurements, and say how far the predictions are off.

    python -m benchmarks.board                            all tables -> docs/board.md, outside.json
    python -m benchmarks.board TABLE                      one table, on standard output
    python -m benchmarks.board TABLE --rows FILE.csv      other rows, with the columns of measured.csv
    python -m benchmarks.board TABLE --against FILE.csv   beside another simulator's predictions

``--against``: the same columns, with the other's predictions in the place of the measured ones, in the
table's order.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.board import page
from benchmarks.board.grades import graded, shipped
from benchmarks.board.tables import lines_of, names, predictions_in, score_of
from docs.make.page import renewed, save_picture
from paceline.sim.config.files import write_atomically
from paceline.sim.errors import InputError
from paceline.sim.records.scenario_facts import DATA

PAGE: Final = Path("docs/board.md")
PICTURE: Final = Path("docs/images/board.svg")


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.board")
    parser.add_argument("table", nargs="?", help=f"one of {', '.join(names())}; none: all, to {PAGE}")
    parser.add_argument("--rows", type=Path, help="CSV with other rows; the measured column may be empty")
    parser.add_argument("--against", type=Path, help="CSV with another simulator's predictions of these rows")
    arguments = parser.parse_args(argv)
    try:
        if arguments.table is None:
            if arguments.rows or arguments.against:
                raise InputError("--rows and --against need a table")
            write_page()
        else:
            sys.stdout.write(one_table(arguments.table, arguments.rows, arguments.against))
    except InputError as error:
        sys.stderr.write(f"benchmarks.board: {error}\n")
        return 2
    return 0


def one_table(table: str, rows: Path | None, against: Path | None) -> str:
    """The rows of a table and their score, in Markdown."""
    lines = lines_of(table, rows)
    others = None
    if against is not None:
        others = predictions_in(against)
        if len(others) != len(lines):
            raise InputError(f"{against}: has {len(others)} rows, {table} has {len(lines)}")
    text = page.rows_of(table, lines, others)
    score = score_of(lines)
    if score is not None:
        text += (
            f"{score.rows} rows: mean {score.mean_pct:.1f} %, worst {score.worst_pct:+.1f} %; "
            f"{', '.join(f'{name} {value:.1f} %' for name, value in score.nulls_pct.items())}\n"
        )
    return text


def write_page() -> None:
    """Predict every table; renew the page and its figure."""
    tables = {}
    for name in names():
        sys.stderr.write(f"{name}\n")
        tables[name] = lines_of(name)
    write_atomically(DATA, shipped(graded(tables)))
    save_picture(PICTURE, page.draw(tables))
    write_atomically(PAGE, renewed(PAGE.read_text(encoding="utf-8"), page.MARK, page.body(tables)))


if __name__ == "__main__":
    sys.exit(main())
