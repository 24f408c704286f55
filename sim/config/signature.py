"""The options of a user's function: what its signature says, as settings that a scenario can give."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, get_args, get_origin, get_type_hints

from pydantic import create_model
from pydantic.errors import PydanticSchemaGenerationError

from ..errors import InputError
from .settings import Settings

_ANYTHING = bool | int | float | str | tuple[Any, ...] | None


def options_of(function: Callable[..., Any], skip: int = 0, without: tuple[str, ...] = ()) -> type[Settings]:
    """A settings model with one key per parameter.

    Types come from annotations, else from defaults. A parameter without a default is a required key.

    Args:
        function: the user's.
        skip: leading parameters that are not options.
        without: parameters that are not options, by name.

    Raises:
        InputError: the signature cannot be read, or cannot be given by name.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
        options = [p for p in parameters[skip:] if p.name not in without]
        types = _types_of(function, options)
    except (TypeError, ValueError, NameError) as error:
        raise InputError(f"its signature cannot be read: {error}") from None
    if len(parameters) < skip:
        raise InputError(f"it takes {len(parameters)} parameters; it needs {skip} before its options")
    fields: dict[str, Any] = {}
    for parameter in options:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise InputError(f"its parameter '{parameter.name}' cannot be given by name")
        default = ... if parameter.default is parameter.empty else parameter.default
        kind = _type_of(parameter, types.get(parameter.name, Any))
        fields[parameter.name] = (kind, tuple(default) if isinstance(default, list) else default)
    try:
        return create_model("Options", __base__=Settings, **fields)
    except (PydanticSchemaGenerationError, NameError) as error:
        text = str(error).splitlines()[0]
        raise InputError(f"its parameters cannot be options of a scenario: {text}") from None


def _types_of(function: Callable[..., Any], parameters: Sequence[inspect.Parameter]) -> dict[str, Any]:
    """Types of these parameters, by name; annotations of others may name what is imported for mypy alone."""
    written = {p.name: p.annotation for p in parameters if p.annotation is not p.empty}
    holder = type("Holder", (), {"__annotations__": written})
    inner = inspect.unwrap(function)
    return get_type_hints(holder, getattr(inner, "__globals__", {}))


def _type_of(parameter: inspect.Parameter, written: Any) -> Any:
    if written is Any and parameter.default is not parameter.empty and parameter.default is not None:
        written = type(parameter.default)
    # Scenarios are hashed, so that lists are tuples in them.
    if written is list or get_origin(written) is list:
        return tuple.__class_getitem__((*(get_args(written) or (_ANYTHING,)), ...))
    if written is dict or get_origin(written) is dict:
        raise InputError(
            f"its parameter '{parameter.name}' is a mapping, which no option is; use several parameters"
        )
    return _ANYTHING if written is Any else written
