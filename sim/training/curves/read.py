"""Curves from users' files: a reader for each format makes a table, and one function makes curves of it.

A table has a row per point, numbered for messages, and columns ``scheme`` or ``run``, ``seed``, ``step``,
``examples`` or ``tokens``, scores, and conditions. A score that is not finite is inf, a missing one is NaN.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from ...config import yaml_file
from ...config.problems import one_line
from ...config.tables import MAX_TABLE_BYTES, read_table
from ...config.yaml_file import read_bytes, read_text
from ...errors import InputError, did_you_mean, quote
from ...records.folder import SCENARIO_FILE, SUMMARY_FILE, is_unfinished, read_results
from ...records.formats.parquet import metric_names
from ...records.formats.tables import STEP_VECTOR
from ...records.verdict import Value
from .conditions import conditions_of
from .tensorboard import read_scalars

AXES: Final = ("step", "_step", "Step", "examples", "tokens")
"""Columns of steps, or of all workers' examples or tokens; the first that there is counts."""
_CONDITIONS: Final = ("workers", "batch_size", "period", "schedule", "horizon")
_NO_SCORES: Final = frozenset({*AXES, *_CONDITIONS, "scheme", "run", "seed"})
EVENTS: Final = "tfevents"
"""Part of the name of every TensorBoard event file."""
_SPREAD: Final = ("__MIN", "__MAX")
"""Ends of the columns that a W&B export adds to those of a metric."""


def read_curves(
    path: Path,
    scores: Sequence[str],
    conditions: Mapping[str, Value],
    run: str | None = None,
    scheme: str | None = None,
    seed: int | None = None,
    tokens_per_example: int | None = None,
) -> list[dict[str, Any]]:
    """Fields of each ``Curve`` in a file or folder, given the other fields of its ``CurveFile``.

    ``InputError`` names the first row or column that does not fit.
    """
    of_results = (path / SUMMARY_FILE).exists() or is_unfinished(path)
    table, under = _read_results(path) if of_results else (_read_table(path), {})
    if run is not None:
        runs = list(map(str, table.get("run", ())))
        table = table[[each == run for each in runs]] if runs else table[:0]
        if table.empty:
            raise InputError(f"{path}: has no run {quote(run)}; {did_you_mean(run, runs)}")
    names = _score_names(path, table, scores)
    table = table.assign(**{name: _numbers(path, table, name) for name in names})
    table = table.dropna(how="all", subset=names)
    given = {"scheme": scheme, "seed": 0 if seed is None and "seed" not in table else seed}
    table = table.assign(**{name: value for name, value in given.items() if value is not None})
    label = "scheme" if "scheme" in table else "run"
    if label not in table or table[label].isna().any():
        raise InputError(f"{path}: names no scheme; add a column 'scheme', or 'scheme' beside the file")
    table["seed"] = _numbers(path, table, "seed", whole=True)
    curves = []
    for _, rows in table.groupby([label, "seed"], sort=False):
        name, number = str(rows[label].iloc[0]), int(rows["seed"].iloc[0])
        known = _conditions(path, rows, {**conditions, **under.get(name, {})})
        points = rows[names].groupby(_steps(path, rows, known, tokens_per_example))
        twice = points.nunique().gt(1).any(axis=1)
        if twice.any() and not of_results:  # whose instants of one step may be apart
            text = f"{path}: {quote(name)} has two values at step {twice.idxmax():g}"
            raise InputError(f"{text}; give each seed its own, or name other 'scores'")
        columns = {
            score: [None if value != value else value for value in column]
            for score, column in points.first().items()
            if column.notna().any()
        }
        steps = points.first().index.tolist()
        curves.append({"scheme": name, "seed": number, "under": known, "steps": steps, "scores": columns})
    return curves


def _score_names(path: Path, table: pd.DataFrame, scores: Sequence[str]) -> list[str]:
    columns = list(map(str, table.columns))
    for name in scores:
        if name not in columns:
            raise InputError(f"{path}: has no column {quote(name)}; {did_you_mean(name, columns)}")
    open_ = scores or [name for name in columns if name not in _NO_SCORES and not name.startswith("_")]
    names = [name for name in open_ if pd.to_numeric(table[name], errors="coerce").notna().any()]
    if not names:
        raise InputError(f"{path}: has no scores in its columns {', '.join(columns)}")
    return names


def _numbers(
    path: Path, table: pd.DataFrame, name: str, least: float = -math.inf, whole: bool = False
) -> pd.Series[float]:
    numbers = pd.to_numeric(table[name], errors="coerce").astype(float)
    wrong = (numbers.isna() & table[name].notna()) | (numbers < least) | (whole & (numbers % 1 != 0))
    if wrong.any():
        text = f"{name} cannot be {quote(table[name][wrong].iloc[0])}"
        raise InputError(f"{path}:{wrong.idxmax()}: {text}; write a number")
    return numbers


def _conditions(path: Path, rows: pd.DataFrame, known: Mapping[str, Value]) -> dict[str, Value]:
    under = dict(known)
    for name in (name for name in _CONDITIONS if name in rows):
        for value in dict.fromkeys(rows[name].dropna()):
            number = pd.to_numeric(value, errors="coerce")
            value = value if number != number else int(number) if number % 1 == 0 else float(number)
            if under.setdefault(name, value) != value:
                raise InputError(f"{path}: {name} is both {under[name]} and {value} in one curve; take one")
    for name in ("workers", "batch_size"):
        number = under.get(name)
        if not isinstance(number, int | float) or number < 1:
            text = f"does not say its {name}; add a column, or 'conditions: {{{name}: ...}}' beside the file"
            raise InputError(f"{path}: {text}")
    return under


def _steps(
    path: Path, rows: pd.DataFrame, under: Mapping[str, Value], tokens_per_example: int | None
) -> pd.Series[float]:
    """Steps of a worker at each row, the mean over workers."""
    axis = next((name for name in AXES if name in rows and rows[name].notna().any()), None)
    if axis is None:
        raise InputError(f"{path}: has no axis; add a column step, examples or tokens")
    if axis == "tokens" and tokens_per_example is None:
        raise InputError(f"{path}: has tokens alone; add 'tokens_per_example' beside the file")
    steps = _numbers(path, rows, axis, 0.0)
    if not steps.map(math.isfinite).all():
        raise InputError(f"{path}:{steps.map(math.isfinite).idxmin()}: has no {axis}; write a number")
    if axis in ("examples", "tokens"):
        steps /= float(under["workers"]) * float(under["batch_size"])
    return steps / (tokens_per_example or 1) if axis == "tokens" else steps


def _read_table(path: Path) -> pd.DataFrame:
    if path.is_dir():
        files = sorted(each for each in path.rglob("*") if each.is_file() and _reader(each) is not None)
        if not files:
            raise InputError(f"{path}: is neither a result folder nor one with curves")
        return pd.concat([_read_table(each) for each in files])
    read = _reader(path)
    if read is None:
        raise InputError(f"{path}: is of no known format; {did_you_mean(path.suffix, _READERS)}")
    table = read(path)
    if table.empty:
        raise InputError(f"{path}: holds no rows")
    return table.assign(run=path.parent.name) if EVENTS in path.name else table


def _read_csv(path: Path) -> pd.DataFrame:
    table = read_table(path)
    names, lines = table.names, [line for line, _ in table.rows]
    cells = [[_finite(cell) if cell else None for cell in cells] for _, cells in table.rows]
    frame = pd.DataFrame(cells, columns=list(names), index=lines, dtype=object)
    of_runs = [name.rpartition(" - ") for name in names if not name.endswith(_SPREAD)]
    if not any(run for run, _, _ in of_runs):
        return frame
    axes = [name for name in names if " - " not in name]  # a W&B export: runs stand beside each other
    runs: dict[str, dict[str, str]] = {}
    for run, between, metric in of_runs:
        if between:
            runs.setdefault(run, {})[run + between + metric] = metric
    parts = (frame[[*axes, *each]].rename(columns=each).assign(run=run) for run, each in runs.items())
    return pd.concat(list(parts))


def _finite(cell: str) -> str | float:
    return math.inf if cell.lower() in ("nan", "inf", "-inf", "infinity") else cell


def _read_json_lines(path: Path) -> pd.DataFrame:
    rows: dict[int, Any] = {}
    for number, line in enumerate(read_text(path, MAX_TABLE_BYTES).splitlines(), 1):
        try:
            rows[number] = json.loads(line, parse_constant=lambda _: math.inf) if line.strip() else {}
        except (ValueError, RecursionError):
            rows[number] = None
        if not isinstance(rows[number], dict):
            raise InputError(f"{path}:{number}: is no JSON object")
    return _as_table(rows.values(), rows)


def _read_parquet(path: Path) -> pd.DataFrame:
    try:
        rows = pq.read_table(pa.BufferReader(read_bytes(path, MAX_TABLE_BYTES))).to_pylist()
    except (pa.ArrowException, ValueError, OSError) as error:
        raise InputError(f"{path}: is damaged: {one_line(str(error), 200)}") from None
    return _as_table(
        ({key: math.inf if v != v else v for key, v in row.items()} for row in rows), range(1, len(rows) + 1)
    )


def _read_events(path: Path) -> pd.DataFrame:
    try:
        scalars = list(read_scalars(read_bytes(path, MAX_TABLE_BYTES)))
    except ValueError as error:
        raise InputError(f"{path}: is damaged: {error}") from None
    rows = ({"step": step, tag: value if value == value else math.inf} for step, tag, value in scalars)
    return _as_table(rows, range(1, len(scalars) + 1))


def _as_table(rows: Iterable[Mapping[str, Any]], numbers: Iterable[int]) -> pd.DataFrame:
    return pd.DataFrame(list(rows), index=list(numbers), dtype=object)


_READERS: Final[Mapping[str, Callable[[Path], pd.DataFrame]]] = {
    ".csv": _read_csv, ".parquet": _read_parquet, ".jsonl": _read_json_lines, EVENTS: _read_events,
}  # fmt: skip


def _reader(path: Path) -> Callable[[Path], pd.DataFrame] | None:
    return _READERS.get(EVENTS if EVENTS in path.name else path.suffix)


def _read_results(folder: Path) -> tuple[pd.DataFrame, dict[str, dict[str, Value]]]:
    results = read_results(folder)
    under = conditions_of(yaml_file.parse(results.scenario, str(folder / SCENARIO_FILE)).value)
    table = results.metrics
    if "measured" in set(table["source"]):  # a validation has both
        table = table[table["source"] == "measured"]
    # Workers may be apart when they are scored; models that are kept for it may be older than that.
    means = [sum(steps) / len(steps) if len(steps) else -1.0 for steps in table.get(STEP_VECTOR, ())]
    own = [m if math.floor(m) == step else step for m, step in zip(means, table["step"], strict=False)]
    scores = table[metric_names(table)].assign(train_loss=lambda known: known["train_loss"].fillna(math.inf))
    return scores.assign(scheme=table["label"].astype(str), seed=table["seed"], step=own), under
