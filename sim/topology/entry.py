"""How a topology is written in a scenario: its name, ``{name: {options ...}}`` or ``{file: graph.json}``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

from pydantic import (
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

from ..config.problems import Mistake, explain, format_value, mistake, mistakes
from ..config.settings import Settings
from ..config.user_code import is_import_path
from ..errors import InputError, did_you_mean
from .graphs import files, static
from .graphs.static import Graphs
from .graphs.user import from_function


@dataclass(frozen=True)
class Topology:
    """What is known of a topology; its row in ``docs/topologies.md``.

    Attributes:
        name: as in scenarios.
        build: (workers, options, seed) -> the graphs; raises ``InputError`` where there are none.
        options: the settings model of ``options``.
        workers: which numbers of workers it accepts, in words.
        degree: how many others a worker hears in a step, in words.
        directed: whether i may hear j without j hearing i.
    """

    name: str
    build: Callable[[int, Any, int], Graphs]
    options: type[Settings]
    workers: str
    degree: str
    directed: bool = False


TOPOLOGIES: Final[dict[str, Topology]] = {}
"""Those that have a name. ``registry`` fills it, since some (matcha) name another one in their options."""
FILE: Final = Topology("file", files.from_file, files.FileOptions, "as in the file", "as in the file", True)


def topology_named(name: str) -> Topology:
    """Look a topology up; ``file`` is one whose graph is in a file, ``package.module:function`` a user's.

    Raises:
        InputError: no such topology; names the nearest.
    """
    if name == FILE.name:
        return FILE
    if is_import_path(name):
        return Topology(name, partial(from_function, name), static.NoOptions, "as its author says", "", True)
    if name.endswith(files.SUFFIXES):
        raise InputError(f"unknown topology '{name}'; for a graph in a file write {{file: {name}}}")
    if name not in TOPOLOGIES:
        raise InputError(f"unknown topology '{name}'; {did_you_mean(name, TOPOLOGIES)}")
    return TOPOLOGIES[name]


BRIEF: Final = {"files": "by name"}
"""Context of a serialisation for people."""

_FILE: Final = "file"
_SHAPE: Final = "write a name, or for example '{ring_lattice: {degree: 4}}'"


class TopologyEntry(Settings):
    """A topology with its options, as a field of a scheme's options."""

    name: str = Field(description="which topology")
    options: Settings = Field(description="the topology's own options")

    @classmethod
    def of(cls, written: object) -> Self:
        """The same from what could stand in a scenario.

        Raises:
            InputError: no such topology, or wrong options; names the key and the nearest valid choice.
        """
        try:
            return cls.model_validate(written)
        except ValidationError as error:
            first = explain(error, cls, written)[0]
            at = ".".join(map(str, first.at))
            raise InputError(f"{at}: {first.message}" if len(first.at) > 1 else first.message) from None

    @model_validator(mode="wrap")
    @classmethod
    def _unfold(cls, data: Any, read: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        if isinstance(data, cls):
            return data
        if isinstance(data, str):
            data = {data: None}
        if not isinstance(data, Mapping):
            raise mistake(f"must be a topology, not {format_value(data)}; {_SHAPE}")
        if len(data) != 1:
            raise mistake(f"must be one topology, not {len(data)} keys ({', '.join(data)}); {_SHAPE}")
        ((name, given),) = data.items()
        pass  # whose topologies may have entries as options

        try:
            model = topology_named(name).options
        except InputError as error:
            raise mistake(str(error)) from None
        given = (
            {}
            if given is None
            else {"path": given}
            if name == _FILE and not isinstance(given, Mapping)
            else given
        )
        if not isinstance(given, Mapping):
            raise mistake(f"its options must be a mapping of keys to values, not {format_value(given)}", name)
        try:
            options = model.model_validate(given, context=info.context)
        except ValidationError as error:
            raise mistakes(
                [Mistake((name, *p.at), p.message) for p in explain(error, model, given)]
            ) from None
        return read({"name": name, "options": options})

    @model_serializer(mode="wrap")
    def _write(  # type: ignore[override]
        self, plain: SerializerFunctionWrapHandler, info: SerializationInfo
    ) -> Any:
        """With the context ``BRIEF`` a file's name alone, without what was read from it."""
        options = self.options.model_dump(mode="json", context=info.context)
        if self.name == _FILE and info.context == BRIEF:
            return {self.name: options["path"]}
        return {self.name: options} if options else self.name

    def __str__(self) -> str:
        options = self.options.model_dump(mode="json", context=BRIEF)
        if self.name == _FILE:
            return f"{self.name} {Path(options['path']).name}"
        return " ".join([self.name, *(f"{key}={value}" for key, value in options.items())])

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, read: GetJsonSchemaHandler) -> JsonSchemaValue:
        held = read.resolve_ref_schema(read(topology_named(_FILE).options.__pydantic_core_schema__))
        path_or_held = {"anyOf": [{"type": "string"}, held]}
        of_file = {"type": "object", "properties": {_FILE: path_or_held}, "required": [_FILE]}
        forms: list[JsonSchemaValue] = [
            {"enum": sorted(TOPOLOGIES)},
            {"type": "string", "pattern": "^[^:]+:[^:]+$", "description": "package.module:function"},
            {**of_file, "additionalProperties": False},
        ]
        for name, found in sorted(TOPOLOGIES.items()):
            own = read.resolve_ref_schema(read(found.options.__pydantic_core_schema__))
            if own.get("properties"):
                body = {"type": "object", "properties": {name: own}, "required": [name]}
                forms.append({**body, "additionalProperties": False})
        return {"description": "a topology: its name, or {name: {options}}", "anyOf": forms}
