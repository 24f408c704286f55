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
    """Routes as arrays, one a row: the fields of ``Route``.

    Attributes:
        links: [routes, most links of one] indices into ``Network.links``; -1: none.
        latency_s, per_flow_bytes_per_s: [routes].
    """

    links: Integers
    latency_s: Floats
    per_flow_bytes_per_s: Floats

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
    latency_s, cap = between.latency_s[kind], between.per_flow_bytes_per_s[kind]
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


@dataclass(frozen=True, eq=False)
class PairRoutes:
    """Routes of a collective.

    Attributes:
        links: [pairs, most links of one] links crossed by each pair; -1: none.
        bytes_per_s, latency_s: [pairs] of a message without others.
        most_pairs: number of pairs on the busiest link.
        access_only: only access links of the members' hosts are used, not shared with other hosts.
        separate: only access links, each of one member's host alone, are used.
    """

    links: Integers
    bytes_per_s: Floats
    latency_s: Floats
    most_pairs: int
    access_only: bool
    separate: bool


def route_pairs(
    sources: Integers, destinations: Integers, members: tuple[int, ...], model: TransferModel
) -> PairRoutes:
    """Look up the routes of distinct pairs of ranks [pairs]; rank i is the host ``members[i]``."""
    network, hosts = model.network, np.array(members)
    routes = find_routes(network, hosts[sources], hosts[destinations])
    bandwidths = np.array([*(link.bandwidth_bytes_per_s for link in network.links), np.inf])  # -1: no link
    alone = np.minimum(routes.per_flow_bytes_per_s, bandwidths[routes.links].min(axis=1, initial=np.inf))
    used = np.bincount(routes.links[routes.links >= 0], minlength=len(network.links))
    taking_part = set(members)
    owners = [network.own_links.get(each, frozenset()) for each in np.flatnonzero(used).tolist()]
    return PairRoutes(
        links=routes.links,
        bytes_per_s=model.efficiency * alone,
        latency_s=routes.latency_s + model.added_latency_s,
        most_pairs=int(used.max(initial=0)),
        access_only=all(each and each <= taking_part for each in owners),
        separate=all(len(each) == 1 and each <= taking_part for each in owners),
    )
