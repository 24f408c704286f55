"""Costs of a transfer beside its bytes, and routes between many pairs of hosts at once, in arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..collectives.pipelines import NEWEST_NCCL, NcclHosts
from ..seeds import Floats, Integers
from .network import Network, Route, rate_of
from .stock_tcp import TcpSettings


@dataclass(frozen=True)
class TransferModel:
    """Model of message transfers: the nominal cluster, and factors that correct it.

    The defaults are neutral. A calibration fits them to one kind of cluster and software.

    Attributes:
        network: hosts, links, routes.
        sharing: ``max_min``: transfers share every link on their route fairly; ``rtt``: so, but weighted by
            one over the round trip; ``none``: each has its links alone.
        overhead_s: software overhead before a transfer's bytes leave.
        announcement: cost of the receiver's announcement, as a factor on the route's latency. If not 0, a
            receive from anybody is announced to a sender only when it has heard of that sender.
        added_latency_s: of hosts and switches, for every message and announcement.
        efficiency: share of the nominal bandwidth that the payload gets.
        streams: messages from one host to another, and announcements, share one stream of bytes, first come
            first served (one TCP connection); False: they overtake each other. Not where each is alone.
        buffer_bytes: of the sender's socket: a send is complete when no more bytes of its stream than this
            have still to leave; 0: when its last byte has left.
        copy_s_per_byte: of handing bytes to the socket.
        device_copy_s_per_byte: of copying a point-to-point message from one device and to another.
        plain_patterns: mixes and collectives do not go the way of messages, but as if nothing above were set,
            with ``pattern_overhead_s`` for ``overhead_s``.
        launch_s: from joining a collective whose receives are posted ahead until its blocks can leave.
        connect_s: from joining a group's first collective until it begins.
        resume_s: from the end of an exchange until the coroutine resumes.
        late_s: from the end of a computation until the coroutine's next operation.
        wake_up_delays_s: instead of ``late_s``, values in the order of their measurement: a worker
            goes through them from one drawn at random on, and begins its run that late too.
        resume_jitter_s: equally likely deviations from ``resume_s``, of which each exchange draws one; it
            never ends before its transfers.
        uneven_s: equally likely extra times of a message on its hosts, relative to another, which give
            it less of links that both share; none: shares are even.
        uneven_s_per_byte: the same for each of its bytes, in addition; as many or none.
        seed: of the run, for latencies and bandwidths that vary at random, wake-up delays and uneven shares.
        queue: discipline of links: ``fair`` is as ``sharing`` says; ``fifo``: later bytes wait, in streams
            announcements too. Not where each is alone.
        tcp: of stock hosts; None: windows limit nothing, as on tuned ones. Not where each is alone.
        nccl: what NCCL knows of the hosts when it chooses an algorithm.
    """

    network: Network
    sharing: str = "max_min"
    overhead_s: float = 0.0
    announcement: float = 0.0
    added_latency_s: float = 0.0
    efficiency: float = 1.0
    streams: bool = False
    buffer_bytes: float = 0.0
    copy_s_per_byte: float = 0.0
    device_copy_s_per_byte: float = 0.0
    plain_patterns: bool = False
    pattern_overhead_s: float = 0.0
    launch_s: float = 0.0
    connect_s: float = 0.0
    resume_s: float = 0.0
    late_s: float = 0.0
    wake_up_delays_s: tuple[float, ...] = ()
    resume_jitter_s: tuple[float, ...] = ()
    uneven_s: tuple[float, ...] = ()
    uneven_s_per_byte: tuple[float, ...] = ()
    seed: int = 0
    queue: str = "fair"
    tcp: TcpSettings | None = None
    nccl: NcclHosts = NEWEST_NCCL

    @property
    def uneven(self) -> bool:
        """Whether messages get uneven shares of a link."""
        return bool(self.uneven_s or self.uneven_s_per_byte)

    @property
    def shares_evenly(self) -> bool:
        """Whether whole messages share links max-min fairly, without windows, queues or uneven shares."""
        return self.sharing == "max_min" and self.queue == "fair" and self.tcp is None and not self.uneven

    @property
    def bandwidths_bytes_per_s(self) -> list[float]:
        """Bandwidth of each link of the network, as payloads see it."""
        return [link.bandwidth_bytes_per_s * self.efficiency for link in self.network.links]

    def round_trip_s(self, source: int, destination: int) -> float:
        """Round trip between two hosts without jitter and queues."""
        there, back = self.network.route(source, destination), self.network.route(destination, source)
        return there.latency_s + back.latency_s + 2 * self.added_latency_s

    def alone_bytes_per_s(self, source: int, destination: int) -> float:
        """Rate of a message between two hosts that shares its links with no other."""
        return rate_of(self.network, self.network.route(source, destination)) * self.efficiency

    @property
    def block_overhead_s(self) -> float:
        """Software overhead of a mix, or of a block of a collective whose receives are posted ahead."""
        return self.pattern_overhead_s if self.plain_patterns else self.overhead_s


@dataclass(frozen=True, eq=False)
class RouteArrays:
    """Routes as arrays, one a row.

    Attributes:
        links: [routes, most links of one] indices into ``Network.links``; -1: none.
        latency_s: [routes] one way.
        bytes_per_s: [routes] most of one flow.
    """

    links: Integers
    latency_s: Floats
    bytes_per_s: Floats

    @classmethod
    def of(cls, routes: Sequence[Route]) -> RouteArrays:
        """Convert routes to arrays."""
        links = np.full((len(routes), max((len(route.links) for route in routes), default=0)), -1)
        for row, route in zip(links, routes, strict=True):
            row[: len(route.links)] = route.links
        return cls(
            links,
            np.array([route.latency_s for route in routes]),
            np.array([route.per_flow_bytes_per_s for route in routes]),
        )


def find_routes(network: Network, sources: Integers, destinations: Integers) -> RouteArrays:
    """``network.route`` for arrays of different hosts [pairs]."""
    if network.routes:
        pairs = zip(sources.tolist(), destinations.tolist(), strict=True)
        return RouteArrays.of([network.route(*pair) for pair in pairs])
    hosts, num_sites, site_of = network.num_hosts, len(network.sites), np.array(network.site_of)
    kinds, kind = np.unique(site_of[sources] * num_sites + site_of[destinations], return_inverse=True)
    between = RouteArrays.of([network.between_sites(*divmod(int(each), num_sites)) for each in kinds])
    latency_s, cap = between.latency_s[kind], between.bytes_per_s[kind]
    up, down = _of_hosts(network.up, hosts)[sources], _of_hosts(network.down, hosts)[destinations]
    links = np.column_stack([up, between.links[kind], down])
    if network.node_of:
        nodes = np.array(network.node_of)
        inside = nodes[sources] == nodes[destinations]
        links[inside] = -1
        links[inside, 0] = _of_hosts(network.inner_up, hosts)[sources[inside]]
        links[inside, -1] = _of_hosts(network.inner_down, hosts)[destinations[inside]]
        latency_s[inside], cap[inside] = network.inner_latency_s, np.inf
    return RouteArrays(links, latency_s, cap)


def _of_hosts(ways: Mapping[int, int], hosts: int) -> Integers:
    links = np.full(hosts, -1)
    links[list(ways)] = list(ways.values())
    return links


def route_pairs(
    sources: Integers, destinations: Integers, members: tuple[int, ...], model: TransferModel
) -> RouteArrays:
    """Routes of a lone message between pairs of ranks [pairs]; rank i is the host ``members[i]``."""
    network, hosts = model.network, np.array(members)
    routes = find_routes(network, hosts[sources], hosts[destinations])
    bandwidths = np.array([*(link.bandwidth_bytes_per_s for link in network.links), np.inf])  # -1: no link
    alone = np.minimum(routes.bytes_per_s, bandwidths[routes.links].min(axis=1, initial=np.inf))
    return RouteArrays(routes.links, routes.latency_s + model.added_latency_s, model.efficiency * alone)
