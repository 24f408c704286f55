"""Tables of a result folder (evaluations, operations) as Parquet files and data frames.

The same runs give the same bytes. Files are checked before use: their size, columns and types, no empty
cells, no number that is not finite.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ...config.problems import one_line
from ...config.yaml_file import read_bytes
from ...errors import InputError, quote, shorten
from ..run import Event, Run
from .tables import MAX_FILE_BYTES, STEP_VECTOR

if TYPE_CHECKING:
    import pandas as pd

MAX_TABLE_ROWS: Final = 100_000_000
"""Rows of a table that is still read."""
MAX_TABLE_COLUMNS: Final = 1_000
"""Columns of a table that is still read, and letters of a column's name."""
MOST_PACKED: Final = 200
"""Bytes of values per byte of a file: times differ from row to row, so no table of ours has as many."""
_SMALL_BYTES: Final = 2**29
"""Smaller tables are read however they are packed."""
_VALUE_BYTES: Final = 8

_WORDS: Final = pa.dictionary(pa.int32(), pa.string())


def _schema(**columns: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in columns.items()])


_METRICS_SCHEMA: Final = _schema(
    label=_WORDS, scheme=_WORDS, seed=pa.int64(), source=_WORDS,
    step=pa.int64(), time_s=pa.float64(), bytes_sent=pa.int64(),
)  # fmt: skip
"""Followed by one float64 column per metric, and ``steps``, the step vector."""

_EVENTS_SCHEMA: Final = _schema(
    label=_WORDS, seed=pa.int64(), source=_WORDS,
    worker=pa.int32(), task=pa.int16(), handle=pa.int32(), step=pa.int32(), operation=_WORDS,
    start_s=pa.float64(), end_s=pa.float64(), peer_s=pa.float64(), bytes=pa.int64(), peer=pa.int32(),
)  # fmt: skip


def metrics_frame(runs: Sequence[Run]) -> pd.DataFrame:
    """``Results.metrics`` of these runs."""
    return _frame(_metrics_tables(runs))


def events_frame(runs: Sequence[Run]) -> pd.DataFrame:
    """``Results.events`` of these runs."""
    return _frame(_events_tables(runs))


def _frame(tables: tuple[pa.Schema, Iterable[pa.Table]]) -> pd.DataFrame:
    schema, parts = tables
    table = pa.concat_tables([schema.empty_table(), *parts]).unify_dictionaries()
    frame: pd.DataFrame = table.to_pandas()
    return frame


def write_metrics(path: Path, runs: Sequence[Run]) -> None:
    """Write one row per evaluation of these runs."""
    _write_parquet(path, _metrics_tables(runs))


def write_events(path: Path, runs: Sequence[Run]) -> None:
    """Write one row per operation of these runs."""
    _write_parquet(path, _events_tables(runs))


def write_columns(path: Path, columns: Mapping[str, Sequence[Any]]) -> None:
    """Write a table of evaluations; ``InputError`` for missing, uneven or wrongly typed columns."""
    schema = _METRICS_SCHEMA
    missing = [name for name in schema.names if name not in columns]
    if missing:
        raise InputError(f"{path} has no column {missing[0]}")
    for name in columns:
        if name not in schema.names:
            schema = schema.append(pa.field(name, pa.float64()))
    for field in schema:
        strangers = [cell for cell in columns[field.name] if not _fits(cell, field.type)]
        if strangers:
            raise InputError(f"{path} is damaged: {field.name} has a cell {quote(str(strangers[0]))}")
    try:
        table = _table([list(columns[name]) for name in schema.names], schema)
        _write_parquet(path, (schema, [table]))
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise InputError(f"{path} is damaged: {one_line(str(error), 200)}") from error


def _fits(cell: object, kind: pa.DataType) -> bool:
    if pa.types.is_integer(kind):  # Arrow would take a truth value, or truncate a float
        return type(cell) is int
    return not pa.types.is_floating(kind) or cell is None or type(cell) in (int, float)


def read_metrics(path: Path) -> pd.DataFrame:
    """Read a file of ``write_metrics``; ``InputError`` if damaged, of another kind or too large."""
    return _read_parquet(path, _METRICS_SCHEMA)


def read_events(path: Path) -> pd.DataFrame:
    """Read a file of ``write_events``; ``InputError`` if damaged, of another kind or too large."""
    return _read_parquet(path, _EVENTS_SCHEMA)


def metric_names(metrics: pd.DataFrame) -> list[str]:
    """Columns of a frame of evaluations that hold scores."""
    return [name for name in metrics.columns if name not in {*_METRICS_SCHEMA.names, STEP_VECTOR}]


def events_of(rows: pd.DataFrame) -> tuple[Event, ...]:
    """Events of the rows of a frame of operations."""
    columns = [rows[name].astype(object).tolist() for name in Event.__dataclass_fields__]
    return tuple(Event(*values) for values in zip(*columns, strict=True))


def _read_parquet(path: Path, schema: pa.Schema) -> pd.DataFrame:
    try:
        if not path.is_file():  # a device may never end
            raise InputError(f"{path} is no file")
        _check_size(path)
        # In memory: pyarrow takes no path that is not UTF-8, and its threads may outlive a file of Python's.
        table = pq.read_table(pa.BufferReader(read_bytes(path, MAX_FILE_BYTES)))
    except pa.ArrowException as error:
        raise InputError(f"{path} is damaged: {one_line(str(error), 200)}") from error
    missing = [name for name in schema.names if name not in table.column_names]
    if missing:
        raise InputError(f"{path} has no column {missing[0]}")
    for field in schema:
        _check_column(path, table.column(field.name), field)
    for name in table.column_names:
        kind = table.column(name).type
        if schema is _METRICS_SCHEMA and name not in schema.names and not _is_metric(name, kind):
            raise InputError(f"{path} is damaged: the column {shorten(name)} has the type {kind}")
    frame: pd.DataFrame = table.to_pandas()
    return frame


def _check_size(path: Path) -> None:
    with path.open("rb") as file:
        head = pq.read_metadata(file)
        file_bytes = os.fstat(file.fileno()).st_size
    if head.num_rows > MAX_TABLE_ROWS:
        raise InputError(f"{path} has {head.num_rows} rows, which is too much")
    if head.num_columns > MAX_TABLE_COLUMNS:
        raise InputError(f"{path} has {head.num_columns} columns, which is too much")
    letters = max((len(head.schema.column(number).path) for number in range(head.num_columns)), default=0)
    if letters > MAX_TABLE_COLUMNS:
        raise InputError(f"{path} has a column whose name has {letters} letters, which is too much")
    groups = (head.row_group(number) for number in range(head.num_row_groups))
    values = sum(group.column(number).num_values for group in groups for number in range(head.num_columns))
    if values * _VALUE_BYTES > max(_SMALL_BYTES, MOST_PACKED * file_bytes):
        raise InputError(f"{path} unfolds from {file_bytes} bytes to {values} values: no table of ours does")


def _check_column(path: Path, column: pa.ChunkedArray, field: pa.Field) -> None:
    words = field.type == _WORDS
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if words:
        fits = pa.types.is_string(kind) or pa.types.is_large_string(kind) or len(column) == 0
    else:
        fits = kind == field.type or (pa.types.is_integer(kind) and pa.types.is_integer(field.type))
    if not fits and len(column):
        raise InputError(f"{path} is damaged: the column {field.name} has the type {column.type}")
    if column.null_count:
        raise InputError(f"{path} is damaged: the column {field.name} has empty cells")
    if pa.types.is_floating(kind) and not np.isfinite(column.to_numpy()).all():
        raise InputError(f"{path} is damaged: the column {field.name} holds a number that is not finite")


def _is_metric(name: str, kind: pa.DataType) -> bool:
    if name == STEP_VECTOR:
        return bool(pa.types.is_list(kind) and pa.types.is_integer(kind.value_type))
    return bool(pa.types.is_floating(kind) or pa.types.is_null(kind))


def _write_parquet(path: Path, tables: tuple[pa.Schema, Iterable[pa.Table]]) -> None:
    schema, parts = tables
    # Opened here: pyarrow takes no path that is not UTF-8.
    with path.open("wb") as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for part in parts:
            writer.write_table(part)


def _metrics_tables(runs: Sequence[Run]) -> tuple[pa.Schema, Iterable[pa.Table]]:
    names = list(dict.fromkeys(name for run in runs for e in run.evaluations for name in e.metrics))
    schema = _METRICS_SCHEMA
    for name in names:
        schema = schema.append(pa.field(name, pa.float64()))
    schema = schema.append(pa.field(STEP_VECTOR, pa.list_(pa.int32())))

    def part(run: Run) -> pa.Table:
        columns: list[list[Any]] = [
            *_repeated([run.label, run.scheme, run.seed, run.source], len(run.evaluations)),
            [e.step for e in run.evaluations],
            [e.time_s for e in run.evaluations],
            [e.bytes_sent for e in run.evaluations],
            *([e.metrics.get(name) for e in run.evaluations] for name in names),
            [e.steps for e in run.evaluations],
        ]
        return _table(columns, schema)

    return schema, (part(run) for run in runs if run.evaluations)


def _events_tables(runs: Sequence[Run]) -> tuple[pa.Schema, Iterable[pa.Table]]:
    fields = tuple(Event.__dataclass_fields__)

    def part(run: Run) -> pa.Table:
        columns = _repeated([run.label, run.seed, run.source], len(run.events))
        columns += [[getattr(event, name) for event in run.events] for name in fields]
        return _table(columns, _EVENTS_SCHEMA)

    return _EVENTS_SCHEMA, (part(run) for run in runs if run.events)


def _repeated(values: Sequence[Any], times: int) -> list[list[Any]]:
    return [[value] * times for value in values]


def _table(columns: Sequence[list[Any]], schema: pa.Schema) -> pa.Table:
    arrays = []
    for column, field in zip(columns, schema, strict=True):
        if field.type == _WORDS:
            arrays.append(pa.array(column, pa.string()).dictionary_encode().cast(_WORDS))
        else:
            arrays.append(pa.array(column, field.type))
    return pa.Table.from_arrays(arrays, schema=schema)
