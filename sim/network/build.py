"""Hosts, links and routes from the scenario's network settings."""

from __future__ import annotations

import math
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import chain, pairwise, product
from typing import Any, Final

from ..config.limits import MAX_TIME_S, MIN_RATE
from ..config.user_code import call as user_code
from ..errors import InputError, did_you_mean, quote, shorten
from .forms import Graph, Variation
from .network import Link, Network, Route
from .network_settings import GpuHost, NetworkSettings

_PICOSECONDS: Final = 10**12
_ONE_PICOSECOND: Final = 2**20
"""A picosecond in units of the weight: more than any number of hops, so that hops only break ties."""


def build_graph(settings: Graph, workers: int) -> Network:
    """Build the network of a graph; worker i is its i-th host.

    Routes have the least latency (Dijkstra), of those the fewest hops, of those the first in the order of the
    links. Hosts forward others' messages, as switches do. An unlimited link takes part in routes only.
    Raises ``InputError`` for another number of hosts, or one that cannot reach another.
    """
    import networkx as nx

    hosts = settings.hosts
    if len(hosts) != workers:
        raise InputError(f"{settings.file or 'the graph'} has {len(hosts)} hosts, not {workers}")
    graph: nx.DiGraph[Any] = nx.DiGraph()
    graph.add_nodes_from(hosts)
    links: list[Link] = []
    for link in settings.links:
        ways = [(link.source, link.target)] if link.one_way else [
            (link.source, link.target), (link.target, link.source)
        ]  # fmt: skip
        for a, b in ways:
            weight = round(link.latency * _PICOSECONDS) * _ONE_PICOSECOND + 1
            graph.add_edge(a, b, weight=weight, latency_s=link.latency, link=None)
            if link.bandwidth is not None:
                graph.edges[a, b]["link"] = len(links)
                links.append(Link(f"{a}->{b}", link.bandwidth))
    routes: dict[tuple[int, int], Route] = {}
    for source, name in enumerate(hosts):
        before, _ = nx.dijkstra_predecessor_and_distance(graph, name)
        predecessors = {name: {node: next(iter(each), None) for node, each in before.items()}}
        for destination, other in enumerate(hosts):
            if other not in before:
                raise InputError(f"host {quote(name)} cannot reach host {quote(other)}; add links")
            if source != destination:
                crossed = [
                    graph.edges[edge] for edge in pairwise(nx.reconstruct_path(name, other, predecessors))
                ]
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
    """Build the network; host i is worker i, and sites follow each other in the order given.

    The flat form is one site. A bandwidth that was left out gives no link. Of hosts with several GPUs each
    GPU is a worker, and those of one host follow each other.

    Raises ``InputError`` where the sites or the graph hold another number of workers, the graph does not join
    them, the user's function fails, or a variation fits no link or one that varies already.
    """
    if settings.model is not None:
        network = _build_users(settings.model, workers)
    elif settings.graph is not None:
        network = build_graph(settings.graph, workers // settings.gpus)
    else:
        network = _build_sites(settings, workers)
    if settings.host is not None and settings.gpus > 1:
        network = _with_gpus(network, settings.host, workers)
    links = network.links
    for variation in settings.variation:
        links = _vary(links, variation)
    network = replace(network, links=links, jitter=settings.jitter)
    number = 1 if settings.tcp is None else settings.tcp.connections
    if number == 1:
        return network
    caps, routes = network.per_flow_bytes_per_s, network.routes.items()  # of one connection so far
    return replace(
        network,
        per_flow_bytes_per_s=tuple(tuple(number * each for each in row) for row in caps),
        routes={
            pair: replace(route, per_flow_bytes_per_s=number * route.per_flow_bytes_per_s)
            for pair, route in routes
        },
    )


def _with_gpus(network: Network, host: GpuHost, workers: int) -> Network:
    """The network with nodes of several GPUs, each a worker, and the links inside them."""
    links, inner_up, inner_down = list(network.links), dict[int, int](), dict[int, int]()
    if host.bandwidth is not None:
        for worker in range(workers):
            for ways, name in ((inner_up, "out"), (inner_down, "in")):
                ways[worker] = len(links)
                links.append(Link(f"gpu{worker} {name}", host.bandwidth))
    one_site = len(network.sites) == 1
    return replace(
        network, site_of=(0,) * workers if one_site else network.site_of, links=tuple(links),
        node_of=tuple(worker // host.gpus for worker in range(workers)),
        inner_up=inner_up, inner_down=inner_down, inner_latency_s=host.latency,
    )  # fmt: skip


def _build_users(path: str, workers: int) -> Network:
    arguments = {"workers": workers}
    network = user_code.call(path, arguments, user_code.instance_of(Network), "a paceline.Network")
    who = user_code.format_call(path, arguments)
    with user_code.report_errors(f"a look at the network that {who} returned"):
        why = _find_mistake(network, workers)
    if why:
        place = user_code.format_place(user_code.load_object(path))
        raise InputError(f"{who} returned a network {why}{place}")
    return network


def _find_mistake(network: Network, workers: int) -> str:
    """Mistake in a user's network, as the end of a sentence; "" where there is none."""
    if network.num_hosts != workers:
        return f"of {network.num_hosts} hosts, not {workers}"
    for host, site in enumerate(network.site_of):
        if site not in range(len(network.sites)):
            return f"whose host {host} is at site {shorten(site)}, of {len(network.sites)}"
    for link in network.links:
        if not _is_number(link.bandwidth_bytes_per_s, MIN_RATE):
            return f"whose link {quote(link.name)} carries {_no_rate(link.bandwidth_bytes_per_s)}"
    if network.node_of and len(network.node_of) != workers:
        return f"that names the nodes of {len(network.node_of)} hosts, not {workers}"
    return _find_mistake_on_routes(network, workers)


def _find_mistake_on_routes(network: Network, workers: int) -> str:
    sites, links, routes = range(len(network.sites)), range(len(network.links)), network.routes.values()
    inside = (network.inner_up, network.inner_down)
    by_place = (network.up, network.down, network.pipe, network.leave, network.enter, *inside)
    crossed = [index for each in by_place for index in each.values()]
    for index in (*crossed, *(index for route in routes for index in route.links)):
        if index not in links:
            return f"with a route over link {shorten(index)}, of {len(links)}"
    hosts = {*network.up, *network.down, *network.inner_up, *network.inner_down, *chain(*network.routes)}
    for host in hosts.difference(range(workers)):
        return f"with a link of host {shorten(host)}, of {workers}"
    for site in {*network.leave, *network.enter, *chain(*network.pipe)}.difference(sites):
        return f"with a link of site {shorten(site)}, of {len(sites)}"
    # Routes that follow from the sites are not checked one by one: of many workers there are too many.
    pairs = [(route.latency_s, route.per_flow_bytes_per_s) for route in routes]
    if len(pairs) < workers * (workers - 1):
        every = product(sites, sites)
        pairs += [(network.latency_s[a][b], network.per_flow_bytes_per_s[a][b]) for a, b in every]
    for latency_s, per_flow in pairs:
        if not _is_number(latency_s, 0.0, MAX_TIME_S):
            return f"with a latency of {shorten(latency_s)}, not a number of seconds from 0 to {MAX_TIME_S:g}"
        if not _is_number(per_flow, MIN_RATE):
            return f"in which a connection gets {_no_rate(per_flow)}"
    return ""


def _no_rate(value: object) -> str:
    return f"{shorten(value)} bytes per second; it must be a number from {MIN_RATE:g}, which is 1 bit/s"


def _is_number(value: object, least: float, most: float = math.inf) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most


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
    sites, inside = settings.sites or {"all": workers}, settings.within or settings
    if sum(sites.values()) != workers:
        raise InputError(f"the sites hold {sum(sites.values())} workers, not {workers}")

    names = tuple(sites)
    links: list[Link] = []

    def add(name: str, bandwidth_bytes_per_s: float) -> int:
        links.append(Link(name, bandwidth_bytes_per_s))
        return len(links) - 1

    up, down = dict[int, int](), dict[int, int]()
    gpus = settings.gpus
    if inside.bandwidth is not None:
        for host in range(workers // gpus):
            card = add(f"host{host} up", inside.bandwidth if inside.upload is None else inside.upload)
            way_in = add(f"host{host} down", inside.bandwidth)
            for worker in range(host * gpus, (host + 1) * gpus):
                up[worker], down[worker] = card, way_in

    pipes = settings.of_pairs("bandwidth")
    pipe = {(names.index(a), names.index(b)): add(f"{a}->{b}", rate) for (a, b), rate in pipes.items()}
    leave, enter = dict[int, int](), dict[int, int]()
    for site, name in enumerate(names):
        if name in settings.uplink:
            leave[site] = add(f"{name} out", settings.uplink[name])
            enter[site] = add(f"{name} in", settings.uplink[name])

    latencies, caps = settings.of_pairs("latency"), settings.of_pairs("per_flow")
    inside_s = inside.latency or 0.0
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
