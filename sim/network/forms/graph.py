"""A network as a graph of hosts, switches and links: written out, or a file of GraphML or node-link JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final
from xml.etree.ElementTree import ParseError

from pydantic import Field, ValidationInfo, model_validator
from pydantic.json_schema import JsonSchemaValue

from ...config.files import parse_json
from ...config.limits import MAX_GRAPH_HOSTS
from ...config.problems import mistake, one_line
from ...config.settings import Printable, Settings, read_beside
from ...config.units import BoundedSeconds, Rate, parse_bandwidth, parse_duration
from ...config.yaml_file import read_text
from ...errors import InputError, did_you_mean, quote

if TYPE_CHECKING:
    import networkx as nx

MAX_GRAPH_BYTES: Final = 16 * 2**20

_KINDS: Final = ("host", "switch")
_UNREADABLE: Final = (ParseError, ValueError, KeyError, TypeError, AttributeError, RecursionError)

NodeName = Annotated[Printable, Field(min_length=1)]


class GraphLink(Settings):
    """A link between two hosts or switches."""

    source: NodeName = Field(description="a host, or else a switch")
    target: NodeName = Field(description="likewise")
    latency: BoundedSeconds = Field(description="one-way")
    bandwidth: Rate | None = Field(default=None, description="each way (default: unlimited)")
    one_way: bool = Field(default=False, description="from source to target only; else full duplex")


class Graph(Settings):
    """Hosts, switches and links; a file's name, or its contents."""

    other_forms: ClassVar[tuple[JsonSchemaValue, ...]] = ({"type": "string", "examples": ["campus.graphml"]},)

    file: str | None = Field(
        default=None, description="GraphML or node-link JSON; relative to the scenario's folder"
    )
    hosts: tuple[NodeName, ...] = Field(
        default=(),
        max_length=MAX_GRAPH_HOSTS,
        description="one per worker, in order; other nodes are switches",
    )
    links: tuple[GraphLink, ...] = Field(default=(), description="links")

    @model_validator(mode="before")
    @classmethod
    def _read(cls, data: Any, info: ValidationInfo) -> Any:
        """Read the file once: the resolved scenario has its contents."""
        if isinstance(data, str):
            data = {"file": data}
        if not isinstance(data, Mapping) or not isinstance(data.get("file"), str) or "hosts" in data:
            return data
        return {**data, **read_beside(info, data["file"], read_graph, "file")}

    @model_validator(mode="after")
    def _check(self) -> Graph:
        if not self.hosts:
            raise ValueError("has no hosts; give a file, or hosts and links")
        twice = [name for name, times in Counter(self.hosts).items() if times > 1]
        if twice:
            raise mistake(f"the host '{twice[0]}' is named twice", "hosts")
        ways: set[tuple[str, str]] = set()
        for number, link in enumerate(self.links):
            both = [(link.source, link.target)] + [(link.target, link.source)] * (not link.one_way)
            if link.source == link.target or not ways.isdisjoint(both):
                text = f"{quote(link.source)} and {quote(link.target)} cannot be joined " + (
                    "once more" if link.source != link.target else "with themselves"
                )
                raise mistake(text, "links", number)
            ways.update(both)
        return self


def read_graph(path: Path) -> dict[str, Any]:
    """Read ``hosts`` and ``links`` of a ``.graphml`` or ``.json`` file in the form of a scenario.

    Nodes are hosts unless their attribute ``kind`` is ``switch``. Edges have ``latency`` and perhaps
    ``bandwidth``, with units. An undirected edge is a full-duplex link. Raises ``InputError`` where the file
    cannot be read, or a node or an edge is not as described.
    """
    import networkx as nx

    if path.suffix not in (".graphml", ".json"):
        raise InputError(f"{path}: a graph is a .graphml or a .json file")
    text = read_text(path, MAX_GRAPH_BYTES, foreign=True)
    try:
        graph = _from_json(text) if path.suffix == ".json" else nx.parse_graphml(text)
    except (*_UNREADABLE, nx.NetworkXError) as error:
        raise InputError(f"{path}: is no graph that networkx can read: {one_line(str(error), 200)}") from None
    if graph.number_of_edges() > len(set(graph.edges())):
        raise InputError(f"{path}: has parallel edges; write each link once")
    hosts = [str(node) for node, data in graph.nodes(data=True) if _kind(path, node, data) == "host"]
    if not hosts:
        raise InputError(f"{path}: has no hosts; a node is one unless its kind is 'switch'")
    links = [
        {
            "source": str(a),
            "target": str(b),
            "latency": _quantity(path, a, b, data, "latency"),
            **({"bandwidth": _quantity(path, a, b, data, "bandwidth")} if "bandwidth" in data else {}),
            **({"one_way": True} if graph.is_directed() else {}),
        }
        for a, b, data in graph.edges(data=True)
    ]
    return {"hosts": tuple(hosts), "links": tuple(links)}


def _from_json(text: str) -> nx.Graph[Any]:
    import networkx as nx

    data = parse_json(text, once=True)
    if not isinstance(data, dict):
        raise ValueError("it is no object with nodes and edges")
    return nx.node_link_graph(data, edges="links" if "links" in data else "edges")


def _kind(path: Path, node: object, data: Mapping[str, Any]) -> str:
    kind = data.get("kind", "host")
    if kind not in _KINDS:
        raise InputError(
            f"{path}: node {quote(node)} has the kind {quote(kind)}; {did_you_mean(str(kind), _KINDS)}"
        )
    return str(kind)


def _quantity(path: Path, a: object, b: object, data: Mapping[str, Any], key: str) -> str:
    if key not in data:
        raise InputError(
            f"{path}: the edge from {quote(a)} to {quote(b)} has no {key}; write for example '5 ms'"
        )
    text, parse = str(data[key]), parse_duration if key == "latency" else parse_bandwidth
    try:
        parse(text)
    except InputError as error:
        raise InputError(f"{path}: the edge from {quote(a)} to {quote(b)}: {key}: {error}") from None
    return text
