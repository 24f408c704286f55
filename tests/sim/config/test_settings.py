"""Settings of which one key is needed, and their JSON Schema."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from pydantic import ValidationError

from paceline.sim.config.problems import Mistake, explain
from paceline.sim.config.settings import OneOf


class Speed(OneOf):
    alternatives: ClassVar[tuple[str, ...]] = ("kmh", "knots", "still")

    kmh: float | None = None
    knots: float | None = None
    still: bool = False
    label: str = ""


class PerhapsSpeed(Speed):
    one_needed: ClassVar[bool] = False


GOOD: list[dict[str, Any]] = [
    {"kmh": 0.0},
    {"still": True, "label": "at rest"},
    {"kmh": None, "knots": 3.0, "still": False},
]
NONE = "give exactly one of kmh, knots, still"


def _fits(schema: dict[str, Any], data: dict[str, Any]) -> bool:
    """Whether ``data`` fits what a ``OneOf`` adds to a schema."""
    if "not" in schema:
        return not any(_fits(each, data) for each in schema["not"]["anyOf"])
    ((name, value),) = schema["properties"].items()
    return name in data and data[name] not in [v for v in value["not"]["enum"] if v is data[name]]


@pytest.mark.parametrize("data", GOOD)
def test_exactly_one_is_given(data: dict[str, Any]) -> None:
    Speed.model_validate(data)
    assert sum(_fits(form, data) for form in Speed.model_json_schema()["oneOf"]) == 1


@pytest.mark.parametrize(
    ("data", "message"),
    [({}, NONE), ({"still": False}, NONE), ({"kmh": 0.0, "still": True}, f"{NONE}, not kmh and still")],
)
def test_none_or_two_are_refused(data: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Speed.model_validate(data)
    assert explain(caught.value, Speed, data) == [Mistake((), message)]
    assert sum(_fits(form, data) for form in Speed.model_json_schema()["oneOf"]) != 1


@pytest.mark.parametrize("data", [{}, {"label": "unknown"}, *GOOD])
def test_none_may_do(data: dict[str, Any]) -> None:
    PerhapsSpeed.model_validate(data)
    assert sum(_fits(form, data) for form in PerhapsSpeed.model_json_schema()["oneOf"]) == 1
    with pytest.raises(ValidationError, match="give at most one of kmh, knots, still, not kmh and knots"):
        PerhapsSpeed.model_validate({"kmh": 1.0, "knots": 1.0})
