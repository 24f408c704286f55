"""GraphML and GML of the Internet Topology Zoo: places with coordinates, links with speeds.

Source: Knight et al., "The Internet Topology Zoo", IEEE JSAC 29(9), 2011.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import TYPE_CHECKING, Any, Final
from xml.etree.ElementTree import ParseError

from paceline.extras.importers.readings import ForeignFile, LinkReading, Readings, refuse_entities
from paceline.sim.config.problems import one_line
from paceline.sim.errors import quote

if TYPE_CHECKING:
    import networkx as nx

_UNREADABLE: Final = (ParseError, ValueError, LookupError, TypeError, AttributeError, RecursionError)
_EARTH_KM: Final = 6371.0
_FIBRE_KM_PER_S: Final = 200e3
_DETOUR: Final = 1.5
"""Length of a fibre over the great-circle distance of its ends."""


def read(source: ForeignFile) -> Readings:
    """Places of the network itself as hosts, as far as links join them; ``InputError``: nothing joined."""
    import networkx as nx

    graph, answers = _parse(source), source.answers
    inner = [n for n, data in graph.nodes(data=True) if str(data.get("Internal", 1)) not in ("0", "0.0")]
    speeds: dict[tuple[Any, Any], list[float | None]] = {}
    for a, b, data in graph.subgraph(inner).edges(data=True):
        if a != b:
            pair = (a, b) if (b, a) not in speeds else (b, a)
            speeds.setdefault(pair, []).append(_number(source, data, "LinkSpeedRaw", 1.0, 1e15))
    joined = nx.Graph(list(speeds))
    if not joined:
        raise source.refuse("has no link between two places of its network")
    part = max(nx.connected_components(joined), key=len)
    labels = {n: one_line(str(graph.nodes[n].get("label", n)), 80) or str(n) for n in graph if n in part}
    times = Counter(labels.values())
    names = {n: label if times[label] == 1 else f"{label} ({n})" for n, label in labels.items()}
    places = {n: _place(source, graph.nodes[n]) for n in names}
    nowhere = [name for n, name in names.items() if places[n] is None]
    silent = [f"{names[a]} - {names[b]}" for (a, b), rates in speeds.items() if a in part and None in rates]
    for missing, what, answer, example in (
        (nowhere, "coordinates", answers.latency_s, "--latency '5 ms'"),
        (silent, "LinkSpeedRaw", answers.bandwidth_bytes_per_s, "--bandwidth '1 Gbit/s'"),
    ):
        if missing and answer is None:
            raise source.refuse(f"has no {what} of {_some(missing)}: add {example}, of each such link")
    links, several = [], 0
    for (a, b), rates in speeds.items():
        if a in part:
            here, there = places[a], places[b]
            latency_s = _latency_s(here, there) if here and there else answers.latency_s or 0.0
            each = [answers.bandwidth_bytes_per_s or 0.0 if rate is None else rate / 8 for rate in rates]
            links.append(LinkReading(names[a], names[b], latency_s, sum(each)))
            several += len(each) > 1
    left = len(graph) - len(part)
    notes = [
        "latency: great-circle distance x 1.5 / 200 km per ms",
        "bandwidth: LinkSpeedRaw, in bit/s, each way",
    ]
    notes += (
        [f"latency of links at {_some(nowhere)}, which have no coordinates: as you say"] if nowhere else []
    )
    notes += [f"bandwidth of {_some(silent)}: as you say"] if silent else []
    notes += [f"{several} pairs have several links: their speeds are summed"] if several else []
    notes += [f"left out: {left} places of other networks, or that no link joins"] if left else []
    hosts = tuple(name for n, name in names.items() if not graph.nodes[n].get("hyperedge"))
    return Readings(hosts=hosts, links=tuple(links), notes=tuple(notes))


def _parse(source: ForeignFile) -> nx.Graph[Any]:
    import networkx as nx

    text = source.text
    try:
        if text.lstrip().startswith("<"):
            refuse_entities(source)
            graph = nx.parse_graphml(text)
        else:
            several = "" if re.search(r"(?m)^\s*multigraph\b", text) else " multigraph 1 "
            graph = nx.parse_gml(re.sub(r"(?m)^(\s*graph\s*\[)", rf"\1{several}", text, count=1), label="id")
    except (*_UNREADABLE, nx.NetworkXError) as error:
        raise source.refuse(f"is no graph that networkx can read: {one_line(str(error), 200)}") from None
    if graph.is_directed():
        raise source.refuse("is a directed graph; links of the Topology Zoo have no direction")
    return graph


def _number(source: ForeignFile, data: dict[str, Any], key: str, least: float, most: float) -> float | None:
    try:
        value = float(str(data[key]).replace("_", " ")) if key in data else None
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if value is not None and not least <= value <= most:
        raise source.refuse(f"has the {key} {quote(data[key])}, which is not from {least:g} to {most:g}")
    return value


def _place(source: ForeignFile, data: dict[str, Any]) -> tuple[float, float] | None:
    """Latitude and longitude, in radians."""
    latitude = _number(source, data, "Latitude", -90.0, 90.0)
    longitude = _number(source, data, "Longitude", -180.0, 180.0)
    if latitude is None or longitude is None:
        return None
    return math.radians(latitude), math.radians(longitude)


def _latency_s(a: tuple[float, float], b: tuple[float, float]) -> float:
    """One-way latency between two places, to a microsecond (haversine formula)."""
    sines = [math.sin((x - y) / 2) ** 2 for x, y in zip(a, b, strict=True)]
    distance_km = 2 * _EARTH_KM * math.asin(math.sqrt(sines[0] + math.cos(a[0]) * math.cos(b[0]) * sines[1]))
    return round(distance_km * _DETOUR / _FIBRE_KM_PER_S, 6)


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
