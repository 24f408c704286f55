"""Layer profiles of models too large to be trained here, as written in a scenario."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, ClassVar, Final

from pydantic import Field, ValidationInfo, model_validator
from pydantic.json_schema import JsonSchemaValue

from ...config.csv_tables import Table, read_table
from ...config.limits import MAX_LAYERS, MAX_NAME, MAX_PROFILE_FLOPS, MAX_PROFILE_PARAMETERS
from ...config.problems import mistake
from ...config.settings import Printable, Settings, read_beside
from ...config.units import BoundedSeconds, parse_duration
from ...config.yaml_file import validate_document
from ...errors import InputError, did_you_mean, quote
from .layer import Layer
from .presets import PRESETS, TransformerShape, transformer

FLOAT_BYTES: Final = 4
"""Bytes of a parameter, a gradient and any other number that a worker holds or sends as it is."""

TIMES: Final = ("forward", "backward")
"""Columns of a file with timed layers."""


class LayerRow(Settings):
    """One layer of a file: its operations, or its times."""

    name: Printable = Field(min_length=1, max_length=MAX_NAME)
    parameters: int = Field(ge=0, le=MAX_PROFILE_PARAMETERS)
    forward_flops: float | None = Field(
        default=None, ge=0, le=MAX_PROFILE_FLOPS, description="of one example"
    )
    forward: BoundedSeconds | None = Field(
        default=None, description="instead of operations: time of a batch from this layer to the next"
    )
    backward: BoundedSeconds | None = Field(
        default=None, description="time from the next layer's gradient to this layer's"
    )

    @model_validator(mode="after")
    def _check(self) -> LayerRow:
        times = [self.forward, self.backward].count(None)
        if times == 1 or (self.forward_flops is None) == (times == 2):
            raise ValueError("give forward_flops, or forward and backward")
        return self

    @property
    def timed(self) -> bool:
        """Whether it has times instead of operations."""
        return self.forward is not None

    @property
    def layer(self) -> Layer:
        """The row as a ``Layer``."""
        forward = self.forward if self.forward is not None else self.forward_flops or 0.0
        return Layer(self.name, self.parameters, forward, 0, 0, backward_s=self.backward)


class LayerProfile(Settings):
    """Layers in forward order: of a known model, of a transformer's shape, or of a file."""

    other_forms: ClassVar[tuple[JsonSchemaValue, ...]] = (
        {"enum": list(PRESETS)}, {"type": "string", "pattern": r"\.csv$"},
    )  # fmt: skip

    preset: str = Field(default="", description="a known model")
    transformer: TransformerShape | None = Field(
        default=None, description="instead: a transformer of this shape"
    )
    file: str = Field(
        default="",
        description="CSV with columns layer, parameters and forward_flops (of one example), or forward and "
        "backward (times, from `paceline.profile_layers`); relative to the scenario's folder",
    )
    rows: tuple[LayerRow, ...] = Field(
        default=(), max_length=MAX_LAYERS, description="instead: the layers themselves"
    )
    recompute: bool = Field(
        default=False,
        description="compute each layer's forward pass again in the backward pass (activation "
        "checkpointing): a third more operations, and a backward pass of three quarters of a gradient's time",
    )

    @model_validator(mode="before")
    @classmethod
    def _read(cls, data: Any, info: ValidationInfo) -> Any:
        """Accept the name of a known model, or of a file; a resolved scenario has the file's contents."""
        if isinstance(data, str):
            data = {"file": data} if Path(data).suffix == ".csv" else {"preset": data}
        if not isinstance(data, Mapping) or not isinstance(data.get("file"), str) or data.get("rows"):
            return data
        if not data["file"] and (data.get("preset") or data.get("transformer")):  # a resolved scenario
            return data
        return {**data, "rows": read_beside(info, data["file"], _read_rows, "file")}

    @model_validator(mode="after")
    def _check(self) -> LayerProfile:
        if self.preset and self.preset not in PRESETS:
            raise mistake(
                f"there are no layers of the name {quote(self.preset)}, and it is no file.csv with your own; "
                f"{did_you_mean(self.preset, PRESETS)}"
            )
        if [bool(self.preset), bool(self.rows), self.transformer is not None].count(True) != 1:
            raise ValueError(
                "give the name of a known model, a transformer's shape, or a file with at least one layer"
            )
        if not self.num_parameters:
            raise mistake("no layer has a parameter", "rows")
        if len({row.timed for row in self.rows}) > 1:
            raise mistake("some layers have times, others operations; give all of them the same", "rows")
        if self.recompute and self.timed:
            raise mistake(
                "goes with operations; the times of these layers hold what was computed when they were "
                "measured",
                "recompute",
            )
        return self

    @property
    def timed(self) -> bool:
        """Whether layers have times instead of operations."""
        return any(row.timed for row in self.rows)

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """The layers in forward order."""
        if self.preset:
            layers = _preset(self.preset)
        elif self.transformer is not None:
            layers = transformer(self.transformer)
        else:
            layers = tuple(row.layer for row in self.rows)
        return tuple(replace(layer, recomputed=self.recompute) for layer in layers)

    @property
    def num_parameters(self) -> int:
        """Number of parameters of all layers."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def flops(self) -> float:
        """Operations of a forward and a backward pass of one example."""
        return sum(layer.flops for layer in self.layers)


@cache
def _preset(name: str) -> tuple[Layer, ...]:
    return PRESETS[name]()


def _read_rows(path: Path) -> list[dict[str, Any]]:
    table = read_table(path)
    name, _ = (table.find(each) for each in ("layer", "parameters"))
    costs = TIMES if TIMES[0] in table.names else ("forward_flops",)
    if costs is TIMES and "forward_flops" in table.names:
        raise InputError(f"{path}: has forward_flops and forward; leave one of them out")
    for cost in costs:
        table.find(cost)
    if len(table.rows) > MAX_LAYERS:
        raise InputError(f"{path}: has {len(table.rows)} layers; a model has at most {MAX_LAYERS}")
    rows: list[dict[str, Any]] = []
    for line, cells in table.rows:
        row = {"name": cells[name]}
        row |= {each: _cell(table, each, line, cells) for each in ("parameters", *costs)}
        validate_document(LayerRow, row, f"{path}:{line}: layer")
        rows.append(row)
    if not any(row["parameters"] for row in rows):
        raise InputError(f"{path}: no layer has a parameter")
    return rows


def _cell(table: Table, column: str, line: int, cells: tuple[str, ...]) -> Any:
    number, parse = table.find(column), parse_duration if column in TIMES else _number
    value = table.value(line, number, cells, parse, table.units[number])
    return f"{value!r} s" if column in TIMES else value


def _number(value: object) -> float:
    text = str(value)
    try:
        return int(text) if re.fullmatch("-?[0-9]{1,300}", text) else float(text.encode("ascii"))
    except ValueError:
        raise InputError(f"must be a number, not {quote(value)}") from None
