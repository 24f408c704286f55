"""Whose layers a model has that is too large to be trained here, as the user writes it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Final

from pydantic import Field, GetJsonSchemaHandler, ValidationError, ValidationInfo, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema
from typing_extensions import override

from ...config.limits import MAX_LAYERS, MAX_NAME, MAX_PROFILE_FLOPS, MAX_PROFILE_PARAMETERS
from ...config.problems import explain, join_keys, mistake
from ...config.settings import Printable, Settings, read_beside
from ...config.tables import read_table
from ...errors import InputError, did_you_mean, quote
from .layer import Layer
from .presets import PRESETS

FLOAT_BYTES: Final = 4


class LayerRow(Settings):
    """One layer of a file."""

    name: Printable = Field(min_length=1, max_length=MAX_NAME)
    parameters: int = Field(ge=0, le=MAX_PROFILE_PARAMETERS)
    forward_flops: float = Field(ge=0, le=MAX_PROFILE_FLOPS)


class LayerProfile(Settings):
    """The layers of a model: those of a known one, or of a file with a row for each, in forward order."""

    preset: str = Field(default="", description="a known model")
    file: str = Field(
        default="",
        description="CSV with the columns layer, parameters and forward_flops (of one example); relative to "
        "the scenario's folder",
    )
    rows: tuple[LayerRow, ...] = Field(
        default=(), max_length=MAX_LAYERS, description="instead of them, or what was read from the file"
    )

    @model_validator(mode="before")
    @classmethod
    def _read(cls, data: Any, info: ValidationInfo) -> Any:
        """A name alone is a known model's, or a file's; a resolved scenario has the file's contents."""
        if isinstance(data, str):
            data = {"file": data} if Path(data).suffix == ".csv" else {"preset": data}
        if not isinstance(data, Mapping) or not isinstance(data.get("file"), str) or data.get("rows"):
            return data
        if not data["file"] and data.get("preset"):  # as a resolved scenario has it
            return data
        return {**data, "rows": read_beside(info, data["file"], _read_rows, "file")}

    @model_validator(mode="after")
    def _check(self) -> LayerProfile:
        if self.preset and self.preset not in PRESETS:
            raise mistake(
                f"there are no layers of the name {quote(self.preset)}; "
                f"{did_you_mean(self.preset, PRESETS)}, or a file.csv with your own"
            )
        if bool(self.preset) == bool(self.rows):
            raise ValueError("give the name of a known model, or a file with at least one layer")
        if not self.num_parameters:
            raise mistake("no layer has a parameter", "rows")
        return self

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """In the order of a forward pass."""
        if self.preset:
            return _preset(self.preset)
        return tuple(Layer(row.name, row.parameters, row.forward_flops, 0, 0) for row in self.rows)

    @property
    def num_parameters(self) -> int:
        """Of all layers."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def flops(self) -> float:
        """Of a forward and a backward pass of one example."""
        return sum(layer.flops for layer in self.layers)

    @classmethod
    @override
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, read: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [read(schema), {"enum": list(PRESETS)}, {"type": "string", "pattern": r"\.csv$"}]}


@cache
def _preset(name: str) -> tuple[Layer, ...]:
    return PRESETS[name]()


def _read_rows(path: Path) -> list[dict[str, Any]]:
    table = read_table(path)
    name, parameters, flops = (table.find(each) for each in ("layer", "parameters", "forward_flops"))
    if len(table.rows) > MAX_LAYERS:
        raise InputError(f"{path}: has {len(table.rows)} layers; a model has at most {MAX_LAYERS}")
    rows: list[dict[str, Any]] = []
    for line, cells in table.rows:
        try:
            row = {
                "name": cells[name],
                "parameters": int(cells[parameters]),
                "forward_flops": float(cells[flops]),
            }
        except ValueError:
            raise InputError(
                f"{path}:{line}: parameters must be a whole number, and forward_flops a number"
            ) from None
        try:
            LayerRow.model_validate(row)
        except ValidationError as error:
            wrong = explain(error, LayerRow, row)[0]
            column = join_keys(wrong.at).replace("name", "layer")
            raise InputError(f"{path}:{line}: {column}: {wrong.message}") from None
        rows.append(row)
    if not any(row["parameters"] for row in rows):
        raise InputError(f"{path}: no layer has a parameter")
    return rows
