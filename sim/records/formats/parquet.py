"""Tables of a result folder (evaluations, operations) as Parquet files and data frames.

The same runs give the same bytes. A table that is read is no larger than its file promises,
and has the columns and types of its schema, no empty cells, and no number that is not finite.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ...config.problems import one_line
from ...config.yaml_file import read_bytes
from ...errors import InputError
from ..run import Event, Run
from .result_files import MAX_FILE_BYTES, RUN_KEY, STEP_VECTOR, check_size

if TYPE_CHECKING:
    import pandas as pd

MOST_PACKED: Final = 200
"""Values per 8 bytes of a file: times differ from row to row, so no table of ours has as many."""
_SMALL: Final = 2**26
"""Values of a table that is read however it is packed."""

TableParts = tuple[pa.Schema, Iterable[pa.Table]]
"""A table in parts that share a schema."""
WORDS: Final = pa.dictionary(pa.int32(), pa.string())
"""Type of text that repeats."""


def _schema(**columns: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in columns.items()])


_METRICS_SCHEMA: Final = _schema(
    label=WORDS, scheme=WORDS, seed=pa.int64(), source=WORDS,
    step=pa.int64(), time_s=pa.float64(), bytes_sent=pa.int64(),
)  # fmt: skip
"""Followed by a column per metric, and the step vector: ``_with_metrics``."""

_EVENTS_SCHEMA: Final = _schema(
    label=WORDS, seed=pa.int64(), source=WORDS,
    worker=pa.int32(), task=pa.int16(), handle=pa.int32(), step=pa.int32(), operation=WORDS,
    start_s=pa.float64(), end_s=pa.float64(), peer_s=pa.float64(), bytes=pa.int64(), peer=pa.int32(),
)  # fmt: skip


def _with_metrics(names: Iterable[str]) -> pa.Schema:
    kinds = {name: pa.float64() if name != STEP_VECTOR else pa.list_(pa.int32()) for name in names}
    return pa.schema([*_METRICS_SCHEMA, *(pa.field(name, kind) for name, kind in kinds.items())])


def frame_of(tables: TableParts) -> pd.DataFrame:
    """A table as a data frame."""
    schema, parts = tables
    table = pa.concat_tables([schema.empty_table(), *parts]).unify_dictionaries()
    frame: pd.DataFrame = table.to_pandas()
    return frame


def write_columns(path: Path, columns: Mapping[str, Sequence[Any]]) -> None:
    """Write a table of evaluations; ``InputError`` for missing, uneven or wrongly typed columns."""
    with _naming(path):
        table = _conformed(path, pa.table(dict(columns)), _METRICS_SCHEMA)
    write_parquet(path, (table.schema, [table]))


def read_metrics(path: Path) -> pd.DataFrame:
    """Read a file of ``metrics_of``; ``InputError`` if damaged, of another kind or too large."""
    return _read_parquet(path, _METRICS_SCHEMA)


def read_events(path: Path) -> pd.DataFrame:
    """Read a file of ``operations_of``; ``InputError`` if damaged, of another kind or too large."""
    return _read_parquet(path, _EVENTS_SCHEMA)


def metric_names(metrics: pd.DataFrame) -> list[str]:
    """Columns of a frame of evaluations that hold scores."""
    return [name for name in metrics.columns if name not in {*_METRICS_SCHEMA.names, STEP_VECTOR}]


def events_of(rows: pd.DataFrame) -> tuple[Event, ...]:
    """Events of the rows of a frame of operations."""
    columns = [rows[name].astype(object).tolist() for name in Event.__dataclass_fields__]
    return tuple(Event(*values) for values in zip(*columns, strict=True))


def _read_parquet(path: Path, schema: pa.Schema) -> pd.DataFrame:
    if not path.is_file():  # a device may never end
        raise InputError(f"{path} is no file")
    with _naming(path):
        # In memory: pyarrow takes no path that is not UTF-8, and its threads may outlive a file of Python's.
        content = pa.BufferReader(read_bytes(path, MAX_FILE_BYTES))
        head, file_bytes = pq.read_metadata(content), content.size()
        check_size(path, head, file_bytes, int(max(_SMALL, MOST_PACKED * file_bytes / 8)))
        table = pq.read_table(content)
        frame: pd.DataFrame = _conformed(path, table, schema).to_pandas()
    return frame


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, TypeError, OverflowError) as error:
        if getattr(error, "errno", None):  # of the machine, not of the content
            raise
        raise InputError(f"{path} is damaged: {one_line(str(error), 200)}") from error


def _conformed(path: Path, table: pa.Table, schema: pa.Schema) -> pa.Table:
    """``table`` in the types of ``schema``; all other columns of a table of evaluations are metrics."""
    missing = [name for name in schema.names if name not in table.column_names]
    if missing:
        raise InputError(f"{path} has no column {missing[0]}")
    others = [name for name in table.column_names if name not in schema.names]
    whole = _with_metrics(others) if schema is _METRICS_SCHEMA else schema
    for field in whole:
        own = table.column(field.name).type
        if own != pa.null() and pa.types.is_primitive(own) != pa.types.is_primitive(field.type):
            raise InputError(f"{path} is damaged: {field.name} holds {own}, not {field.type}")
    table = table.select(whole.names).cast(whole)
    for field in schema:
        if pa.types.is_floating(field.type) and not np.isfinite(table.column(field.name)).all():
            raise InputError(f"{path} is damaged: {field.name} holds a number that is not finite")
    return table


def write_parquet(path: Path, tables: TableParts) -> None:
    """Write a table to a file."""
    schema, parts = tables
    # Opened here: pyarrow takes no path that is not UTF-8.
    with path.open("wb") as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for part in parts:
            writer.write_table(part)


def metrics_of(runs: Sequence[Run]) -> TableParts:
    """``Results.metrics`` of these runs: one row per evaluation."""
    names = list(dict.fromkeys(name for run in runs for e in run.evaluations for name in e.metrics))
    schema = _with_metrics([*names, STEP_VECTOR])

    def part(run: Run) -> pa.Table:
        columns = {
            **_repeated(run, _METRICS_SCHEMA.names[:4], len(run.evaluations)),
            **{name: [getattr(e, name) for e in run.evaluations] for name in _METRICS_SCHEMA.names[4:]},
            **{name: [e.metrics.get(name) for e in run.evaluations] for name in names},
            STEP_VECTOR: [e.steps for e in run.evaluations],
        }
        return pa.table(columns, schema=schema)

    return schema, (part(run) for run in runs if run.evaluations)


def operations_of(runs: Sequence[Run]) -> TableParts:
    """``Results.events`` of these runs: one row per operation."""

    def part(run: Run) -> pa.Table:
        own = {name: [getattr(event, name) for event in run.events] for name in Event.__dataclass_fields__}
        return pa.table(_repeated(run, RUN_KEY, len(run.events)) | own, schema=_EVENTS_SCHEMA)

    return _EVENTS_SCHEMA, (part(run) for run in runs if run.events)


def _repeated(run: Run, names: Sequence[str], times: int) -> dict[str, list[Any]]:
    """What is alike in all rows of a run."""
    return {name: [getattr(run, name)] * times for name in names}
