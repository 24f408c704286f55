"""Files of a result folder's two tables, and the columns known outside their readers."""

from __future__ import annotations

from typing import Final

METRICS_FILE: Final = "metrics.parquet"
EVENTS_FILE: Final = "events.parquet"

RUN_KEY: Final = ["label", "seed", "source"]
"""Columns that identify a run within a folder."""
STEP_VECTOR: Final = "steps"
"""Column of step vectors; missing in a folder that was written before they were recorded."""

MAX_FILE_BYTES: Final = 4 * 2**30
