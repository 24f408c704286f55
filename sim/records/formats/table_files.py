"""Files of a result folder's two tables, and the columns known outside their readers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from ...errors import InputError

if TYPE_CHECKING:
    import pyarrow.parquet as pq

METRICS_FILE: Final = "metrics.parquet"
EVENTS_FILE: Final = "events.parquet"

RUN_KEY: Final = ["label", "seed", "source"]
"""Columns that identify a run within a folder."""
STEP_VECTOR: Final = "steps"
"""Column of step vectors; missing in a folder that was written before they were recorded."""

MAX_FILE_BYTES: Final = 4 * 2**30


def check_size(path: Path, head: pq.FileMetaData, file_bytes: int, most: int) -> None:
    """``InputError``: a table in Parquet unfolds to more values than ``most``."""
    groups = (head.row_group(number) for number in range(head.num_row_groups))
    values = sum(group.column(number).num_values for group in groups for number in range(head.num_columns))
    if values > most:
        text = f"unfolds from {file_bytes} bytes to {values} values; at most {most} are read"
        raise InputError(f"{path} {text}")
