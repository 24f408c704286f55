"""Nominal network: hosts, sites, links, routes, and the bytes that they carry. Numbers only, no behaviour."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import permutations

from ..jitter import Jitter
from .forms import Variation


@dataclass(frozen=True)
class Link:
    """One direction of one link; its bandwidth is shared by the transfers that cross it.

    Attributes:
        name: such as ``host3 up`` or ``us->eu``.
        bandwidth_bytes_per_s: nominal.
        variation: of the bandwidth in time; None: none.
    """

    name: str
    bandwidth_bytes_per_s: float
    variation: Variation | None = None


@dataclass(frozen=True)
class Route:
    """Route of a transfer from one host to another.

    Attributes:
        links: indices into ``Network.links``, in the order in which they are crossed.
        latency_s: one-way latency, end to end.
        per_flow_bytes_per_s: limit of the connections of two hosts together (``inf`` if nothing limits it).
    """

    links: tuple[int, ...]
    latency_s: float
    per_flow_bytes_per_s: float


@dataclass(frozen=True)
class Network:
    """Hosts in sites. One host per worker, host i is worker i.

    A transfer crosses its host's access link (``up``), between sites the source site's uplink
    outward if it has one, the pipe of that ordered pair of sites and the other site's uplink inward,
    and the destination's access link (``down``). A missing or unlimited link is left out of the route.

    If workers are the GPUs of larger machines, ``node_of`` gives the machines: workers of a node share its
    network card as access link, and between them a transfer crosses links inside the node alone.

    Two sites with one limited pipe, from the first to the second:

    >>> free = float("inf")
    >>> network = Network(
    ...     sites=("us", "eu"),
    ...     site_of=(0, 0, 1),
    ...     links=(Link("us->eu", bandwidth_bytes_per_s=1.25e8),),
    ...     pipe={(0, 1): 0},
    ...     latency_s=((0.0001, 0.04), (0.04, 0.0001)),
    ...     per_flow_bytes_per_s=((free, free), (free, free)),
    ... )
    >>> network.route(1, 2)
    Route(links=(0,), latency_s=0.04, per_flow_bytes_per_s=inf)
    >>> network.route(2, 1).links
    ()

    Attributes:
        sites: names, in order.
        site_of: ``site_of[host]`` is an index into ``sites``.
        links: every link that has a finite bandwidth.
        up, down: host -> link index, for hosts with a finite access link.
        pipe: (source site, destination site) -> link index.
        leave, enter: site -> link index of its uplink, outward and inward.
        routes: (source, destination) -> route, if not implied by the sites: in a graph. Between nodes, if
            there are any.
        node_of: ``node_of[host]`` is the number of its node, ascending; empty: every host is one.
        inner_up, inner_down: host -> link index, for hosts with a finite link inside their node.
        inner_latency_s: one-way latency between two hosts of a node.
        jitter: of a message's latency around that of its route; None: none.
        latency_s: one-way latency [site, site], end to end between hosts; the diagonal is within a site.
        per_flow_bytes_per_s: cap on the connections of two hosts [site, site], as of a ``Route``.
    """

    sites: tuple[str, ...]
    site_of: tuple[int, ...]
    links: tuple[Link, ...]
    latency_s: tuple[tuple[float, ...], ...]
    per_flow_bytes_per_s: tuple[tuple[float, ...], ...]
    up: Mapping[int, int] = field(default_factory=dict)
    down: Mapping[int, int] = field(default_factory=dict)
    pipe: Mapping[tuple[int, int], int] = field(default_factory=dict)
    leave: Mapping[int, int] = field(default_factory=dict)
    enter: Mapping[int, int] = field(default_factory=dict)
    routes: Mapping[tuple[int, int], Route] = field(default_factory=dict)
    jitter: Jitter | None = None
    node_of: tuple[int, ...] = ()
    inner_up: Mapping[int, int] = field(default_factory=dict)
    inner_down: Mapping[int, int] = field(default_factory=dict)
    inner_latency_s: float = 0.0

    @property
    def num_hosts(self) -> int:
        """Number of hosts."""
        return len(self.site_of)

    @cached_property
    def varies(self) -> bool:
        """Whether anything of it changes in time."""
        return self.jitter is not None or any(link.variation is not None for link in self.links)

    @cached_property
    def steady(self) -> Network:
        """The network without jitter, and with every link at its nominal bandwidth."""
        if not self.varies:
            return self
        return replace(self, jitter=None, links=tuple(replace(link, variation=None) for link in self.links))

    def among(self, hosts: Sequence[int]) -> Network:
        """The network of these hosts alone, which are 0, 1, ... in it; links and sites stay as they are."""

        def of(links: Mapping[int, int]) -> dict[int, int]:
            return {place: links[host] for place, host in enumerate(hosts) if host in links}

        pairs = permutations(enumerate(hosts), 2)
        return replace(
            self,
            site_of=tuple(self.site_of[host] for host in hosts),
            node_of=tuple(self.node_of[host] for host in hosts) if self.node_of else (),
            up=of(self.up),
            down=of(self.down),
            inner_up=of(self.inner_up),
            inner_down=of(self.inner_down),
            routes=self.routes
            if self.node_of or not self.routes
            else {(i, j): self.routes[a, b] for (i, a), (j, b) in pairs},
        )

    @cached_property
    def nodes(self) -> tuple[int, ...]:
        """Node of each host; the host itself where there are no nodes."""
        return self.node_of or tuple(range(self.num_hosts))

    def same_node(self, source: int, destination: int) -> bool:
        """Whether two hosts are GPUs of one node."""
        return bool(self.node_of) and self.node_of[source] == self.node_of[destination]

    @cached_property
    def _routes(self) -> dict[tuple[int, int], Route]:
        return {} if self.node_of else dict(self.routes)

    def route(self, source: int, destination: int) -> Route:
        """Route between two different hosts."""
        route = self._routes.get((source, destination))
        if route is None:
            route = self._routes[source, destination] = self._find_route(source, destination)
        return route

    def farthest_s(self, host: int) -> float:
        """Latency of the longest route from ``host``, one way."""
        others = (other for other in range(self.num_hosts) if other != host)
        return max((self.route(host, other).latency_s for other in others), default=0.0)

    def _find_route(self, source: int, destination: int) -> Route:
        if self.same_node(source, destination):
            inside = (self.inner_up.get(source), self.inner_down.get(destination))
            return Route(tuple(link for link in inside if link is not None), self.inner_latency_s, math.inf)
        if self.node_of and self.routes:
            return self.routes[self.node_of[source], self.node_of[destination]]
        between = self.between_sites(self.site_of[source], self.site_of[destination])
        crossed = (self.up.get(source), *between.links, self.down.get(destination))
        return replace(between, links=tuple(link for link in crossed if link is not None))

    def between_sites(self, source: int, destination: int) -> Route:
        """Route from a site to another or to itself, without its hosts' access links; not in a graph."""
        crossed: list[int | None] = []
        if source != destination:
            crossed = [
                self.leave.get(source), self.pipe.get((source, destination)), self.enter.get(destination)
            ]  # fmt: skip
        return Route(
            links=tuple(link for link in crossed if link is not None),
            latency_s=self.latency_s[source][destination],
            per_flow_bytes_per_s=self.per_flow_bytes_per_s[source][destination],
        )

    @cached_property
    def own_links(self) -> Mapping[int, frozenset[int]]:
        """Link -> hosts that have it as access link, or as link inside their node."""
        owners: dict[int, set[int]] = {}
        for ways in (self.up, self.down, self.inner_up, self.inner_down):
            for host, link in ways.items():
                owners.setdefault(link, set()).add(host)
        return {link: frozenset(hosts) for link, hosts in owners.items()}


def free_network(hosts: int) -> Network:
    """Network on which nothing takes time: for real messages, and to time computations alone."""
    return Network(("all",), (0,) * hosts, (), ((0.0,),), ((float("inf"),),))


def rate_of(network: Network, route: Route) -> float:
    """Nominal bytes per second of one connection alone: those of the slowest link, or its own limit."""
    return min([route.per_flow_bytes_per_s, *(network.links[k].bandwidth_bytes_per_s for k in route.links)])


def bytes_carried(
    network: Network, sent: Iterable[Mapping[int, int]]
) -> tuple[dict[str, dict[str, int]], dict[str, int]]:
    """Bytes from each site to each (empty for one site), and on each link but the hosts' own.

    ``sent``: receiver -> bytes, for each host.
    """
    sites, own = range(len(network.sites)), network.own_links
    between, on_links = [[0] * len(sites) for _ in sites], [0] * len(network.links)
    for source, sends in enumerate(sent):
        row = between[network.site_of[source]]
        for destination, num_bytes in sends.items():
            row[network.site_of[destination]] += num_bytes
            for link in network.route(source, destination).links if network.routes else ():
                on_links[link] += num_bytes
    pairs = [(a, b) for a in sites for b in sites if a != b and not network.routes]
    for a, b in pairs:
        for link in network.between_sites(a, b).links:
            on_links[link] += between[a][b]
    names = network.sites if len(sites) > 1 else ()
    return (
        {name: dict(zip(names, row, strict=True)) for name, row in zip(names, between, strict=False)},
        {network.links[k].name: count for k, count in enumerate(on_links) if k not in own},
    )


def shares_on_links(network: Network, sent: Iterable[Mapping[int, int]]) -> dict[Link, float]:
    """Part of all bytes that crosses each link; ``sent`` as in ``bytes_carried``."""
    on_links: Counter[int] = Counter()
    whole = 0
    for source, sends in enumerate(sent):
        for destination, num_bytes in sends.items():
            whole += num_bytes
            for link in network.route(source, destination).links:
                on_links[link] += num_bytes
    return {network.links[index]: count / whole for index, count in on_links.items()}
