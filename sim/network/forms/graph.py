"""A network as a graph of hosts, switches and links."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, GetJsonSchemaHandler, ValidationInfo, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from ...config.limits import MAX_GRAPH_HOSTS
from ...config.problems import mistake
from ...config.settings import Printable, Settings, read_beside
from ...config.units import BoundedSeconds, Rate
from ...errors import quote
from .graph_files import read_graph

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

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, read: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [read(schema), {"type": "string", "examples": ["campus.graphml"]}]}
