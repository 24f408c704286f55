"""A topology's form in a scenario: its name, ``{name: {options ...}}`` or ``{file: graph.json}``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, Self

from pydantic import (
    Field,
    GetJsonSchemaHandler,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema
from typing_extensions import override

from ..config.problems import explain
from ..config.settings import Named, Settings, keyed
from ..config.user_code import call
from ..errors import InputError, did_you_mean, quote
from .graphs import files, static
from .graphs.static import Graphs
from .matrix import from_networkx


@dataclass(frozen=True)
class Topology:
    """A registered topology; its row in ``docs/topologies.md``.

    Attributes:
        build: (workers, options, seed) -> the graphs; raises ``InputError`` where there are none.
        workers, degree: accepted numbers of workers, and number of others heard in a step, in words.
        directed: whether i may hear j without j hearing i.
    """

    name: str
    build: Callable[[int, Any, int], Graphs]
    options: type[Settings]
    workers: str
    degree: str
    directed: bool = False


TOPOLOGIES: Final[dict[str, Topology]] = {}
"""Topologies by name. ``registry`` fills it, since some (matcha) name another one in their options."""
FILE: Final = Topology("file", files.from_file, files.FileOptions, "as in the file", "as in the file", True)


def topology_named(name: str) -> Topology:
    """Look up a topology by name, ``file`` (a graph in a file) or a user's ``package.module:function``.

    Raises ``InputError``, which names the nearest, where there is none.
    """
    if name == FILE.name:
        return FILE
    if call.is_import_path(name):
        call.load_object(name)  # refuse a missing one at once
        return Topology(name, partial(_from_function, name), static.NoOptions, "as its author says", "", True)
    if name.endswith(files.SUFFIXES):
        raise InputError(f"unknown topology {quote(name)}; for a graph in a file write {{file: {name}}}")
    if name not in TOPOLOGIES:
        raise InputError(f"unknown topology {quote(name)}; {did_you_mean(name, TOPOLOGIES)}")
    return TOPOLOGIES[name]


def _from_function(path: str, workers: int, options: static.NoOptions, seed: int) -> Graphs:
    """Build the graph of ``function(workers)``; ``InputError`` unless networkx's, of that many nodes."""
    import networkx as nx

    read = call.instance_of(nx.Graph)
    arguments = {"workers": workers}
    graph = call.call(path, arguments, read, "a networkx graph")
    if graph.number_of_nodes() != workers:
        place = call.format_place(call.load_object(path))
        raise InputError(
            f"{quote(path)} returned a graph of {graph.number_of_nodes()} nodes, not {workers}{place}"
        )
    return static.static(from_networkx(files.ranked(graph, call.format_call(path, arguments))))


BRIEF: Final = {"files": "by name"}
"""Context of a serialisation for people."""


class TopologyEntry(Named):
    """A topology as an option of a scheme: its name, ``{name: {options}}`` or ``{file: path}``."""

    kind: ClassVar[str] = "topology"
    example: ClassVar[str] = "{ring_lattice: {degree: 4}}"
    registry: ClassVar[Mapping[str, Topology]] = TOPOLOGIES
    find: ClassVar[Callable[[str], Topology]] = topology_named

    name: str = Field(description="which topology")
    options: Settings = Field(description="the topology's own options")

    @classmethod
    def of(cls, written: object) -> Self:
        """Parse an entry from its form in a scenario.

        Raises ``InputError`` for wrong names or options, with the key and the nearest valid choice.
        """
        try:
            return cls.model_validate(written)
        except ValidationError as error:
            first = explain(error, cls, written)[0]
            at = ".".join(map(str, first.at))
            raise InputError(f"{at}: {first.message}" if len(first.at) > 1 else first.message) from None

    @classmethod
    @override
    def spell_out(cls, name: str, given: object) -> object:
        if name == FILE.name and given is not None and not isinstance(given, Mapping):
            return {"path": given}
        return super().spell_out(name, given)

    @model_serializer(mode="wrap")
    @override
    def _write(  # type: ignore[override]
        self, plain: SerializerFunctionWrapHandler, info: SerializationInfo
    ) -> Any:
        """With the context ``BRIEF`` the name of a file only, without its contents."""
        if self.name == FILE.name and info.context == BRIEF:
            return {self.name: self.options.model_dump(mode="json")["path"]}
        return super()._write(plain, info)

    def __str__(self) -> str:
        options = self.options.model_dump(mode="json", context=BRIEF)
        if self.name == FILE.name:
            return f"{self.name} {Path(options['path']).name}"
        return " ".join([self.name, *(f"{key}={value}" for key, value in options.items())])

    @classmethod
    @override
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, read: GetJsonSchemaHandler) -> JsonSchemaValue:
        out = super().__get_pydantic_json_schema__(schema, read)
        held = read.resolve_ref_schema(read(FILE.options.__pydantic_core_schema__))
        out["anyOf"].append(keyed(FILE.name, {"anyOf": [{"type": "string"}, held]}))
        return out


class MixingOptions(Settings):
    """Options of schemes that average along a topology."""

    topology: TopologyEntry = Field(description="topology of neighbours")
    weights: str = Field(
        default="auto",
        description="mixing weights: a rule's name; auto: the topology's own, else uniform for equal "
        "degrees, else metropolis",
    )
