"""SimGrid platforms, versions 3 to 4.1: one zone of hosts, links, and routes along them.

Source: "XML reference" in SimGrid's manual.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final
from xml.etree.ElementTree import Element

from paceline.extras.importers.readings import ForeignFile, Readings
from paceline.sim.errors import quote

from .simgrid_graph import PlatformLink, links_of
from .tool_units import Quantity, read_unit
from .xml_text import parse_xml

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
_TURNED: Final = {"_UP": "_DOWN", "_DOWN": "_UP"}
_MAX_HOSTS: Final = 500

_Hops = dict[tuple[str, str], list[str]]
"""Links of each route that the zone lists, by its two ends."""


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
    graph = links_of(source, hosts, [*hosts, *members], links, routes)
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
    unit = read_unit(match[2] or ("s" if quantity == "latency" else "Bps")) if match else None
    value = float(match[1]) * unit.size if match and unit and unit.quantity == quantity else -1.0
    if not (0 if quantity == "latency" else 1e-9) <= value <= 1e12:
        example = "50us" if quantity == "latency" else "125MBps"
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
