"""Measured curves in a scenario: files, what they were measured under, and the curves read from them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Self

from pydantic import (
    BeforeValidator,
    Field,
    PlainSerializer,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue

from ...config.limits import MAX_BATCH, MAX_LABEL, MAX_SEED
from ...config.problems import mistake, place_errors
from ...config.settings import Settings, read_beside
from ...errors import InputError, did_you_mean, quote
from ...records.verdict import Value
from .rows import Row, read_rows

AXES: Final[Mapping[str, tuple[str, ...]]] = {
    "step": ("step", "_step", "Step"), "examples": ("examples",), "tokens": ("tokens",),
}  # fmt: skip
"""Kinds of axes, by the names of their columns; the first that a row has counts."""
SCHEDULED: Final = ("schedule", "horizon")
"""Conditions about the run's length: the schedule of the learning rate, and the steps it is made for."""
_CONDITIONS: Final = ("workers", "batch_size", "period", *SCHEDULED)
"""Columns that are conditions, not scores."""
_NAMES: Final = ("scheme", "label", "run", "seed", *(name for names in AXES.values() for name in names))
MAX_VALUES: Final = 1_000_000
"""Numbers of all curves of a scenario."""


def _unpack(value: object) -> object:
    if not isinstance(value, str):
        return value
    return tuple(None if word == "-" else float(word) for word in value.split())


def _pack(values: Sequence[float | None]) -> str:
    return " ".join("-" if value is None else f"{value!r}".removesuffix(".0") for value in values)


Numbers = Annotated[
    tuple[Annotated[float, Field(allow_inf_nan=True)] | None, ...],
    BeforeValidator(_unpack),
    PlainSerializer(_pack, return_type=str),
    WithJsonSchema({"type": "string"}),
]
"""Numbers, written as words of one text; ``-`` where there is none."""


class CurveFile(Settings):
    """A file of curves, and what it does not say itself."""

    file: str = Field(
        min_length=1,
        description="CSV, W&B export, Parquet, JSON lines, TensorBoard event file or a folder of these, or a "
        "result folder; relative to the scenario's folder",
    )
    scheme: str | None = Field(
        default=None, max_length=MAX_LABEL,
        description="label of the scheme (default: columns `scheme` or `label`, else the run's name)",
    )  # fmt: skip
    seed: int | None = Field(
        default=None, ge=0, le=MAX_SEED, description="seed of the run (default: column `seed`, else 0)"
    )
    run: str | None = Field(default=None, description="name of the run to take (default: all runs)")
    scores: tuple[str, ...] | None = Field(
        default=None, description="columns that are scores (default: all columns of numbers)"
    )
    tokens_per_example: int | None = Field(
        default=None, ge=1, le=MAX_BATCH, description="for curves against tokens: tokens of one example"
    )
    conditions: dict[str, Value] = Field(
        default={},
        description="what was measured: `workers`, `batch_size`, options of the scheme such as `period`, "
        "`schedule` of the learning rate, and `horizon`, its steps (default: columns of these names)",
    )


class Curve(Settings):
    """Scores of one measured run against its steps; nan where a score was not finite."""

    scheme: str
    seed: int
    under: dict[str, Value]
    steps: Numbers
    scores: dict[str, Numbers]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.steps or any(len(values) != len(self.steps) for values in self.scores.values()):
            raise ValueError("a curve needs as many scores as steps")
        return self

    def known(self, metric: str) -> dict[float, float]:
        """Step -> score of ``metric``, in order, where it is known."""
        pairs = zip(self.steps, self.scores.get(metric, ()), strict=False)
        return {step: score for step, score in pairs if step is not None and score is not None}


class Curves(Settings):
    """Measured curves of schemes: nothing is trained, scores are looked up at the steps of the clock."""

    other_forms: ClassVar[tuple[JsonSchemaValue, ...]] = (
        {"type": "string"}, {"type": "object", "required": ["file"]}, {"type": "array"},
    )  # fmt: skip

    files: tuple[CurveFile, ...] = Field(min_length=1, description="files with the curves")
    runs: tuple[Curve, ...] = Field(default=(), description="written by Paceline: the curves")

    @model_validator(mode="before")
    @classmethod
    def _short(cls, data: Any) -> Any:
        match data:
            case str():
                return {"files": ({"file": data},)}
            case {"file": _}:
                return {"files": (data,)}
            case tuple() | list():
                return {"files": tuple({"file": each} if isinstance(each, str) else each for each in data)}
        return data

    @model_validator(mode="after")
    def _read(self, info: ValidationInfo) -> Self:
        if self.runs:
            return self
        runs = []
        for number, file in enumerate(self.files):
            with place_errors("files", number):
                runs += find_curves(read_beside(info, file.file, read_rows), file)
        known: dict[tuple[str, int], int] = {}
        for run in runs:
            if known.setdefault((run.scheme, run.seed), id(run)) != id(run):
                raise mistake(f"two curves of {quote(run.scheme)} have seed {run.seed}; leave one out")
        if sum(len(run.steps) * (1 + len(run.scores)) for run in runs) > MAX_VALUES:
            raise mistake(f"more than {MAX_VALUES:,} numbers; keep fewer rows, or name the 'scores' to take")
        return self.model_copy(update={"runs": tuple(runs)})

    @property
    def source(self) -> str:
        """Name of the files in a sentence."""
        first, *others = (Path(each.file).name for each in self.files)
        return f"{first} and {len(others)} more" if others else first

    def of(self, scheme: str) -> dict[int, Curve]:
        """Seed -> curve of the scheme with this label."""
        return {run.seed: run for run in self.runs if run.scheme == scheme}


def find_curves(rows: Iterable[Row], file: CurveFile) -> list[Curve]:
    """Group rows into curves, by scheme and seed; ``InputError`` names the first row that does not fit."""
    rows = list(rows)
    if file.run is not None:
        runs = {str(row.cells.get("run")) for row in rows}
        rows = [row for row in rows if row.cells.get("run") == file.run]
        if not rows:
            raise InputError(f"{file.file}: has no run {quote(file.run)}; {did_you_mean(file.run, runs)}")
    names = _score_names(rows, file)
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        if any(row.cells.get(name) is not None for name in names):
            groups.setdefault((_scheme(row, file), _seed(row, file)), []).append(row)
    return [_curve(key, group, names, file) for key, group in groups.items()]


def _score_names(rows: Sequence[Row], file: CurveFile) -> list[str]:
    columns = dict.fromkeys(name for row in rows for name in row.cells)
    for name in file.scores or ():
        if name not in columns:
            raise InputError(f"{file.file}: has no column {quote(name)}; {did_you_mean(name, columns)}")
    others = {*_NAMES, *_CONDITIONS}
    open_ = file.scores or [name for name in columns if name not in others and not name.startswith("_")]
    numbers = {name for row in rows for name, value in row.cells.items() if isinstance(value, int | float)}
    if not numbers.intersection(open_):
        raise InputError(f"{file.file}: has no column of scores beside {', '.join(columns)}")
    return [name for name in open_ if name in numbers]


def _scheme(row: Row, file: CurveFile) -> str:
    label = file.scheme or next(filter(None, map(row.cells.get, ("scheme", "label", "run"))), None)
    if label is None:
        raise InputError(f"{row.where}: names no scheme; add a column 'scheme', or 'scheme' beside the file")
    return str(label)


def _seed(row: Row, file: CurveFile) -> int:
    seed = row.cells.get("seed", 0) if file.seed is None else file.seed
    if not isinstance(seed, int | float) or seed != seed // 1 or not 0 <= seed <= MAX_SEED:
        raise InputError(f"{row.where}: seed must be a whole number, not {quote(seed)}")
    return int(seed)


def _curve(key: tuple[str, int], rows: Sequence[Row], names: Sequence[str], file: CurveFile) -> Curve:
    under = _under(rows, file)
    points: dict[float, dict[str, float]] = {}
    for row in rows:
        point = points.setdefault(_step(row, under, file), {})
        for name in names:
            value = row.cells.get(name)
            if isinstance(value, str):
                raise InputError(f"{row.where}: {name} must be a number, not {quote(value)}")
            if value is not None and repr(point.setdefault(name, float(value))) != repr(float(value)):
                raise InputError(f"{row.where}: {name} has another value at this step already")
    steps = sorted(points)
    scores = {name: tuple(points[step].get(name) for step in steps) for name in names}
    there = {name: values for name, values in scores.items() if any(value is not None for value in values)}
    return Curve(scheme=key[0], seed=key[1], under=under, steps=tuple(steps), scores=there)


def _under(rows: Sequence[Row], file: CurveFile) -> dict[str, Value]:
    under: dict[str, Value] = dict(file.conditions)
    for row in rows:
        own = {name: value for name in _CONDITIONS if (value := row.cells.get(name)) is not None}
        for name, value in {**row.under, **own}.items():
            if under.setdefault(name, value) != value:
                raise InputError(
                    f"{row.where}: {name} is {value}, and {under[name]} elsewhere in this curve; take one"
                )
    for name in ("workers", "batch_size"):
        value = under.get(name)
        if value is None:
            text = f"{file.file}: does not say its {name}"
            raise InputError(f"{text}; add a column, or 'conditions: {{{name}: ...}}' beside the file")
        if not isinstance(value, int | float) or isinstance(value, bool) or value != value // 1 or value < 1:
            raise InputError(f"{file.file}: {name} must be a whole number, not {quote(value)}")
    return under


def _step(row: Row, under: Mapping[str, Value], file: CurveFile) -> float:
    """Steps of a worker at a row, the mean over workers."""
    kind, name = next(
        ((kind, name) for kind, names in AXES.items() for name in names if row.cells.get(name) is not None),
        ("", ""),
    )
    if not kind:
        raise InputError(f"{row.where}: has no step; a row needs step, examples or tokens")
    value, each = row.cells[name], 1.0
    if not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise InputError(f"{row.where}: {name} must be a number from 0, not {quote(value)}")
    if kind != "step":
        each = float(under["workers"]) * float(under["batch_size"])
    if kind == "tokens":
        if file.tokens_per_example is None:
            raise InputError(f"{row.where}: has tokens alone; add 'tokens_per_example' beside the file")
        each *= file.tokens_per_example
    return float(value) / each
