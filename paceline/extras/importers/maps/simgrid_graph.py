"""A graph whose shortest routes are those of a SimGrid platform.

A link leads one way, from NAME.in to NAME.out: in SimGrid it has one capacity for both directions together.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from paceline.extras.importers.readings import ForeignFile, LinkReading

if TYPE_CHECKING:
    import networkx as nx

_HOP_S: Final = 1e-15
"""Weight of a link beside its latency: the fewest break ties."""


class PlatformLink(NamedTuple):
    """A link; a ``fatpipe`` gives its bandwidth to every flow alone."""

    latency_s: float
    bandwidth_bytes_per_s: float
    fatpipe: bool


def links_of(
    source: ForeignFile,
    hosts: Sequence[str],
    known: Sequence[str],
    links: Mapping[str, PlatformLink],
    routes: Mapping[tuple[str, str], Sequence[str]],
) -> list[LinkReading]:
    """Links between hosts, switches and the ends of links.

    Args:
        known: names to keep where nodes merge, hosts first.
        routes: nodes and links between each two hosts, both included.

    Raises:
        InputError: a route is not its pair's shortest, or a fatpipe is slower than other links of a route.
    """
    import networkx as nx

    graph = _joined(links, routes)
    _merge(graph, set(hosts), {name: n for n, name in reversed([*enumerate(known)])})
    for _, _, data in graph.edges(data=True):
        data["weight"] = _HOP_S + (links[data["link"]].latency_s if data["link"] else 0.0)
    shortest = {host: nx.single_source_dijkstra_path(graph, host) for host in hosts}
    for (a, b), route in routes.items():
        declared = [name for name in route if name in links]
        ours = [name for edge in itertools.pairwise(shortest[a][b]) if (name := graph.edges[edge]["link"])]
        if ours != declared:
            raise source.refuse(
                f"the route from {a} to {b} takes {' '.join(declared)}, but {' '.join(ours)} has less "
                "latency, and in Paceline a message takes the route of least latency"
            )
        rates = {
            fat: [links[n].bandwidth_bytes_per_s for n in declared if links[n].fatpipe is fat]
            for fat in (True, False)
        }
        if min(rates[True], default=math.inf) < min(rates[False], default=math.inf):
            raise source.refuse(
                f"the route from {a} to {b}: a FATPIPE link limits it, which no link of ours does"
            )
    return _readings(graph, links)


def _joined(
    links: Mapping[str, PlatformLink], routes: Mapping[tuple[str, str], Sequence[str]]
) -> nx.DiGraph[str]:
    """Every link with its two ends, and joints (``link`` None) where a route leads on."""
    import networkx as nx

    graph: nx.DiGraph[str] = nx.DiGraph()
    for route in routes.values():
        graph.add_edges_from(((f"{name}.in", f"{name}.out") for name in route if name in links), link=None)
        for a, b in itertools.pairwise(route):
            graph.add_edge(f"{a}.out" if a in links else a, f"{b}.in" if b in links else b, link=None)
    for name in {name for route in routes.values() for name in route if name in links}:
        graph.edges[f"{name}.in", f"{name}.out"]["link"] = name
    return graph


def _merge(graph: nx.DiGraph[str], hosts: set[str], known: Mapping[str, int]) -> None:
    """Merge the ends of a joint where it is the only way into the one, or out of the other."""
    merged = True
    while merged:
        merged = False
        for a, b, link in [*graph.edges(data="link")]:
            if link is not None or not graph.has_edge(a, b):
                continue
            only_way_in = b not in hosts and len(graph.pred[b]) == 1
            if not only_way_in and (a in hosts or len(graph.succ[a]) > 1):
                continue
            keep, drop = sorted((a, b), key=lambda name: known.get(name, math.inf))
            edges = [*graph.in_edges(drop, "link"), *graph.out_edges(drop, "link")]
            moved = [(keep if u == drop else u, keep if v == drop else v, each) for u, v, each in edges]
            moved = [edge for edge in moved if edge[0] != edge[1]]
            if not any(graph.has_edge(u, v) for u, v, _ in moved):
                graph.remove_node(drop)
                for u, v, each in moved:
                    graph.add_edge(u, v, link=each)
                merged = True


def _readings(graph: nx.DiGraph[str], links: Mapping[str, PlatformLink]) -> list[LinkReading]:
    """Two links of one rate and latency, there and back, are one in full duplex."""
    readings = []
    for a, b, data in graph.edges(data=True):
        link = links.get(data["link"])
        back = graph.has_edge(b, a) and links.get(graph.edges[b, a]["link"]) == link
        if not back or a < b:
            rate = None if link is None or link.fatpipe else link.bandwidth_bytes_per_s
            readings.append(LinkReading(a, b, link.latency_s if link else 0.0, rate, one_way=not back))
    return readings
