"""Measured curves as a scenario writes them: files, which are read once, and the curves in them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Final, Self

from pydantic import BeforeValidator, Field, PlainSerializer, ValidationInfo, WithJsonSchema, model_validator
from pydantic.json_schema import JsonSchemaValue

from ...config.limits import MAX_BATCH, MAX_LABEL, MAX_SEED
from ...config.problems import mistake, place_errors, unknown_key
from ...config.settings import Settings, read_beside
from ...errors import quote
from ...records.verdict import Value

MAX_NUMBERS: Final = 1_000_000
"""Steps and scores of all curves of a scenario."""


def _unpack(value: object) -> object:
    words = value.split() if isinstance(value, str) else None
    return value if words is None else tuple(None if word == "-" else float(word) for word in words)


def _pack(values: Sequence[float | None]) -> str:
    return " ".join("-" if value is None else f"{value!r}".removesuffix(".0") for value in values)


Column = Annotated[
    tuple[Annotated[float, Field(allow_inf_nan=True)] | None, ...],
    BeforeValidator(_unpack),
    PlainSerializer(_pack, return_type=str),
    WithJsonSchema({"type": "string", "examples": ["0 100 200"]}),
]
"""Numbers, written as the words of one text; ``-`` where there is none."""


class CurveFile(Settings):
    """A file of curves, and what it does not say itself."""

    file: str = Field(
        min_length=1,
        description="CSV, W&B export, Parquet, JSON lines, TensorBoard event file or a folder of these, or a "
        "result folder; relative to the scenario's folder",
    )
    run: str | None = Field(default=None, description="name of the run to take (default: all)")
    scheme: Annotated[str, Field(max_length=MAX_LABEL)] | None = Field(
        default=None, description="label of the scheme (default: column `scheme`, else the run's name)"
    )
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] | None = Field(
        default=None, description="seed of the run (default: column `seed`, else 0)"
    )
    scores: tuple[str, ...] = Field(default=(), description="columns of scores (default: all with numbers)")
    tokens_per_example: Annotated[int, Field(ge=1, le=MAX_BATCH)] | None = Field(
        default=None, description="for curves against tokens: tokens of one example"
    )
    conditions: dict[str, Value] = Field(
        default={},
        description="what was measured: `workers`, `batch_size`, options of the scheme such as `period`, "
        "`schedule` of the learning rate and its `horizon` in steps (default: columns of these names)",
    )


class Curve(Settings):
    """Scores of one run against a worker's steps; inf where a score was not finite."""

    scheme: str = Field(description="label")
    seed: int = Field(description="seed of the run")
    under: dict[str, Value] = Field(description="conditions")
    steps: Column = Field(description="steps of a worker, the mean over workers, ascending")
    scores: dict[str, Column] = Field(description="a score for each step, `-` where there is none")

    def known(self, metric: str) -> dict[float, float]:
        """Step -> score of ``metric``, in order, where it is known."""
        pairs = zip(self.steps, self.scores.get(metric, ()), strict=False)
        return {step: score for step, score in pairs if step is not None and score is not None}


class Curves(Settings):
    """Measured curves: nothing is trained, scores are looked up at the steps of the clock."""

    other_forms: ClassVar[tuple[JsonSchemaValue, ...]] = (
        {"type": "string"}, {"type": "object", "required": ["file"]}, {"type": "array"},
    )  # fmt: skip

    files: tuple[CurveFile, ...] = Field(min_length=1, description="files of curves")
    runs: tuple[Curve, ...] = Field(default=(), description="written by Paceline: the curves")

    @model_validator(mode="before")
    @classmethod
    def _list(cls, data: Any) -> Any:
        """Accept a file's name, one file, or a list of them."""
        if isinstance(data, dict) and "files" in data:
            return data
        files = data if isinstance(data, tuple | list) else (data,)
        for key in (key for file in files if isinstance(file, dict) for key in file):
            if key not in CurveFile.model_fields:
                raise mistake(unknown_key(key, CurveFile.model_fields), key)
        return {"files": tuple({"file": each} if isinstance(each, str) else each for each in files)}

    @model_validator(mode="after")
    def _read(self, info: ValidationInfo) -> Self:
        if self.runs:
            return self
        from .read import read_curves  # with pandas

        runs: dict[tuple[str, int], Curve] = {}
        for number, file in enumerate(self.files):
            read = partial(read_curves, **file.model_dump(exclude={"file"}))
            with place_errors("files", number):
                for each in read_beside(info, file.file, read):
                    run = Curve.model_validate(each)
                    if runs.setdefault((run.scheme, run.seed), run) is not run:
                        raise mistake(f"two curves of {quote(run.scheme)} have seed {run.seed}")
        if sum(len(run.steps) * (1 + len(run.scores)) for run in runs.values()) > MAX_NUMBERS:
            raise mistake(f"more than {MAX_NUMBERS:,} numbers; name 'scores', or keep fewer rows")
        return self.model_copy(update={"runs": tuple(runs.values())})

    def __hash__(self) -> int:
        return hash(tuple((run.scheme, run.seed, run.steps) for run in self.runs))
