"""Rows of measured scores: one reader for each format of a file, and one for result folders."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ...config import yaml_file
from ...config.problems import one_line
from ...config.tables import MAX_TABLE_BYTES, read_table
from ...config.yaml_file import read_bytes, read_text
from ...errors import InputError, did_you_mean
from ...records.formats.tables import STEP_VECTOR
from ...records.verdict import Value
from .conditions import conditions_of

EVENTS: Final = "tfevents"
"""Part of the name of every TensorBoard event file."""
WRITTEN: Final = "curves.csv"
"""File of ``paceline.attach`` in its folder of records."""
_OF_RUN: Final = " - "
"""Between run and metric in a column of a W&B export."""
_SPREAD: Final = ("__MIN", "__MAX")
"""Ends of the columns that a W&B export adds to a metric's own."""


@dataclass(frozen=True)
class Row:
    """Scores at one point: the row's place, for messages; its cells by column; and conditions known of it."""

    where: str
    cells: Mapping[str, Value | None]
    under: Mapping[str, Value] = field(default_factory=dict)


def read_rows(path: Path) -> list[Row]:
    """Read a file, by the end of its name, or a folder; ``InputError`` if that is not possible."""
    if path.is_dir():
        return _read_folder(path)
    read = READERS[EVENTS] if EVENTS in path.name else READERS.get(path.suffix.lower())
    if read is None:
        known = did_you_mean(path.suffix, READERS)
        raise InputError(f"{path}: is of no known format; {known}, or name a result folder")
    rows = list(read(path))
    if not rows:
        raise InputError(f"{path}: holds no scores")
    return rows


def _read_csv(path: Path) -> Iterator[Row]:
    table = read_table(path)
    wide = any(_OF_RUN in name for name in table.names)
    for line, cells in table.rows:
        row = Row(f"{path}:{line}", dict(zip(table.names, map(_parse_cell, cells), strict=True)))
        yield from _split_runs(row) if wide else [row]


def _parse_cell(text: str) -> Value | None:
    try:
        return float(text) if text else None
    except ValueError:
        return text


def _split_runs(row: Row) -> Iterator[Row]:
    """The rows of the runs that stand beside each other in a W&B export."""
    shared = {name: value for name, value in row.cells.items() if _OF_RUN not in name}
    runs: dict[str, dict[str, Value | None]] = {}
    for name, value in row.cells.items():
        run, _, metric = name.rpartition(_OF_RUN)
        if run and value is not None and not metric.endswith(_SPREAD):
            runs.setdefault(run, {})[metric] = value
    yield from (Row(row.where, {**shared, "run": run, **scores}) for run, scores in runs.items())


def _read_json_lines(path: Path) -> Iterator[Row]:
    for number, line in enumerate(read_text(path, MAX_TABLE_BYTES).splitlines(), 1):
        if not line.strip():
            continue
        try:
            cells = json.loads(line)
        except (ValueError, RecursionError):
            cells = None
        if not isinstance(cells, dict):
            raise InputError(f"{path}:{number}: is no JSON object")
        yield Row(f"{path}:{number}", {key: value for key, value in cells.items() if _is_cell(value)})


def _is_cell(value: object) -> bool:
    return isinstance(value, int | float | str) and not isinstance(value, bool)


def _read_parquet(path: Path) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(pa.BufferReader(read_bytes(path, MAX_TABLE_BYTES)))
        rows = table.to_pylist()
    except (pa.ArrowException, ValueError, OSError) as error:
        raise InputError(f"{path}: is damaged: {one_line(str(error), 200)}") from None
    for number, cells in enumerate(rows, 1):
        yield Row(f"{path}, row {number}", {key: value for key, value in cells.items() if _is_cell(value)})


def _read_events(path: Path) -> Iterator[Row]:
    from .tensorboard import read_scalars

    try:
        for step, tag, value in read_scalars(read_bytes(path, MAX_TABLE_BYTES)):
            yield Row(f"{path}, step {step}", {"run": path.parent.name, "step": step, tag: value})
    except ValueError as error:
        raise InputError(f"{path}: is damaged: {error}") from None


READERS: Final[Mapping[str, Callable[[Path], Iterator[Row]]]] = {
    ".csv": _read_csv, ".parquet": _read_parquet, ".jsonl": _read_json_lines, EVENTS: _read_events,
}  # fmt: skip


def _read_folder(folder: Path) -> list[Row]:
    """Rows of a result folder, of a record of ``attach``, or of all event files below a folder."""
    from ...records.folder import SUMMARY_FILE, is_unfinished

    if (folder / SUMMARY_FILE).exists() or is_unfinished(folder):
        return _read_results(folder)
    if (folder / WRITTEN).is_file():
        return read_rows(folder / WRITTEN)
    files = sorted(path for path in folder.rglob(f"*{EVENTS}*") if path.is_file())
    if not files:
        raise InputError(f"{folder}: holds no results of paceline, no {WRITTEN} and no event files")
    return [row for path in files for row in read_rows(path)]


def _read_results(folder: Path) -> list[Row]:
    from ...records.folder import SCENARIO_FILE, read_results
    from ...records.formats.parquet import metric_names

    results = read_results(folder)
    under = conditions_of(yaml_file.parse(results.scenario, str(folder / SCENARIO_FILE)).value)
    frame = results.metrics
    if "measured" in set(frame["source"]):  # a validation has both
        frame = frame[frame["source"] == "measured"]
    rows: dict[tuple[str, int, float], Row] = {}
    for number, each in enumerate(frame.to_dict("records"), 1):
        # Workers may be apart when they are scored; kept models may be older than that.
        vector = each.get(STEP_VECTOR, ())
        mean = math.fsum(vector) / len(vector) if len(vector) else -1.0
        step = mean if math.floor(mean) == each["step"] else float(each["step"])
        names = (name for name in metric_names(frame) if name == "train_loss" or not math.isnan(each[name]))
        cells = {"scheme": each["label"], "seed": each["seed"], "step": step, **{n: each[n] for n in names}}
        key = each["label"], each["seed"], step
        rows.setdefault(key, Row(f"{folder}, row {number}", cells, under.get(each["label"], {})))
    return list(rows.values())
