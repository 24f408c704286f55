"""SimGrid platforms, versions 3 to 4.1: zones of hosts, links, and routes along them.

Source: "XML reference" in SimGrid's manual.
"""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Final, NamedTuple
from xml.etree.ElementTree import Element

from ...errors import quote
from ..readings import ForeignFile, Readings
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
_MAX_DEPTH: Final = 50
_MAX_HOSTS: Final = 500


class _Hop(NamedTuple):
    """Links between two members of a zone, from a gateway of the one to a gateway of the other."""

    leaves: str
    links: tuple[str, ...]
    enters: str


class _Zone(NamedTuple):
    """Routes between its members, by their names."""

    routing: str
    hops: dict[tuple[str, str], _Hop]
    shortest: dict[str, dict[str, list[str]]]


class _Platform(NamedTuple):
    """What has been read, by name; ``inside`` has the zone around each host, router and zone."""

    source: ForeignFile
    hosts: list[str]
    inside: dict[str, str]
    zones: dict[str, _Zone]
    links: dict[str, PlatformLink]


def read(source: ForeignFile) -> Readings:
    """A graph with the platform's routes; ``InputError``: they are not those of least latency."""
    root = parse_xml(source)
    if root.tag != "platform":
        raise source.refuse(f"is no platform of SimGrid, but <{root.tag}>")
    platform = _Platform(source, [], {}, {"": _Zone("None", {}, {})}, {})
    for element in root.iter("link"):
        _add_link(platform, element, element.get("id", ""))
    _read_zone(platform, root, "", 0)
    hosts = platform.hosts
    if not 2 <= len(hosts) <= _MAX_HOSTS:
        raise source.refuse(f"has {len(hosts)} hosts; 2 to {_MAX_HOSTS} can be read")
    routes = {(a, b): [a, *_route(platform, a, b), b] for a, b in itertools.permutations(hosts, 2)}
    unread = [f"<{tag}>" for tag in _NOT_READ if root.find(f".//{tag}") is not None]
    unread += sorted(
        {key for each in root.iter() for key in each.attrib if key.endswith(("_file", "_profile"))}
    )
    notes = (
        "latency, bandwidth: of the links; the factors of SimGrid's network models are not applied",
        "NAME.in, NAME.out: ends of a link that both directions share, as they do in SimGrid",
        f"not used: {', '.join(['speeds of hosts', *unread])}",
    )
    links = links_of(source, hosts, [*hosts, *platform.inside], platform.links, routes)
    return Readings(hosts=tuple(hosts), links=tuple(links), notes=notes)


def _read_zone(platform: _Platform, zone: Element, name: str, depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise platform.source.refuse(f"has more than {_MAX_DEPTH} zones in one another")
    for child in zone:
        own = child.get("id", "")
        match child.tag:
            case "zone" | "AS":
                _add(platform, own, name)
                platform.zones[own] = _Zone(child.get("routing", "None"), {}, {})
                _read_zone(platform, child, own, depth + 1)
            case "cluster":
                _add(platform, own, name)
                _read_cluster(platform, child, own)
            case "host":
                _add(platform, own, name)
                platform.hosts.append(own)
            case "router":
                _add(platform, own, name)
            case "route" | "zoneRoute" | "ASroute":
                _read_route(platform, child, platform.zones[name].hops)
            case tag if tag not in ("link", *_NOT_READ):
                raise platform.source.refuse(f"has a <{tag}>, which is not read")


def _add(platform: _Platform, name: str, zone: str) -> None:
    if not name or name in platform.inside:
        raise platform.source.refuse(f"has the id {quote(name)} twice, or none")
    platform.inside[name] = zone


def _add_link(
    platform: _Platform, element: Element, name: str, of: str = "", usual: str = "SHARED"
) -> list[str]:
    """Add the link of an element, whose attributes begin with ``of``; return its two directions."""
    keys = (f"{of}bw", f"{of}lat") if element.tag == "cluster" else ("bandwidth", "latency")
    policy = element.get(f"{of}sharing_policy", usual)
    if policy not in ("SHARED", "FATPIPE", "SPLITDUPLEX", "FULLDUPLEX"):
        raise platform.source.refuse(f"link {quote(name)}: the sharing_policy {quote(policy)} is not read")
    if not name or name in platform.links:
        raise platform.source.refuse(f"has the link {quote(name)} twice, or one without id")
    rate = _quantity(platform.source, name, element.get(keys[0], ""), "bandwidth")
    latency_s = _quantity(platform.source, name, element.get(keys[1], "0"), "latency")
    names = [f"{name}_UP", f"{name}_DOWN"] if policy.endswith("DUPLEX") else [name, name]
    platform.links.update(dict.fromkeys(names, PlatformLink(latency_s, rate, policy == "FATPIPE")))
    return names


def _quantity(source: ForeignFile, name: str, text: str, quantity: Quantity) -> float:
    match = re.fullmatch(r"(\d{1,20}(?:\.\d*)?(?:[eE][-+]?\d+)?)\s*([A-Za-z]*)", text.strip())
    unit = read_unit(match[2] or ("s" if quantity == "latency" else "Bps")) if match else None
    value = float(match[1]) * unit.size if match and unit and unit.quantity == quantity else -1.0
    if not (0 if quantity == "latency" else 1e-9) <= value <= 1e12:
        example = "50us" if quantity == "latency" else "125MBps"
        raise source.refuse(f"link {quote(name)}: {quote(text)} is no quantity such as {example}")
    return value


def _read_route(platform: _Platform, element: Element, hops: dict[tuple[str, str], _Hop]) -> None:
    ends = element.get("src", ""), element.get("dst", "")
    gateways = element.get("gw_src") or ends[0], element.get("gw_dst") or ends[1]
    directed = ((each.get("id", ""), each.get("direction", "NONE")) for each in element.iter("link_ctn"))
    there = [f"{name}_{way}" if way in ("UP", "DOWN") else name for name, way in directed]
    back = [re.sub(r"_(UP|DOWN)$", lambda match: _TURNED[match[0]], name) for name in reversed(there)]
    symmetrical = element.get("symmetrical", "YES").upper() == "YES"
    for link in [*there, *(back if symmetrical else ())]:
        if link not in platform.links:
            raise platform.source.refuse(
                f"the route from {' to '.join(ends)}: there is no link {quote(link)}"
            )
    hops[ends] = _Hop(gateways[0], tuple(there), gateways[1])
    if symmetrical:
        hops.setdefault(ends[::-1], _Hop(gateways[1], tuple(back), gateways[0]))


def _read_cluster(platform: _Platform, element: Element, name: str) -> None:
    """A star: links of hosts into a centre and out of it, and perhaps a backbone between the two."""
    source, hops = platform.source, dict[tuple[str, str], _Hop]()
    if (
        element.get("topology", "FLAT") != "FLAT"
        or element.get("limiter_link")
        or element.find("cabinet") is not None
    ):
        raise source.refuse(f"cluster {quote(name)}: only a flat one with a link per host is read")
    platform.zones[name] = _Zone(_BY_LINKS[0], hops, {})
    prefix, suffix = element.get("prefix", ""), element.get("suffix", "")
    router = element.get("router_id") or f"{prefix}{name}_router{suffix}"
    way_in, way_out = f"{name}.in", f"{name}.out"
    ends: dict[str, list[str]] = {router: []}
    for part in element.get("radical", "").split(","):
        match = re.fullmatch(r"\s*(\d{1,9})(?:\s*-\s*(\d{1,9}))?\s*", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not 0 <= last - first < _MAX_HOSTS:
            raise source.refuse(
                f"cluster {quote(name)}: the radical {quote(part)} is no range such as 0-9, or too long"
            )
        for host in (f"{prefix}{number}{suffix}" for number in range(first, last + 1)):
            ends[host] = _add_link(platform, element, f"{host}.link", usual="SPLITDUPLEX")
            platform.hosts.append(host)
    for member, links in ends.items():
        _add(platform, member, name)
        hops[member, way_in] = _Hop(member, tuple(links[:1]), way_in)
        hops[way_out, member] = _Hop(way_out, tuple(links[1:]), member)
    backbone = _add_link(platform, element, f"{name}.backbone", "bb_") if element.get("bb_bw") else []
    platform.inside.update({way_in: name, way_out: name})
    hops[way_in, way_out] = _Hop(way_in, tuple(backbone[:1]), way_out)


def _route(platform: _Platform, a: str, b: str) -> list[str]:
    """Links and gateways between two hosts or routers."""
    around_a, around_b = _around(platform, a), _around(platform, b)
    zone = next(zone for zone in around_a[1:] if zone in around_b[1:])
    members = _members(platform, zone, *(each[each.index(zone) - 1] for each in (around_a, around_b)))
    at, crossed = a, list[str]()
    for ends in itertools.pairwise(members):
        leaves, links, enters = platform.zones[zone].hops[ends]
        for end, gateway in zip(ends, (leaves, enters), strict=True):
            if end not in _around(platform, gateway):
                raise platform.source.refuse(f"the gateway {quote(gateway)} is not in {quote(end)}")
        crossed += [] if at == leaves else [*_route(platform, at, leaves), leaves]
        crossed += [*links, enters]
        at = enters
    return crossed[:-1] if at == b else [*crossed, *_route(platform, at, b)]


def _around(platform: _Platform, name: str) -> list[str]:
    """A member and the zones around it; the last one is that of the platform."""
    names = [name]
    while names[-1]:
        names.append(platform.inside.get(names[-1], ""))
    return names


def _members(platform: _Platform, name: str, start: str, end: str) -> list[str]:
    """Members of a zone on the way between two of them."""
    import networkx as nx

    routing, hops, shortest = platform.zones[name]
    path = [start, end] if routing == "Full" and (start, end) in hops else None
    if routing in _BY_LINKS:
        if start not in shortest:
            graph: nx.DiGraph[str] = nx.DiGraph([(start, start)])
            graph.add_weighted_edges_from((*ends, len(hop.links)) for ends, hop in hops.items())
            shortest[start] = nx.single_source_dijkstra_path(graph, start)
        path = shortest[start].get(end)
    if path is None:
        raise platform.source.refuse(f"has no route from {quote(start)} to {quote(end)} (routing {routing})")
    return path
