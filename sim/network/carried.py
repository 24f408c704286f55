"""Bytes of a run on the network: between sites, and on each link."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from .network import Link, Network


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
