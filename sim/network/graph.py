"""Networks that are graphs: every message takes the route with the least latency."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, Final

import networkx as nx

from ..errors import InputError
from .network import Link, Network, Route
from .settings import Graph

_PICOSECONDS: Final = 10**12
_HOP: Final = 1
_ONE_PICOSECOND: Final = 2**20
"""In units of the weight: more than any number of hops, so that these only break ties."""


def build_graph(settings: Graph, workers: int) -> Network:
    """Lay out a graph; worker i is its i-th host.

    Routes have the least latency (Dijkstra), of those the fewest hops, of those the first in the order of the
    links. Hosts forward what is not for them, as switches do. An unlimited link takes part in routes only.

    Raises:
        InputError: another number of hosts, or a host cannot reach another.
    """
    hosts = settings.hosts
    if len(hosts) != workers:
        raise InputError(f"the graph has {len(hosts)} hosts, not {workers}")
    graph: nx.DiGraph[Any] = nx.DiGraph()
    graph.add_nodes_from(hosts)
    links: list[Link] = []
    for link in settings.links:
        ways = [(link.source, link.target)] if link.one_way else [
            (link.source, link.target), (link.target, link.source)
        ]  # fmt: skip
        for a, b in ways:
            weight = round(link.latency * _PICOSECONDS) * _ONE_PICOSECOND + _HOP
            graph.add_edge(a, b, weight=weight, latency_s=link.latency, link=None)
            if link.bandwidth is not None:
                graph.edges[a, b]["link"] = len(links)
                links.append(Link(f"{a}->{b}", link.bandwidth))
    routes: dict[tuple[int, int], Route] = {}
    for source, name in enumerate(hosts):
        paths = nx.single_source_dijkstra_path(graph, name)
        for destination, other in enumerate(hosts):
            if other not in paths:
                raise InputError(f"host '{name}' cannot reach host '{other}'; add links")
            if source != destination:
                crossed = [graph.edges[edge] for edge in pairwise(paths[other])]
                routes[source, destination] = Route(
                    links=tuple(edge["link"] for edge in crossed if edge["link"] is not None),
                    latency_s=math.fsum(edge["latency_s"] for edge in crossed),
                    per_flow_bytes_per_s=math.inf,
                )
    return Network(
        sites=("all",),
        site_of=(0,) * workers,
        links=tuple(links),
        latency_s=(),
        per_flow_bytes_per_s=(),
        routes=routes,
    )
