"""From the scenario's network settings to hosts, links and routes."""

from __future__ import annotations

import math
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import pairwise, permutations
from typing import Any, Final

import networkx as nx

from ..config import user_code
from ..errors import InputError, did_you_mean, quote
from .network import Link, Network, Route
from .settings import Graph, NetworkSettings, Variation

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
                raise InputError(f"host {quote(name)} cannot reach host {quote(other)}; add links")
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


def build_network(settings: NetworkSettings, workers: int) -> Network:
    """Lay out the network; host i is worker i, and sites follow each other in the order given.

    The flat form is one site. A bandwidth that was left out gives no link.

    Raises:
        InputError: the sites or the graph hold another number of workers, the graph does not join them, the
            user's function fails, or a variation fits no link or one that varies already.
    """
    if settings.model is not None:
        network = _build_users(settings.model, workers)
    elif settings.graph is not None:
        network = build_graph(settings.graph, workers)
    else:
        network = _build_sites(settings, workers)
    links = network.links
    for variation in settings.variation:
        links = _vary(links, variation)
    return replace(network, links=links, jitter=settings.jitter)


def _build_users(path: str, workers: int) -> Network:
    """The network that a user's function returns; every route of it has to lead over links that it has."""
    arguments = {"workers": workers}
    network = user_code.call(path, arguments, user_code.instance_of(Network), "a paceline.Network")
    with user_code.report_errors(f"a route of what {user_code.format_call(path, arguments)} returned"):
        for a, b in permutations(range(network.num_hosts), 2):
            for link in network.route(a, b).links:
                network.links[link]
    if network.num_hosts != workers:
        raise InputError(f"{quote(path)} returned a network of {network.num_hosts} hosts, not {workers}")
    return network


def _vary(links: tuple[Link, ...], variation: Variation) -> tuple[Link, ...]:
    matching = [link.name for link in links if fnmatchcase(link.name, variation.links)]
    if not matching:
        names = [link.name for link in links]
        hint = did_you_mean(variation.links, names) if names else "no link has a limited bandwidth"
        raise InputError(f"no link is called {quote(variation.links)}; {hint[:200]}")
    twice = [link.name for link in links if link.name in matching and link.variation is not None]
    if twice:
        raise InputError(f"{quote(variation.links)}: the link '{twice[0]}' varies already")
    return tuple(replace(link, variation=variation) if link.name in matching else link for link in links)


def _build_sites(settings: NetworkSettings, workers: int) -> Network:
    if settings.sites is None or settings.within is None:
        sites = {"all": workers}
        inside_s, access, upload = settings.latency or 0.0, settings.bandwidth, settings.upload
    else:
        sites = dict(settings.sites)
        inside_s, access = settings.within.latency, settings.within.bandwidth
        upload = settings.within.upload
    if sum(sites.values()) != workers:
        raise InputError(f"the sites hold {sum(sites.values())} workers, not {workers}")

    names = tuple(sites)
    links: list[Link] = []

    def add(name: str, bandwidth_bytes_per_s: float) -> int:
        links.append(Link(name, bandwidth_bytes_per_s))
        return len(links) - 1

    up: dict[int, int] = {}
    down: dict[int, int] = {}
    if access is not None:
        for host in range(workers):
            up[host] = add(f"host{host} up", access if upload is None else upload)
            down[host] = add(f"host{host} down", access)

    number = {name: index for index, name in enumerate(names)}
    pipe = {
        (number[a], number[b]): add(f"{a}->{b}", bandwidth) for (a, b), bandwidth in settings.pipes().items()
    }

    leave: dict[int, int] = {}
    enter: dict[int, int] = {}
    for site, name in enumerate(names):
        if name in settings.uplink:
            leave[site] = add(f"{name} out", settings.uplink[name])
            enter[site] = add(f"{name} in", settings.uplink[name])

    latencies, caps = settings.latencies(), settings.connections()
    return Network(
        sites=names,
        site_of=tuple(site for site, name in enumerate(names) for _ in range(sites[name])),
        links=tuple(links),
        latency_s=tuple(tuple(inside_s if a == b else latencies[a, b] for b in names) for a in names),
        per_flow_bytes_per_s=tuple(tuple(caps.get((a, b), math.inf) for b in names) for a in names),
        up=up,
        down=down,
        pipe=pipe,
        leave=leave,
        enter=enter,
    )
