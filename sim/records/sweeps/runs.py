"""All runs of a sweep in one table: a row for each setting, scheme and seed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from ...config.units import format_plain, read_numbers
from ..formats.parquet import WORDS
from ..rows import RunRow, Shares
from ..run import SUMS
from ..summary import Summary

RUNS_FILE: Final = "runs.parquet"

_COLUMNS: Final = {
    "label": WORDS, "scheme": WORDS, "seed": pa.int64(), "status": WORDS, "reached_target": pa.bool_(),
    "time_to_target_s": pa.float64(), "steps_to_target": pa.int64(), "step_s": pa.float64(),
    "wall_clock_s": pa.float64(), "iterations": pa.float64(),
    **dict.fromkeys(SUMS, pa.int64()), **{f"{part}_s": pa.float64() for part in Shares.__annotations__},
}  # fmt: skip


def tabulate_runs(
    folders: Sequence[str], settings: Sequence[Mapping[str, Any]], summaries: Sequence[Summary]
) -> pa.Table:
    """Tabulate each run beside the folder of its setting and the values set; docs/records.md has the columns.

    Numbers and quantities of one kind are in SI; other values are text, or JSON where they are neither.
    """
    rows = [(number, run) for number, summary in enumerate(summaries) for run in summary["runs"]]
    columns = {"setting": pa.array([folders[number] for number, _ in rows], pa.string())}
    for key in settings[0]:
        values = _plain([setting[key] for setting in settings])
        name = key if key not in _COLUMNS else f"set.{key}"
        columns[name] = pa.array([values[number] for number, _ in rows])
    cells = [dict(_cells(run)) for _, run in rows]
    metrics = dict.fromkeys(name for each in cells for name in each if name not in _COLUMNS)
    for name in (*_COLUMNS, *metrics):
        columns[name] = pa.array([each.get(name) for each in cells], _COLUMNS.get(name, pa.float64()))
    return pa.table(columns)


def _plain(values: Sequence[Any]) -> list[float] | list[int] | list[str]:
    numbers = read_numbers(values)
    if numbers is None:
        return [value if isinstance(value, str) else json.dumps(value) for value in values]
    if numbers[1] is format_plain and all(isinstance(value, int) for value in values):
        return list(values)
    return numbers[0]


def _cells(run: RunRow) -> Iterator[tuple[str, Any]]:
    yield from ((name, value) for name, value in run.items() if name in _COLUMNS)
    yield from ((f"{name}_s", value) for name, value in {"idle": 0.0, "down": 0.0, **run["time_s"]}.items())
    yield from ((f"final.{name}", value) for name, value in run["final"].items())
