"""Routes between many pairs of hosts at once, in arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..seeds import Floats, Integers
from .network import Network, Route
from .transfer import TransferModel


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
