"""The measured curves of a scenario, read from their files once: a resolved scenario holds them."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar, Final, Self

from pydantic import Field, ValidationInfo, model_validator
from pydantic.json_schema import JsonSchemaValue

from ...config.problems import mistake, place_errors, unknown_key
from ...config.settings import Settings, read_beside
from ...errors import quote
from .curve import Curve, CurveFile

MAX_NUMBERS: Final = 1_000_000
"""Steps and scores of all curves of a scenario."""


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
        from .read import read_curves

        runs: dict[tuple[str, int], Curve] = {}
        for number, file in enumerate(self.files):
            with place_errors("files", number):
                for run in read_beside(info, file.file, partial(read_curves, file=file)):
                    if runs.setdefault((run.scheme, run.seed), run) is not run:
                        raise mistake(f"two curves of {quote(run.scheme)} have seed {run.seed}")
        if sum(len(run.steps) * (1 + len(run.scores)) for run in runs.values()) > MAX_NUMBERS:
            raise mistake(f"more than {MAX_NUMBERS:,} numbers; name 'scores', or keep fewer rows")
        return self.model_copy(update={"runs": tuple(runs.values())})

    def __hash__(self) -> int:
        return hash(tuple((run.scheme, run.seed, run.steps) for run in self.runs))
