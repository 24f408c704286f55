"""SimGrid platforms, versions 3 to 4.1: zones of hosts, links, and routes along them.

A link leads one way, from an entry to an exit: SimGrid's links have one capacity for both directions together,
but for SPLITDUPLEX ones, which are two. Source: "XML reference" in SimGrid's manual.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple
from xml.etree.ElementTree import Element

from ...errors import quote
from ..readings import ForeignFile, LinkReading, Readings
from .xml_text import parse_xml

if TYPE_CHECKING:
    import networkx as nx

_SECONDS: Final = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "ps": 1e-12, "m": 60.0, "h": 3600.0}
_ZONES: Final = ("zone", "AS", "cluster")
_ROUTES: Final = ("route", "zoneRoute", "ASroute")
_BY_LINKS: Final = ("Floyd", "Dijkstra", "DijkstraCache", "Cluster")
_NOT_READ: Final = ("prop", "config", "trace", "trace_connect", "storage", "storage_type", "disk", "mount")
_TURNED: Final = {"_UP": "_DOWN", "_DOWN": "_UP"}
_MAX_DEPTH: Final = 50
_MAX_HOSTS: Final = 500
_TIE_S: Final = 1e-15
"""Weight of a hop beside its latency: the fewest hops break ties."""


class _Hop(NamedTuple):
    """Links between two members of a zone, from a gateway of the one to a gateway of the other."""

    leaves: str
    links: tuple[str, ...]
    enters: str


class _Link(NamedTuple):
    latency_s: float
    bandwidth_bytes_per_s: float
    fatpipe: bool
    """Each flow has the bandwidth for itself."""


class _Platform(NamedTuple):
    """What has been read, by name; ``zones`` are those around each host, router and zone."""

    source: ForeignFile
    hosts: list[str]
    zones: dict[str, str]
    routing: dict[str, str]
    hops: dict[str, dict[tuple[str, str], _Hop]]
    links: dict[str, _Link]
    paths: dict[tuple[str, str], dict[str, list[str]]]


def read(source: ForeignFile) -> Readings:
    """A graph with the platform's routes; ``InputError`` where they are not those of least latency."""
    root = parse_xml(source)
    if root.tag != "platform":
        raise source.refuse(f"is no platform of SimGrid, but <{root.tag}>")
    platform = _Platform(source, [], {}, {}, defaultdict(dict), {}, {})
    for element in [*root.iter("link"), *root.iter("backbone")]:
        _read_link(
            platform, element, element.get("id", ""), "bandwidth", "latency", "sharing_policy", "SHARED"
        )
    _read_zone(platform, root, "", 0)
    hosts = platform.hosts
    if not 2 <= len(hosts) <= _MAX_HOSTS:
        raise source.refuse(f"has {len(hosts)} hosts; 2 to {_MAX_HOSTS} can be read")
    routes = {(a, b): [a, *_route(platform, a, b), b] for a, b in itertools.permutations(hosts, 2)}
    links = _as_graph(platform, routes)
    ignored = sorted({element.tag for element in root.iter()} & set(_NOT_READ))
    notes = ["latency, bandwidth: of the links; the factors of SimGrid's network models are not applied"]
    notes += ["NAME.in, NAME.out: ends of a link that shares its bandwidth between both directions"]
    notes += [f"not used: speeds of hosts{''.join(f', <{tag}>' for tag in ignored)}"]
    return Readings(hosts=tuple(hosts), links=tuple(links), notes=tuple(notes))


def _read_zone(platform: _Platform, zone: Element, name: str, depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise platform.source.refuse(f"has more than {_MAX_DEPTH} zones in one another")
    for child in zone:
        own, tag = child.get("id", ""), child.tag
        if tag in (*_ZONES, "host", "router"):
            if not own or own in platform.zones:
                raise platform.source.refuse(
                    f"has a <{tag}> {f'{quote(own)} twice' if own else 'without id'}"
                )
            platform.zones[own] = name
            if tag == "cluster":
                _read_cluster(platform, child, own)
            elif tag in _ZONES:
                platform.routing[own] = child.get("routing", "None")
                if platform.routing[own] not in (*_BY_LINKS, "Full", "None"):
                    raise platform.source.refuse(f"zone {own}: routing {platform.routing[own]} is not read")
                _read_zone(platform, child, own, depth + 1)
            elif tag == "host":
                platform.hosts.append(own)
        elif tag in _ROUTES:
            _read_route(platform, child, name)
        elif tag == "host_link":
            _join(platform, name, own, [child.get("up", "")], [child.get("down", "")])
        elif tag not in ("link", "backbone", *_NOT_READ):
            raise platform.source.refuse(f"has a <{tag}>, which is not read")
    if platform.routing.get(name) == "Cluster":
        _add_centre(platform, name, [each.get("id", "") for each in zone.findall("backbone")])
        for router in zone.findall("router"):
            _join(platform, name, router.get("id", ""), [], [])


def _read_link(
    platform: _Platform, element: Element, name: str, bandwidth: str, latency: str, policy: str, usual: str
) -> list[str]:
    """Add a link by these attributes of an element; return its two directions, there and back."""
    shared = element.get(policy, usual)
    if shared not in ("SHARED", "FATPIPE", "SPLITDUPLEX", "FULLDUPLEX"):
        raise platform.source.refuse(f"link {quote(name)}: the {policy} {quote(shared)} is not read")
    if not name or name in platform.links:
        raise platform.source.refuse(f"has two links {quote(name)}" if name else "has a <link> without id")
    rate = _quantity(platform, name, element.get(bandwidth, ""), rate=True)
    link = _Link(_quantity(platform, name, element.get(latency, "0"), rate=False), rate, shared == "FATPIPE")
    names = [f"{name}_UP", f"{name}_DOWN"] if shared.endswith("DUPLEX") else [name, name]
    platform.links.update(dict.fromkeys(names, link))
    return names


def _quantity(platform: _Platform, name: str, text: str, rate: bool) -> float:
    match = re.fullmatch(r"([0-9.]+(?:[eE][-+]?[0-9]+)?)\s*([A-Za-z]*)", text.strip())
    unit = match[2] if match else "?"
    prefixed = re.fullmatch(r"([kKMGT]?)(i?)([bB])ps|", unit)
    try:
        number = float(match[1]) if match else math.nan
    except ValueError:
        number = math.nan
    if rate and prefixed:
        power = " KMGT".index((prefixed[1] or " ").upper())
        number *= (1024 if prefixed[2] else 1000) ** power / (8 if prefixed[3] == "b" else 1)
    elif not rate and unit in _SECONDS:
        number *= _SECONDS[unit]
    else:
        number = math.nan
    if not (0 < number < 1e18 if rate else 0 <= number <= 1e12):
        example = "125MBps" if rate else "50us"
        raise platform.source.refuse(f"link {quote(name)}: {quote(text)} is no quantity such as {example}")
    return number


def _read_route(platform: _Platform, element: Element, zone: str) -> None:
    ends = element.get("src", ""), element.get("dst", "")
    leaves, enters = element.get("gw_src") or ends[0], element.get("gw_dst") or ends[1]
    links = []
    for each in element.iter("link_ctn"):
        direction = each.get("direction", "NONE")
        name = each.get("id", "") + (f"_{direction}" if direction in ("UP", "DOWN") else "")
        if name not in platform.links:
            raise platform.source.refuse(
                f"the route from {ends[0]} to {ends[1]}: there is no link {quote(name)}"
            )
        links.append(name)
    hops = platform.hops[zone]
    hops[ends] = _Hop(leaves, tuple(links), enters)
    if element.get("symmetrical", "YES").upper() == "YES":
        back = [re.sub(r"_(UP|DOWN)$", lambda m: _TURNED[m[0]], name) for name in reversed(links)]
        if missing := [name for name in back if name not in platform.links]:
            raise platform.source.refuse(
                f"the route from {ends[1]} to {ends[0]}: no link {quote(missing[0])}"
            )
        hops.setdefault(ends[::-1], _Hop(enters, tuple(back), leaves))


def _read_cluster(platform: _Platform, element: Element, name: str) -> None:
    """A star: every host has a link to the centre, which may be a backbone."""
    refuse = platform.source.refuse
    unread = [key for key in ("limiter_link",) if element.get(key)]
    if (
        unread
        or element.get("topology", "FLAT") != "FLAT"
        or any(child.tag == "cabinet" for child in element)
    ):
        raise refuse(f"cluster {quote(name)}: is no flat one with a link per host, which alone is read")
    platform.routing[name] = "Cluster"
    prefix, suffix = element.get("prefix", ""), element.get("suffix", "")
    for part in element.get("radical", "").split(","):
        match = re.fullmatch(r"\s*(\d{1,9})(?:\s*-\s*(\d{1,9}))?\s*", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not 0 <= last - first < _MAX_HOSTS:
            raise refuse(f"cluster {quote(name)}: the radical {quote(part)} is no range such as 0-9")
        for number in range(first, last + 1):
            host = f"{prefix}{number}{suffix}"
            ways = _read_link(platform, element, f"{host}.link", "bw", "lat", "sharing_policy", "SPLITDUPLEX")
            if host in platform.zones:
                raise refuse(f"has a host {quote(host)} twice")
            platform.zones[host] = name
            platform.hosts.append(host)
            _join(platform, name, host, ways[:1], ways[1:])
    backbone = "bb_bw" in element.attrib
    bb = f"{name}.backbone"
    _add_centre(
        platform,
        name,
        _read_link(platform, element, bb, "bb_bw", "bb_lat", "bb_sharing_policy", "SHARED")[:1]
        if backbone
        else [],
    )
    router = element.get("router_id") or f"{prefix}{name}_router{suffix}"
    platform.zones[router] = name
    _join(platform, name, router, [], [])


def _join(platform: _Platform, zone: str, member: str, up: list[str], down: list[str]) -> None:
    for link in [*up, *down]:
        if link not in platform.links:
            raise platform.source.refuse(f"zone {quote(zone)}: there is no link {quote(link)}")
    way_in, way_out = f"{zone}.in", f"{zone}.out"
    platform.hops[zone][member, way_in] = _Hop(member, tuple(up), way_in)
    platform.hops[zone][way_out, member] = _Hop(way_out, tuple(down), member)


def _add_centre(platform: _Platform, zone: str, backbone: list[str]) -> None:
    way_in, way_out = f"{zone}.in", f"{zone}.out"
    platform.zones.update({way_in: zone, way_out: zone})
    platform.hops[zone][way_in, way_out] = _Hop(way_in, tuple(backbone), way_out)


def _route(platform: _Platform, a: str, b: str) -> list[str]:
    """Links and gateways between two hosts or routers."""
    around_a, around_b = _around(platform, a), _around(platform, b)
    zone = next(zone for zone in around_a[1:] if zone in around_b[1:])
    members = _members(platform, zone, around_a[around_a.index(zone) - 1], around_b[around_b.index(zone) - 1])
    at, crossed = a, []
    for ends in itertools.pairwise(members):
        hop = platform.hops[zone][ends]
        for end, gateway in zip(ends, (hop.leaves, hop.enters), strict=True):
            if end not in _around(platform, gateway):
                raise platform.source.refuse(f"the gateway {quote(gateway)} is not in {quote(end)}")
        crossed += [] if at == hop.leaves else [*_route(platform, at, hop.leaves), hop.leaves]
        crossed += [*hop.links, hop.enters]
        at = hop.enters
    return crossed[:-1] if at == b else [*crossed, *_route(platform, at, b)]


def _around(platform: _Platform, name: str) -> list[str]:
    """A member and the zones around it, the whole platform last."""
    names = [name]
    while names[-1]:
        names.append(platform.zones.get(names[-1], ""))
    return names


def _members(platform: _Platform, zone: str, start: str, end: str) -> list[str]:
    """Members of a zone on the way between two of them."""
    import networkx as nx

    hops = platform.hops[zone]
    if platform.routing.get(zone) in _BY_LINKS:
        if (zone, start) not in platform.paths:
            graph = nx.DiGraph()
            graph.add_weighted_edges_from((*ends, len(hop.links)) for ends, hop in hops.items())
            known = nx.single_source_dijkstra_path(graph, start) if start in graph else {}
            platform.paths[zone, start] = known
        path = platform.paths[zone, start].get(end)
    else:
        path = [start, end] if (start, end) in hops else None
    if path is None:
        way = platform.routing.get(zone, "None")
        raise platform.source.refuse(f"has no route from {quote(start)} to {quote(end)} (routing {way})")
    return path


def _as_graph(platform: _Platform, routes: dict[tuple[str, str], list[str]]) -> list[LinkReading]:
    """Links with their ends, joined as the routes cross them; each route must be the shortest of its pair."""
    import networkx as nx

    graph: nx.DiGraph[str] = nx.DiGraph()
    for link in dict.fromkeys(name for route in routes.values() for name in route if name in platform.links):
        graph.add_edge(f"{link}.in", f"{link}.out", crosses=link)
    for route in routes.values():
        for a, b in itertools.pairwise(route):
            ends = f"{a}.out" if a in platform.links else a, f"{b}.in" if b in platform.links else b
            if not graph.has_edge(*ends):
                graph.add_edge(*ends, crosses=None)
    _contract(graph, platform)
    for a, b, data in graph.edges(data=True):
        latency_s = platform.links[data["crosses"]].latency_s if data["crosses"] else 0.0
        data["weight"] = latency_s + _TIE_S
    shortest = {host: nx.single_source_dijkstra_path(graph, host) for host in platform.hosts}
    for (a, b), route in routes.items():
        declared = [name for name in route if name in platform.links]
        ours = [name for ends in itertools.pairwise(shortest[a][b]) if (name := graph.edges[ends]["crosses"])]
        if ours != declared:
            raise platform.source.refuse(
                f"the route from {a} to {b} takes {' '.join(declared)}, and {' '.join(ours)} has less latency: "
                "in Paceline each message takes the route of least latency"
            )
        fat = [
            platform.links[name].bandwidth_bytes_per_s for name in declared if platform.links[name].fatpipe
        ]
        thin = (
            platform.links[name].bandwidth_bytes_per_s
            for name in declared
            if not platform.links[name].fatpipe
        )
        if fat and min(fat) < min(thin, default=math.inf):
            raise platform.source.refuse(
                f"the route from {a} to {b}: a FATPIPE link limits each flow by itself, which a graph cannot"
            )
    readings = []
    for a, b, crosses in graph.edges(data="crosses"):
        link = platform.links.get(crosses)
        back = graph.has_edge(b, a) and platform.links.get(graph.edges[b, a]["crosses"]) == link
        if not (back and a > b):
            rate = None if link is None or link.fatpipe else link.bandwidth_bytes_per_s
            readings.append(LinkReading(a, b, link.latency_s if link else 0.0, rate, one_way=not back))
    return readings


def _contract(graph: nx.DiGraph[str], platform: _Platform) -> None:
    """Merge nodes where one is the only way to the other or from it; a host keeps its name."""
    hosts, known = set(platform.hosts), platform.zones
    changed = True
    while changed:
        changed = False
        for a, b, crosses in list(graph.edges(data="crosses")):
            if crosses is not None or not graph.has_edge(a, b):
                continue
            only_in = b not in hosts and len(graph.pred[b]) == 1
            if not only_in and (a in hosts or len(graph.succ[a]) > 1):
                continue
            keep, drop = sorted((a, b), key=lambda name: (name not in hosts, name not in known))
            edges = [*graph.in_edges(drop, "crosses"), *graph.out_edges(drop, "crosses")]
            moved = [(keep if u == drop else u, keep if v == drop else v, link) for u, v, link in edges]
            moved = [edge for edge in moved if edge[0] != edge[1]]
            if not any(graph.has_edge(u, v) for u, v, _ in moved):
                graph.remove_node(drop)
                for u, v, link in moved:
                    graph.add_edge(u, v, crosses=link)
                changed = True
