"""SimGrid platforms, versions 3 to 4.1: one zone of hosts, links, and routes along them.

They become a graph whose shortest routes are the platform's. A link leads one way there, from NAME.in to
NAME.out: in SimGrid it has one capacity for both directions together.

Source: "XML reference" in SimGrid's manual.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple
from xml.etree.ElementTree import Element

from paceline.extras.importers.readings import (
    ForeignFile,
    LinkReading,
    Quantity,
    Readings,
    parse_xml,
    read_unit,
)
from paceline.sim.errors import quote

if TYPE_CHECKING:
    import networkx as nx

_BY_LINKS: Final = ("Floyd", "Dijkstra", "DijkstraCache")
_NOT_READ: Final = (
    "prop",
    "config",
    "trace",
    "trace_connect",
    "storage",
    "storage_type",
    "disk",
    "mount",
    "actor",
    "process",
)
_WRITTEN: Final[dict[Quantity, tuple[str, float, str]]] = {
    "latency": ("s", 0.0, "50us"), "bandwidth": ("Bps", 1e-9, "125MBps")
}  # fmt: skip
"""Unit of a bare number, least value, and an example."""
_TURNED: Final = {"_UP": "_DOWN", "_DOWN": "_UP"}
_MAX_HOSTS: Final = 500
_HOP_S: Final = 1e-15
"""Weight of a link beside its latency: the fewest break ties."""

_Hops = dict[tuple[str, str], list[str]]
"""Links of each route that the zone lists, by its two ends."""


class PlatformLink(NamedTuple):
    """A link; a ``fatpipe`` gives its bandwidth to every flow alone."""

    latency_s: float
    bandwidth_bytes_per_s: float
    fatpipe: bool


def read(source: ForeignFile) -> Readings:
    """A graph with the platform's routes; ``InputError``: they are not those of least latency."""
    root = parse_xml(source)
    if root.tag != "platform":
        raise source.refuse(f"is no platform of SimGrid, but <{root.tag}>")
    zones = [*root.iter("zone"), *root.iter("AS")]
    if len(zones) != 1:
        raise source.refuse(f"has {len(zones)} zones; one with hosts, links and routes can be read")
    links, hops, members = dict[str, PlatformLink](), _Hops(), dict[str, str]()
    for element in root.iter("link"):
        _add_link(source, links, element)
    for element in itertools.chain(root, zones[0]):
        match element.tag:
            case "host" | "router":
                name = element.get("id", "")
                if not name or name in members:
                    raise source.refuse(f"has the id {quote(name)} twice, or none")
                members[name] = element.tag
            case "route":
                _add_route(source, links, hops, element)
            case tag if tag not in ("zone", "AS", "link", *_NOT_READ):
                raise source.refuse(f"has a <{tag}>, which is not read")
    hosts = [name for name, tag in members.items() if tag == "host"]
    if not 2 <= len(hosts) <= _MAX_HOSTS:
        raise source.refuse(f"has {len(hosts)} hosts; 2 to {_MAX_HOSTS} can be read")
    routes = _routes(source, zones[0].get("routing", "None"), hosts, hops)
    unread = [f"<{tag}>" for tag in _NOT_READ if root.find(f".//{tag}") is not None]
    unread += sorted(
        {key for each in root.iter() for key in each.attrib if key.endswith(("_file", "_profile"))}
    )
    notes = (
        "latency, bandwidth: of the links; the factors of SimGrid's network models are not applied",
        "NAME.in, NAME.out: ends of a link that both directions share, as they do in SimGrid",
        f"not used: {', '.join(['speeds of hosts', *unread])}",
    )
    graph = _links_of(source, hosts, [*hosts, *members], links, routes)
    return Readings(hosts=tuple(hosts), links=tuple(graph), notes=notes)


def _add_link(source: ForeignFile, links: dict[str, PlatformLink], element: Element) -> None:
    name, policy = element.get("id", ""), element.get("sharing_policy", "SHARED")
    if policy not in ("SHARED", "FATPIPE", "SPLITDUPLEX", "FULLDUPLEX"):
        raise source.refuse(f"link {quote(name)}: the sharing_policy {quote(policy)} is not read")
    if not name or name in links:
        raise source.refuse(f"has the link {quote(name)} twice, or one without id")
    rate = _quantity(source, name, element.get("bandwidth", ""), "bandwidth")
    latency_s = _quantity(source, name, element.get("latency", "0"), "latency")
    names = [f"{name}_UP", f"{name}_DOWN"] if policy.endswith("DUPLEX") else [name]
    links.update(dict.fromkeys(names, PlatformLink(latency_s, rate, policy == "FATPIPE")))


def _quantity(source: ForeignFile, name: str, text: str, quantity: Quantity) -> float:
    match = re.fullmatch(r"([0-9]{1,20}(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?)\s*([A-Za-z]*)", text.strip())
    bare, least, example = _WRITTEN[quantity]
    unit = read_unit(match[2] or bare) if match else None
    value = float(match[1]) * unit.size if match and unit and unit.quantity == quantity else -1.0
    if not least <= value <= 1e12:
        raise source.refuse(f"link {quote(name)}: {quote(text)} is no quantity such as {example}")
    return value


def _add_route(source: ForeignFile, links: Mapping[str, PlatformLink], hops: _Hops, element: Element) -> None:
    ends = element.get("src", ""), element.get("dst", "")
    directed = ((each.get("id", ""), each.get("direction", "NONE")) for each in element.iter("link_ctn"))
    there = [f"{name}_{way}" if way in ("UP", "DOWN") else name for name, way in directed]
    back = [re.sub(r"_(UP|DOWN)$", lambda match: _TURNED[match[0]], name) for name in reversed(there)]
    symmetrical = element.get("symmetrical", "YES").upper() == "YES"
    for link in [*there, *(back if symmetrical else ())]:
        if link not in links:
            raise source.refuse(f"the route from {' to '.join(ends)}: there is no link {quote(link)}")
    hops[ends] = there
    if symmetrical:
        hops.setdefault(ends[::-1], back)


def _routes(
    source: ForeignFile, routing: str, hosts: Sequence[str], hops: _Hops
) -> dict[tuple[str, str], list[str]]:
    """Members and links on the way between each two hosts, both included."""
    import networkx as nx

    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(hosts)
    graph.add_weighted_edges_from((*ends, len(links)) for ends, links in hops.items())
    routes = dict[tuple[str, str], list[str]]()
    for a in hosts:
        shortest = nx.single_source_dijkstra_path(graph, a) if routing in _BY_LINKS else {}
        for b in (host for host in hosts if host != a):
            path = [a, b] if routing == "Full" and (a, b) in hops else shortest.get(b)
            if path is None:
                raise source.refuse(f"has no route from {quote(a)} to {quote(b)} (routing {routing})")
            routes[a, b] = [a]
            for ends in itertools.pairwise(path):
                routes[a, b] += [*hops[ends], ends[1]]
    return routes


def _links_of(
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
