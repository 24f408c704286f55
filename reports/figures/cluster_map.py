"""The cluster's map, drawn from the resolved scenario: sites, or nodes of a graph, and their links."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import networkx as nx
import numpy as np
import pandas as pd

from paceline.sim.config.units import format_rate, format_seconds, parse_rate, parse_seconds
from paceline.sim.errors import InputError

from ..folders import ReportSources
from .drawing import FAINT, INK, PAPER, PHASES, WIDTH_IN, Picture, annotate, cut, figure, picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Point = tuple[float, float]

_SIDES: Final = tuple((round(math.cos(a), 2), round(math.sin(a), 2)) for a in np.arange(8) * math.pi / 4)
_LABELLED: Final = 12
"""Largest number of links labelled one by one."""
_DRAWN: Final = 100
"""Largest number of sites or nodes: more could not be told apart, and placing them takes minutes."""


def draw_cluster_map(study: ReportSources) -> Picture | None:
    """Sites or nodes, close where latency is low; None where the scenario names none, or too many."""
    try:
        graph = _graph(study.scenario["cluster"])
        slow = _slow(study.scenario["cluster"])
    except (InputError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError):
        return None  # not written by this version
    if len(graph) > _DRAWN or not all(type(about["hosts"]) is int for _, about in graph.nodes(data=True)):
        return None
    places = _places(graph)
    data = pd.DataFrame(
        [(a, b, link["latency_s"], link["bandwidth"]) for a, b, link in graph.edges(data=True)],
        columns=["from", "to", "latency_s", "bandwidth"],
    )
    rates = {link["bandwidth"] for *_, link in graph.edges(data=True)}
    alike = rates.pop() if len(rates) == 1 else None
    with figure(WIDTH_IN, 3.2) as drawn:
        ax = drawn.subplots()
        ax.set_axis_off()
        for a, b, link in graph.edges(data=True):
            (x1, y1), (x2, y2) = places[a], places[b]
            ax.plot([x1, x2], [y1, y2], color=FAINT, linewidth=1.4, zorder=1)
            if len(graph.edges) <= _LABELLED:
                lines = [format_seconds(link["latency_s"]), "" if alike is not None else link["bandwidth"]]
                text, middle = "\n".join(filter(None, lines)), ((x1 + x2) / 2, (y1 + y2) / 2)
                box = {"facecolor": PAPER, "edgecolor": "none", "alpha": 0.85, "pad": 0.6}
                ax.text(*middle, text, fontsize=9, color=INK, ha="center", va="center", bbox=box, zorder=2)
        for node, about in graph.nodes(data=True):
            x, y = places[node]
            hosts = about["hosts"]
            size = 120 + 60 * min(hosts, 16) if hosts else 40
            colour = PHASES["compute"] if hosts else FAINT
            ax.scatter([x], [y], s=size, color=colour, edgecolors=INK, linewidths=0.8, zorder=3)
            if len(graph) <= 2 * _LABELLED:
                _name(ax, places, graph, node, size)
        ax.set_title(slow, loc="left", fontsize=9)
        if alike:
            ax.set_title(f"each link {alike}", loc="right", fontsize=9)
        ax.margins(0.28)
    return picture(drawn, f"{study.key}-map", data)


def _name(ax: Axes, places: Mapping[str, Point], graph: nx.Graph[str], node: str, size: float) -> None:
    """A node's name on its side with the most room."""
    x, y = places[node]
    taken = [place for other, place in places.items() if other != node]
    for a, b in graph.edges:
        (x1, y1), (x2, y2) = places[a], places[b]
        taken += [(x1 + t * (x2 - x1), y1 + t * (y2 - y1)) for t in (0.15, 0.3, 0.5, 0.7, 0.85)]

    def room(side: Point) -> float:
        spot = x + 0.35 * side[0], y + 0.35 * side[1]
        return min((math.dist(spot, other) for other in taken), default=0.0)

    right, up = max(_SIDES, key=room)
    far = 4 + size**0.5 / 2
    ha = {-1: "right", 0: "center", 1: "left"}[round(right)]
    va = {-1: "top", 0: "center", 1: "bottom"}[round(up)]
    hosts, text = graph.nodes[node]["hosts"], graph.nodes[node].get("text", node)
    if hosts:
        text = f"{cut(node, 18)}\n{hosts} worker{'s' if hosts != 1 else ''}"
    annotate(ax, text, (x, y), (far * right, far * up), ha=ha, va=va, zorder=4)


def _graph(cluster: Mapping[str, Any]) -> nx.Graph[str]:
    """Nodes with ``hosts``, the switch with a ``text``, links with ``latency_s`` and ``bandwidth``."""
    network = cluster["network"]
    if network.get("sites"):
        return _sites(network)
    if network.get("graph"):
        return _links(network["graph"], (network.get("host") or {}).get("gpus", 1))
    graph: nx.Graph[str] = nx.Graph()
    graph.add_node("switch", hosts=0, text="one switch")
    graph.add_node("workers", hosts=cluster["workers"])
    graph.add_edge(
        "switch",
        "workers",
        latency_s=parse_seconds(network["latency"]),
        bandwidth=_rate(network.get("bandwidth")),
    )
    return graph


def _sites(network: Mapping[str, Any]) -> nx.Graph[str]:
    graph: nx.Graph[str] = nx.Graph()
    graph.add_nodes_from((site, {"hosts": count}) for site, count in network["sites"].items())
    between = network.get("between") or {}
    latencies = between.get("latency", {})
    for a, b in itertools.combinations(network["sites"], 2):
        both = [latencies[key] for key in (f"{a}-{b}", f"{b}-{a}") if key in latencies]
        latencies_s = [parse_seconds(text) for text in both or [latencies["default"]]]
        graph.add_edge(
            a, b, latency_s=sum(latencies_s) / len(latencies_s), bandwidth=_rate(between.get("bandwidth"))
        )
    return graph


def _links(description: Mapping[str, Any], gpus: int) -> nx.Graph[str]:
    graph: nx.Graph[str] = nx.Graph()
    for link in description["links"]:
        graph.add_edge(
            link["source"], link["target"], latency_s=parse_seconds(link["latency"]),
            bandwidth=_rate(link.get("bandwidth")),
        )  # fmt: skip
    graph.add_nodes_from(description["hosts"])
    nx.set_node_attributes(graph, {each: gpus * description["hosts"].count(each) for each in graph}, "hosts")
    return graph


def _slow(cluster: Mapping[str, Any]) -> str:
    """Name the workers that are always slow, "" if there are none."""
    slow = [
        f"worker {rank} {each['slowdown']:g}x slower"
        for each in cluster.get("stragglers", ())
        if "slowdown" in each and not {"probability", "markov", "at"}.intersection(each)
        for rank in each.get("workers") or ()
    ]
    return ", ".join(slow[:2]) + (f", and {len(slow) - 2} more" if len(slow) > 2 else "")


def _rate(text: str | None) -> str:
    return "" if text is None else format_rate(parse_rate(text))


def _places(graph: nx.Graph[str]) -> dict[str, Point]:
    """Positions of nodes: distances follow latency as far as a plane allows it."""
    longest = max((link["latency_s"] for *_, link in graph.edges(data=True)), default=0.0) or 1.0
    for *_, link in graph.edges(data=True):
        link["room"] = 0.25 + link["latency_s"] / longest  # nodes without latency still need some room
    layout = nx.kamada_kawai_layout(graph, weight="room")
    return {node: (float(x), float(y)) for node, (x, y) in layout.items()}
