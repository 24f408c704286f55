"""Curves from users' files: a reader for each format makes rows, and one function makes curves of them.

A row is a line of the file and its cells by column: ``scheme`` or ``run``, ``seed``, ``step``, ``examples``
or ``tokens``, scores, and conditions. Numbers are floats, inf where not finite; other cells are text.

A TensorBoard event file is a TFRecord file: length (8 bytes), checksum (4), data, checksum (4). The data are
protocol buffers of ``tensorflow/core/util/event.proto``; a scalar is a ``simple_value`` or a ``tensor``.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import reduce
from pathlib import Path
from typing import Final

from ...config import yaml_file
from ...config.csv_tables import MAX_TABLE_BYTES, read_table
from ...config.files import distinct
from ...config.limits import MAX_SEED, MAX_STEPS
from ...config.problems import one_line
from ...config.yaml_file import read_bytes, read_text
from ...errors import InputError, did_you_mean, quote
from ...records.folder import SUMMARY_FILE, is_unfinished, read_results
from ...records.formats.result_files import check_size
from ...records.run import NO_METRICS
from ...records.verdict import Value
from .curve import Curve, CurveFile, conditions_of

Row = tuple[int, dict[str, float | str]]
Scored = dict[float, dict[str, float]]
Raw = Iterable[tuple[int, Mapping[str, object]]]

AXES: Final = ("step", "examples", "tokens", "_step", "Step")
"""Columns of steps, or of all workers' examples or tokens; the first that a row has counts. Last comes what
W&B counts itself, which may be its own calls."""
_CONDITIONS: Final = ("workers", "batch_size", "period", "schedule", "horizon")
_NO_SCORES: Final = frozenset({*AXES, *_CONDITIONS, "scheme", "run", "seed"})
_NUMBER: Final = re.compile(r"\s*[-+]?(([0-9]+\.?|[0-9]*\.[0-9]+)([eE][-+]?[0-9]+)?|(?i:inf(inity)?|nan))\s*")
EVENTS: Final = "tfevents"
"""Part of the name of every TensorBoard event file."""


def read_curves(path: Path, file: CurveFile) -> list[Curve]:
    """Read a file or folder; ``InputError`` names the first row or column that does not fit."""
    of_results = (path / SUMMARY_FILE).exists() or is_unfinished(path)
    rows, known = _read_results(path) if of_results else (list(_read_rows(path)), {})
    columns = {name for _, cells in rows for name in cells}
    numbers = {name for _, cells in rows for name, value in cells.items() if isinstance(value, float)}
    open_ = file.scores or (name for name in columns if name not in _NO_SCORES and not name.startswith("_"))
    if unknown := sorted({*file.scores} - columns):
        raise InputError(f"{path}: has no column {quote(unknown[0])}; {did_you_mean(unknown[0], columns)}")
    if not (names := numbers.intersection(open_)):
        shown = [f"{key} {quote(cell)}" for _, row in rows[:1] for key, cell in row.items() if key in columns]
        raise InputError(f"{path}: has no scores in numbers; its first row has {', '.join(shown)}")
    measured_runs: dict[tuple[str, float], tuple[dict[str, Value], Scored]] = {}
    for line, cells in rows:
        place = f"{path}:{line}"
        label = file.scheme or str(cells.get("scheme", cells.get("run", "")))
        if file.run not in (None, cells.get("run")) or not names & cells.keys():
            continue
        if not label:
            raise InputError(f"{place}: names no scheme; add a column 'scheme', or 'scheme' beside the file")
        seed = _number(place, {"seed": 0.0, **cells}, "seed", whole=True) if file.seed is None else file.seed
        start: Scored = {}
        given = {**file.conditions, **known.get(label, {})}
        under, points = measured_runs.setdefault((label, seed), (given, start))
        _take_conditions(place, cells, under)
        point = points.setdefault(_step(place, cells, under, file.tokens_per_example), {})
        for name in names & cells.keys():
            # Instants of one step may be apart in a result folder.
            if point.setdefault(name, _number(place, cells, name)) != cells[name] and not of_results:
                text = f"{place}: {name} has another value at this step already"
                raise InputError(f"{text}; give each seed its own, or name other 'scores'")
    if not measured_runs:
        runs = {str(cells.get("run")) for _, cells in rows}
        raise InputError(f"{path}: has no run {quote(file.run)}; {did_you_mean(str(file.run), runs)}")
    return [_curve(*key, *each) for key, each in measured_runs.items()]


def _curve(label: str, seed: float, under: dict[str, Value], points: Scored) -> Curve:
    steps = sorted(points)
    names = sorted({name for point in points.values() for name in point})
    scores = {name: tuple(points[step].get(name) for step in steps) for name in names}
    return Curve(scheme=label, seed=int(seed), under=under, steps=tuple(steps), scores=scores)


def _number(place: str, cells: Mapping[str, float | str], name: str, whole: bool = False) -> float:
    value = cells[name]
    if isinstance(value, str) or (whole and not 0 <= value == value // 1 <= MAX_SEED):
        other = "" if name in _NO_SCORES else ", or name other 'scores' beside the file"
        raise InputError(f"{place}: {name} cannot be {quote(value)}; write a number{other}")
    return value


def _take_conditions(place: str, cells: Mapping[str, float | str], under: dict[str, Value]) -> None:
    for name in _CONDITIONS:
        value = cells.get(name)
        value = int(value) if isinstance(value, float) and value % 1 == 0 else value
        if value is not None and under.setdefault(name, value) != value:
            raise InputError(f"{place}: {name} is {value}, and {under[name]} elsewhere in this curve")
    for name in ("workers", "batch_size", *({"horizon"} & under.keys())):
        value = under.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value < math.inf:
            missing = f"does not say its {name}" + f", only {', '.join(map(quote, under))}" * bool(under)
            text = f"{name} cannot be {quote(value)}" if name in under else missing
            raise InputError(f"{place}: {text}; add a column, or 'conditions: {{{name}: 4}}' beside the file")


def _step(
    place: str, cells: Mapping[str, float | str], under: Mapping[str, Value], tokens_per_example: int | None
) -> float:
    """Steps of a worker at a row, the mean over workers."""
    axis = next((name for name in AXES if name in cells and (name != "tokens" or tokens_per_example)), None)
    if axis is None and "tokens" in cells:
        raise InputError(f"{place}: has tokens alone; add 'tokens_per_example' beside the file")
    if axis is None:
        raise InputError(f"{place}: has no step; a row needs step, examples or tokens")
    value = steps = _number(place, cells, axis)
    if axis in ("examples", "tokens"):
        steps /= float(under["workers"]) * float(under["batch_size"])
        steps /= (tokens_per_example or 1) if axis == "tokens" else 1
    if not 0 <= steps <= MAX_STEPS:
        text = f"{value:g}" if math.isfinite(value) else "NaN or infinite"
        raise InputError(f"{place}: {axis} cannot be {text}; write a number from 0 to {MAX_STEPS:g} steps")
    return steps


def _read_rows(path: Path) -> Iterator[Row]:
    """Rows of a file, by the end of its name, or of all files below a folder."""
    paths = [path]
    if path.is_dir():
        paths = sorted(each for each in path.rglob("*") if each.is_file() and _reader(each))
    empty = True
    for each in paths:
        if (read := _reader(each)) is None:
            read_bytes(each, MAX_TABLE_BYTES)  # says so if there is none
            raise InputError(f"{each}: is of no known format; {did_you_mean(each.suffix, _READERS)}")
        for line, row in read(each):
            empty = False
            yield line, _cells(row)
    if empty:
        raise InputError(f"{path}: holds no curves; name a file of them, or a result folder")


def _cells(row: Mapping[str, object]) -> dict[str, float | str]:
    cells: dict[str, float | str] = {}
    for name, value in row.items():
        if isinstance(value, int | float | str) and value != "" and not isinstance(value, bool):
            cells[name] = text = str(value)
            if name not in ("scheme", "run") and _NUMBER.fullmatch(text):
                with suppress(OverflowError):
                    cells[name] = float(value) if math.isfinite(float(value)) else math.inf
    return cells


def _read_csv(path: Path) -> Raw:
    """Lines of a CSV file; a W&B export has each run in columns ``RUN - METRIC``."""
    table = read_table(path)
    units = (f" [{unit}]" * bool(unit) for unit in table.units)  # steps in thousands are no steps
    split = [(name + unit).rpartition(" - ") for name, unit in zip(table.names, units, strict=True)]
    runs = list(dict.fromkeys(run for run, _, _ in split if run)) or [""]
    for line, values in table.rows:
        cells = [(run, name, value) for (run, _, name), value in zip(split, values, strict=True)]
        for run in runs:
            if any(value for own, _, value in cells if own == run):
                row = {name: value for own, name, value in cells if own in ("", run)}
                yield line, row | ({"run": run} if run else {})


def _read_json_lines(path: Path) -> Raw:
    for line, text in enumerate(read_text(path, MAX_TABLE_BYTES).splitlines(), 1):
        try:
            row = json.loads(text, object_pairs_hook=distinct) if text.strip() else {}
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}:{line}: is no JSON object: {one_line(str(error), 200)}") from None
        if not isinstance(row, dict):
            raise InputError(f"{path}:{line}: is no JSON object")
        yield line, row


def _read_parquet(path: Path) -> Raw:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        content = pa.BufferReader(read_bytes(path, MAX_TABLE_BYTES))
        check_size(path, pq.read_metadata(content), content.size(), MAX_TABLE_BYTES // 8)
        return enumerate(pq.read_table(content).to_pylist(), 1)
    except (pa.ArrowException, ValueError, OSError) as error:
        raise InputError(f"{path}: is damaged: {one_line(str(error), 200)}") from None


def _read_events(path: Path) -> Raw:
    try:
        for step, tag, value in read_scalars(read_bytes(path, MAX_TABLE_BYTES)):
            yield step, {"step": step, tag: value, "run": path.parent.name}
    except ValueError as error:
        raise InputError(f"{path}: is damaged: {error}") from None


_READERS: Final[Mapping[str, Callable[[Path], Raw]]] = {
    ".csv": _read_csv, ".parquet": _read_parquet, ".jsonl": _read_json_lines, EVENTS: _read_events,
}  # fmt: skip


def _reader(path: Path) -> Callable[[Path], Raw] | None:
    return _READERS.get(EVENTS if EVENTS in path.name else path.suffix.lower())


def _read_results(folder: Path) -> tuple[list[Row], dict[str, dict[str, Value]]]:
    results = read_results(folder)
    rows: list[Row] = []
    measured = "measured" in set(results.metrics["source"])  # a validation has both
    for line, row in enumerate(results.metrics.to_dict("records"), 1):
        if row["source"] == "measured" or not measured:
            # Workers may be apart when they are scored; models that are kept for it may be older than that.
            steps = [int(step) for step in row.get("steps", ())]
            mean = sum(steps) / max(len(steps), 1)
            step = mean if math.floor(mean) == row["step"] else row["step"]
            names = (str(name) for name in row if name not in NO_METRICS)
            metrics = {name: row[name] for name in names if row[name] == row[name] or name == "train_loss"}
            rows.append(
                (line, _cells({"scheme": row["label"], "seed": row["seed"], "step": step, **metrics}))
            )
    try:
        return rows, conditions_of(yaml_file.parse(results.scenario, str(folder)).value)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise InputError(f"{folder}: its scenario is of an older version; make these results again") from None


Fields = list[tuple[int, int | bytes]]
_CRC: Final = [reduce(lambda c, _: c >> 1 ^ 0x82F63B78 * (c & 1), range(8), byte) for byte in range(256)]


def read_scalars(content: bytes) -> Iterator[tuple[int, str, float]]:
    """Step, tag and value of each scalar in an event file; ``ValueError`` for a damaged one."""
    at = 0
    while at < len(content):
        end = at + 12 + int.from_bytes(content[at : at + 8], "little")
        if len(content) < end + 4:
            raise ValueError(f"it ends inside the record at byte {at}")
        if int.from_bytes(content[end : end + 4], "little") != checksum(content[at + 12 : end]):
            raise ValueError(f"the record at byte {at} has another checksum")
        event = _fields(content[at + 12 : end])
        step = next((value for key, value in event if key == 2 and isinstance(value, int)), 0)
        for value in (value for key, summary in event if key == 5 for _, value in _fields(summary)):
            parts = dict(_fields(value))
            tag, tensor = parts.get(1, b""), dict(_fields(parts.get(8, b"")))
            # Field 4 of a tensor are the bytes of its values, 5 its floats, 6 its doubles; 1 is their type.
            doubles = tensor.get(1) == 2
            packed = parts.get(2, tensor.get(6 if doubles else 5, tensor.get(4)))
            form = "<d" if doubles else "<f"
            if isinstance(tag, bytes) and isinstance(packed, bytes) and len(packed) == struct.calcsize(form):
                yield step, tag.decode(errors="replace"), float(struct.unpack(form, packed)[0])
        at = end + 4


def checksum(data: bytes) -> int:
    """A TFRecord's checksum: CRC-32C (RFC 3720, B.4), rotated by 15 bits, plus a constant."""
    crc = reduce(lambda c, byte: c >> 8 ^ _CRC[c & 0xFF ^ byte], data, 0xFFFFFFFF) ^ 0xFFFFFFFF
    return (crc >> 15 | crc << 17) + 0xA282EAD8 & 0xFFFFFFFF


def _fields(data: int | bytes) -> Fields:
    """Number and raw value of each field of a message."""
    fields: Fields = []
    at = 0
    while isinstance(data, bytes) and at < len(data):
        key, at = _varint(data, at)
        size = {1: 8, 5: 4}.get(key & 7)
        if key & 7 in (0, 2):
            size, at = _varint(data, at)
        if size is None or (key & 7 and at + size > len(data)):
            raise ValueError("a record is no event")
        fields.append((key >> 3, data[at : at + size] if key & 7 else size))
        at += size if key & 7 else 0
    return fields


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place, byte in enumerate(data[at : at + 10]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, at + place + 1
    raise ValueError("a record is no event")
