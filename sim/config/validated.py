"""Something read from a file, as a model, or one message about what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import ValidationError

from ..errors import InputError
from . import yaml_file
from .problems import explain, one_line
from .settings import Settings

Model = TypeVar("Model", bound=Settings)


def validated(
    model: type[Model], found: object, source: str, place: Callable[[Any], object] | None = None
) -> Model:
    """``found`` as ``model``, or one ``InputError`` that names the first thing that is wrong."""
    try:
        return model.model_validate(found)
    except ValidationError as error:
        first = explain(error, model, found)[0]
        where = str(place(first.at)) if place is not None else source
        raise InputError(f"{where}: {yaml_file.dotted(first.at)}: {one_line(first.message)}") from error
