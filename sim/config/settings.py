"""The base of everything that a user can set."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer, model_validator


class Settings(BaseModel):
    """Frozen, strict about types and unknown keys; numbers are finite; lists are tuples.

    What is not set (None where None is the default) is left out when settings are written.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, arbitrary_types_allowed=False
    )

    @model_validator(mode="before")
    @classmethod
    def _take_lists(cls, data: Any) -> Any:
        """Lists are as good as tuples: where a validator comes first, pydantic takes JSON's for Python's."""
        return {key: _tuples(value) for key, value in data.items()} if type(data) is dict else data

    @model_serializer(mode="wrap")
    def _write(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields = type(self).model_fields
        return {key: v for key, v in plain(self).items() if v is not None or fields[key].default is not None}


def _tuples(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_tuples(each) for each in value)
    if type(value) is dict:
        return {key: _tuples(each) for key, each in value.items()}
    return value
