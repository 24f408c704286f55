"""The registry of topologies, and a topology's form in a scenario.

That is its name, ``{name: {options ...}}`` or ``{file: graph.json}``.
"""

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
from ..config.registry import Registry
from ..config.settings import Named, Settings, keyed
from ..config.user_code import call
from ..errors import InputError, did_you_mean, quote
from .matrix import Matrix, from_networkx, ranked

FILE: Final = "file"
"""Name of the topology in a file."""
SUFFIXES: Final = (".json", ".graphml", ".edgelist", ".txt", ".csv")
"""Suffixes of graph files."""


@dataclass(frozen=True, eq=False)
class Graphs:
    """The sequence of graphs of a topology.

    Attributes:
        at: the adjacency [n, n] of a step (from 0), or its mixing matrix where ``weighted``.
        period: number of steps after which the graphs repeat; None: never.
        weighted: the topology comes with weights of its own.
        rate: of a random sequence, the root of the second eigenvalue of E[W'W] with the weights that ``auto``
            means: the factor per step by which disagreement shrinks in mean square.
    """

    at: Callable[[int], Matrix]
    period: int | None = 1
    weighted: bool = False
    rate: float | None = None


class NoOptions(Settings):
    """Options of topologies that have none."""


@dataclass(frozen=True)
class Topology:
    """A registered topology; its row in ``docs/topologies.md``.

    Attributes:
        build: (workers, options, seed) -> the graphs; raises ``InputError`` where there are none.
        workers, degree: accepted numbers of workers, and number of others heard in a step, in words.
        directed: whether i may hear j without j hearing i.
        drawn: whether the graphs depend on the seed.
    """

    name: str
    build: Callable[[int, Any, int], Graphs]
    options: type[Settings]
    workers: str
    degree: str
    directed: bool = False
    drawn: bool = False


def static(graph: Matrix) -> Graphs:
    """A sequence with one graph at every step."""
    return Graphs(lambda step: graph)


TOPOLOGIES: Final = Registry[Topology](
    __package__,
    {
        "ring": ".graphs.named:RING", "path": ".graphs.named:PATH", "star": ".graphs.named:STAR",
        "complete": ".graphs.named:COMPLETE", "grid": ".graphs.named:GRID", "torus": ".graphs.named:TORUS",
        "hypercube": ".graphs.named:HYPERCUBE", "ring_lattice": ".graphs.named:RING_LATTICE",
        "static_exponential": ".graphs.named:STATIC_EXPONENTIAL",
        "hierarchical": ".graphs.named:HIERARCHICAL",
        "one_peer_exponential": ".graphs.named:ONE_PEER_EXPONENTIAL",
        "p_peer_exponential": ".graphs.named:P_PEER_EXPONENTIAL",
        "random_matching": ".graphs.named:RANDOM_MATCHING",
        "random_regular": ".graphs.random:RANDOM_REGULAR", "erdos_renyi": ".graphs.random:ERDOS_RENYI",
        "random_geometric": ".graphs.random:RANDOM_GEOMETRIC", "small_world": ".graphs.random:SMALL_WORLD",
        "base": "paceline.extras.papers.finite_time:BASE",
        "simple_base": "paceline.extras.papers.finite_time:SIMPLE_BASE",
        "hyper_hypercube": "paceline.extras.papers.finite_time:HYPER_HYPERCUBE",
        "one_peer_hypercube": "paceline.extras.papers.finite_time:ONE_PEER_HYPERCUBE",
        "de_bruijn": "paceline.extras.papers.finite_time:DE_BRUIJN", "matcha": ".matcha:MATCHA",
    },
)  # fmt: skip
_IN_FILES: Final = Registry[Topology](__package__, {FILE: ".graphs.graph_files:IN_FILE"})


def topology_named(name: str) -> Topology:
    """Look up a topology by name, ``file`` (a graph in a file) or a user's ``package.module:function``.

    Raises ``InputError``, which names the nearest, where there is none.
    """
    if name == FILE:
        return _IN_FILES[name]
    if call.is_import_path(name):
        call.load_object(name)  # refuse a missing one at once
        return Topology(name, partial(_from_function, name), NoOptions, "as its author says", "", True)
    if name.endswith(SUFFIXES):
        raise InputError(f"unknown topology {quote(name)}; for a graph in a file write {{file: {name}}}")
    if name not in TOPOLOGIES:
        raise InputError(f"unknown topology {quote(name)}; {did_you_mean(name, TOPOLOGIES)}")
    return TOPOLOGIES[name]


def _from_function(path: str, workers: int, options: NoOptions, seed: int) -> Graphs:
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
    return static(from_networkx(ranked(graph, call.format_call(path, arguments))))


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
        if name == FILE and given is not None and not isinstance(given, Mapping):
            return {"path": given}
        return super().spell_out(name, given)

    @model_serializer(mode="wrap")
    @override
    def _write(  # type: ignore[override]
        self, plain: SerializerFunctionWrapHandler, info: SerializationInfo
    ) -> Any:
        """With the context ``BRIEF`` the name of a file only, without its contents."""
        if self.name == FILE and info.context == BRIEF:
            return {self.name: self.options.model_dump(mode="json")["path"]}
        return super()._write(plain, info)

    def __str__(self) -> str:
        options = self.options.model_dump(mode="json", context=BRIEF)
        if self.name == FILE:
            return f"{self.name} {Path(options['path']).name}"
        return " ".join([self.name, *(f"{key}={value}" for key, value in options.items())])

    @classmethod
    @override
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, read: GetJsonSchemaHandler) -> JsonSchemaValue:
        out = super().__get_pydantic_json_schema__(schema, read)
        held = read.resolve_ref_schema(read(_IN_FILES[FILE].options.__pydantic_core_schema__))
        out["anyOf"].append(keyed(FILE, {"anyOf": [{"type": "string"}, held]}))
        return out


class MixingOptions(Settings):
    """Options of schemes that average along a topology."""

    topology: TopologyEntry = Field(description="topology of neighbours")
    weights: str = Field(
        default="auto",
        description="mixing weights: a rule's name; auto: the topology's own, else uniform for equal "
        "degrees, else metropolis",
    )
