"""Base classes of all user settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Protocol, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    ModelWrapValidatorHandler,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidationInfo,
    model_serializer,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema
from typing_extensions import override

from ..errors import InputError
from .limits import MAX_OPTION, MAX_POSITIVE, MIN_POSITIVE
from .problems import (
    KeyPath,
    Mistake,
    explain,
    format_value,
    mistake,
    place_errors,
    raise_mistakes,
    refuse_foreign,
    unknown_key,
)

IMPORT_PATH: Final = {"type": "string", "pattern": "^[^:]+:[^:]+$", "description": "package.module:name"}
"""JSON Schema of the import path of user code."""


class Settings(BaseModel):
    """Frozen, strict about types and unknown keys; numbers are finite; lists are tuples.

    What is not set (None where None is the default) is left out when settings are written.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, arbitrary_types_allowed=False
    )
    other_forms: ClassVar[tuple[JsonSchemaValue, ...]] = ()
    """JSON Schema of the short forms that a validator of a subclass takes."""

    @model_validator(mode="before")
    @classmethod
    def _take_lists(cls, data: Any) -> Any:
        """Turn lists into tuples: a before-validator makes pydantic check JSON's lists as Python's."""
        return {key: _tuples(value) for key, value in data.items()} if type(data) is dict else data

    @model_serializer(mode="wrap")
    def _write(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields = type(self).model_fields
        return {key: v for key, v in plain(self).items() if v is not None or fields[key].default is not None}

    @classmethod
    @override
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, read: GetJsonSchemaHandler) -> JsonSchemaValue:
        return cls._with_other_forms(read(schema))

    @classmethod
    def _with_other_forms(cls, full: JsonSchemaValue) -> JsonSchemaValue:
        return {"anyOf": [full, *cls.other_forms]} if cls.other_forms else full


_Model = TypeVar("_Model", bound=Settings)
_T = TypeVar("_T")


def _tuples(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_tuples(each) for each in value)
    if type(value) is dict:
        return {key: _tuples(each) for key, each in value.items()}
    return value


def _check_positive(value: float) -> float:
    if value < MIN_POSITIVE:
        raise mistake(f"must be at least {MIN_POSITIVE:g}, not {value:g}")
    return value


def _check_printable(value: str) -> str:
    if not value.isprintable():
        raise mistake(f"{format_value(value)} holds characters that cannot be printed; leave them out")
    if value != value.strip():
        raise mistake(f"{format_value(value)} begins or ends with a blank; leave it out")
    return value


Printable = Annotated[str, AfterValidator(_check_printable)]
"""Text for people to read: no characters that move a terminal's cursor or turn its letters around."""

Positive = Annotated[float, Field(gt=0, le=MAX_POSITIVE), AfterValidator(_check_positive)]
"""A number above 0 that single precision can hold, and multiply with others."""


class OneOf(Settings):
    """Settings of which exactly one of several keys is given; their JSON Schema says so, too."""

    alternatives: ClassVar[tuple[str, ...]] = ()
    """The exclusive keys (default: all)."""
    one_needed: ClassVar[bool] = True
    """False: none is fine, too."""

    @model_validator(mode="after")
    def _check_one_of(self) -> Self:
        names = self.alternatives or tuple(type(self).model_fields)
        values = ((name, getattr(self, name)) for name in names)
        given = [name for name, value in values if value is not None and value is not False]
        if len(given) > 1 or (self.one_needed and not given):
            instead = f", not {' and '.join(given)}" if given else ""
            number = "exactly one" if self.one_needed else "at most one"
            raise ValueError(f"give {number} of {', '.join(names)}{instead}")
        return self

    @classmethod
    @override
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, read: GetJsonSchemaHandler) -> JsonSchemaValue:
        out = read.resolve_ref_schema(read(schema))
        unset = {"enum": [None, False]}
        given: list[JsonSchemaValue] = [
            {"required": [name], "properties": {name: {"not": unset}}}
            for name in cls.alternatives or cls.model_fields
        ]
        one_of = given if cls.one_needed else [*given, {"not": {"anyOf": given}}]
        return cls._with_other_forms({**out, "oneOf": one_of})


class HasOptions(Protocol):
    """An entry of a registry."""

    @property
    def options(self) -> type[Settings]:
        """Model of the entry's options."""


class Named(Settings):
    """A thing that a registry knows, with its options: its name, or ``{name: {options ...}}``.

    Other fields of a subclass are written beside the options.
    """

    kind: ClassVar[str]
    """Word for the entry in errors."""
    example: ClassVar[str]
    """Example with options, for errors."""
    registry: ClassVar[Mapping[str, HasOptions]]
    """All entries by name."""
    find: ClassVar[Callable[[str], HasOptions]]
    """Look up a registered entry or the user's own; raises ``InputError`` where there is none."""

    name: str
    options: Settings

    @classmethod
    def spell_out(cls, name: str, given: object) -> object:
        """Options in full where ``given`` is a short form of them."""
        return {} if given is None else given

    @model_validator(mode="wrap")
    @classmethod
    def _unfold(cls, data: Any, read: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        if isinstance(data, cls):
            return data
        if isinstance(data, str):
            data = {data: None}
        shape = f"write a name, or for example '{cls.example}'"
        if not isinstance(data, Mapping):
            raise mistake(f"must be a {cls.kind}, not {format_value(data)}; {shape}")
        if isinstance(data.get("options"), Settings):
            return read(data)
        if len(data) != 1:
            raise mistake(f"must be one {cls.kind}, not {len(data)} keys ({', '.join(data)}); {shape}")
        ((name, short),) = data.items()
        with place_errors(name):
            options = cls.find(name).options
        given = cls.spell_out(name, short)
        if not isinstance(given, Mapping):
            raise mistake(f"its options must be a mapping of keys to values, not {format_value(given)}", name)
        with place_errors(name):
            return read_open(cls, read, options, given, {"name": name}, info)

    @model_serializer(mode="wrap")
    def _write(  # type: ignore[override]
        self, plain: SerializerFunctionWrapHandler, info: SerializationInfo
    ) -> Any:
        common = {key: v for key, v in super()._write(plain).items() if key not in Named.model_fields}
        body = {**self.options.model_dump(mode="json", context=info.context), **common}
        return {self.name: body} if body else self.name

    @classmethod
    @override
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, read: GetJsonSchemaHandler) -> JsonSchemaValue:
        out = read.resolve_ref_schema(read(schema))
        common = {key: v for key, v in out["properties"].items() if key not in Named.model_fields}
        forms: list[JsonSchemaValue] = []
        bare: list[str] = []
        for name, thing in sorted(cls.registry.items()):
            body = read.resolve_ref_schema(read(thing.options.__pydantic_core_schema__))
            body = {**body, "properties": {**body.get("properties", {}), **common}}
            if not body.get("required"):
                bare.append(name)
                body = {"anyOf": [body, {"type": "null"}]}
            described = {"description": thing.does} if hasattr(thing, "does") else {}
            forms.append({**described, **keyed(name, body)})
        users = {"type": "object", "patternProperties": {IMPORT_PATH["pattern"]: True}}
        forms += [IMPORT_PATH, {**users, "additionalProperties": False}]
        return {"description": out.get("description", ""), "anyOf": [{"enum": bare}, *forms]}


def keyed(name: str, body: JsonSchemaValue) -> JsonSchemaValue:
    """JSON Schema of a mapping with the one key ``name``."""
    return {
        "type": "object", "properties": {name: body}, "required": [name], "additionalProperties": False
    }  # fmt: skip


def read_open(
    model: type[_Model],
    read: ModelWrapValidatorHandler[_Model],
    options: type[Settings],
    data: Mapping[str, Any],
    fixed: Mapping[str, Any],
    info: ValidationInfo,
) -> _Model:
    """Validate a mapping that has the keys of ``options`` beside those of ``model``.

    Args:
        model, read: the model, which has a field ``options``, and its own validation.
        data: the mapping as written.
        fixed: fields of ``model`` not written in ``data``.
        info: of the validation; its context has the scenario's folder.
    """
    own = options.model_fields.keys()
    common = model.model_fields.keys() - {"options", *fixed}
    mistakes = [Mistake((key,), unknown_key(key, own | common)) for key in data if key not in own | common]
    rest = {**fixed, "options": Settings(), **{key: v for key, v in data.items() if key in common}}
    written = {key: value for key, value in data.items() if key in own}
    try:
        rest["options"] = options.model_validate(written, context=info.context)
        mistakes += _beyond(rest["options"])
    except ValidationError as error:
        mistakes += explain(error, options, written)
    result = None
    try:
        result = read(rest)
    except ValidationError as error:
        mistakes += explain(error, model, rest)
    raise_mistakes(mistakes)
    assert result is not None
    return result


def _beyond(options: Settings, at: KeyPath = ()) -> list[Mistake]:
    """Whole numbers too large to compute with, in fields without a limit of their own."""
    out = []
    for key, field in type(options).model_fields.items():
        value = getattr(options, key)
        limited = any(hasattr(each, "le") or hasattr(each, "lt") for each in field.metadata)
        if isinstance(value, Settings):
            out += _beyond(value, (*at, key))
        elif isinstance(value, int) and not limited and abs(value) > MAX_OPTION:
            out.append(Mistake((*at, key), f"must be at most {MAX_OPTION}, not {format_value(value)}"))
    return out


def read_beside(info: ValidationInfo, name: str, read: Callable[[Path], _T], *at: str | int) -> _T:
    """Read a file relative to the scenario's folder (``info.context``); place errors at key ``at``."""
    path = Path((info.context or {}).get("folder", ".")) / name
    with place_errors(*at):
        try:
            return read(path)
        except InputError:
            refuse_foreign(path)
            raise
