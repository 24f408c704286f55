"""The two tables of a result folder: their files, and the columns that others than their readers know."""

from __future__ import annotations

from typing import Final

METRICS_FILE: Final = "metrics.parquet"
EVENTS_FILE: Final = "events.parquet"

RUN_KEY: Final = ["label", "seed", "source"]
"""Columns that tell the runs of a folder apart."""
STEP_VECTOR: Final = "steps"
"""The column of step vectors; not in a folder that was written before they were recorded."""

MAX_FILE_BYTES: Final = 4 * 2**30
"""A longer file of results is not read."""
