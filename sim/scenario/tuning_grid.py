"""Tuning: a grid of values, and a budget of runs per scheme to choose from it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any, Final, Self

from pydantic import (
    Field,
    GetJsonSchemaHandler,
    ModelWrapValidatorHandler,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from ..config.limits import MAX_REPEATS, MAX_VALUES_TUNED
from ..config.problems import explain, format_value, mistake, one_line
from ..config.settings import Settings
from ..errors import InputError, did_you_mean, quote, shorten
from ..records.verdict import Value
from ..training.optimizer import OptimizerSettings
from .entries import SchemeEntry

SEEDS: Final = 3
"""Seeds of the best points of a grid; all others are tried on one."""


class Tune(Settings):
    """A grid of values, and one budget for every scheme: ``{optimizer.lr: [0.03, 0.1, 0.3], trials: 6}``."""

    grid: dict[str, tuple[Value, ...]] = Field(
        description="candidate values, by key of a scheme: optimizer.lr, or an option of all schemes"
    )
    trials: int = Field(
        ge=1,
        le=MAX_REPEATS,
        description="trials per scheme: one per point, and two more for each of the best ones "
        "(default: for the best two)",
    )

    @model_validator(mode="wrap")
    @classmethod
    def _split(cls, data: Any, read: ModelWrapValidatorHandler[Self]) -> Self:
        if not isinstance(data, Mapping) or "grid" in data:
            return read(data)
        grid = {key: value for key, value in data.items() if key != "trials"}
        if not grid:
            raise mistake("names nothing to tune; add for example 'optimizer.lr: [0.03, 0.1, 0.3]'")
        for key, values in grid.items():
            if not isinstance(values, tuple | list) or not values:
                raise mistake(f"must be a list of values to choose from, not {format_value(values)}", key)
            if len(values) > MAX_VALUES_TUNED:
                raise mistake(f"has {len(values)} values; it takes at most {MAX_VALUES_TUNED}", key)
            pairs = itertools.combinations(values, 2)
            if any(a == b and isinstance(a, bool) == isinstance(b, bool) for a, b in pairs):
                raise mistake("holds a value twice", key)
        points, more = math.prod(len(values) for values in grid.values()), SEEDS - 1
        trials = data.get("trials", points + 2 * more if points > 1 else 1)
        if isinstance(trials, int) and trials not in range(points, SEEDS * points + 1, more):
            below = min(max((trials - points) // more, 0), points - 1)
            raise mistake(
                f"{trials} does not fit {points} points of the grid, one trial for each, and {more} more for "
                f"each of the best; use {points + below * more} or {points + (below + 1) * more}",
                "trials",
            )
        return read({"grid": grid, "trials": trials})

    @model_serializer(mode="wrap")
    def _write(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {**{key: list(values) for key, values in self.grid.items()}, "trials": self.trials}

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, read: GetJsonSchemaHandler) -> JsonSchemaValue:
        out = read.resolve_ref_schema(read(schema))
        values = out["properties"].pop("grid")["additionalProperties"]
        out["additionalProperties"] = {**values, "minItems": 1}
        out.pop("required", None)
        return out

    def finalists(self) -> int:
        """Number of points that are tried on all ``SEEDS``."""
        return (self.trials - len(list(self.points()))) // (SEEDS - 1)

    def points(self) -> Iterator[dict[str, Value]]:
        """Points of the grid, the last key varying fastest."""
        for values in itertools.product(*self.grid.values()):
            yield dict(zip(self.grid, values, strict=True))


def with_values(entry: SchemeEntry, default: OptimizerSettings, values: Mapping[str, Value]) -> SchemeEntry:
    """Change values of a scheme; ``optimizer.lr`` is that of its own optimiser or of ``default``.

    Raises ``InputError`` if it has no such key, or the value is not valid.
    """
    data = entry.model_dump(mode="json")[entry.name]
    data.setdefault("optimizer", default.model_dump(mode="json"))
    for key, value in values.items():
        where: Any = data
        *sections, last = key.split(".")
        for section in sections:
            where = where.get(section) if isinstance(where, dict) else None
            if section == "optimizer" and isinstance(where, dict):
                where = _constants(where)
        if not isinstance(where, dict) or last not in where or key == "label":
            raise InputError(
                f"{shorten(entry.label)} has no key {quote(key)}; {did_you_mean(key, _keys(data))}"
            )
        where[last] = value
    try:
        return SchemeEntry.model_validate({entry.name: data})
    except ValidationError as error:
        problem = explain(error, SchemeEntry, {entry.name: data})[0]
        raise InputError(f"{shorten(entry.label)}: {one_line(problem.message)}") from None


def _constants(optimizer: dict[str, Any]) -> dict[str, Any]:
    """Part of an optimiser's settings that holds its learning rate."""
    named = (value for key, value in optimizer.items() if key != "schedule" and isinstance(value, dict))
    return next(named, optimizer)


def _keys(data: Mapping[str, Any]) -> list[str]:
    constants = _constants(data["optimizer"])
    return [
        *(f"optimizer.{key}" for key, value in constants.items() if isinstance(value, Value)),
        *(key for key, value in data.items() if isinstance(value, Value) and key != "label"),
    ]
