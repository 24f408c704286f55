"""The algorithm of a collective that is the fastest by itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

from ..collectives.collective import Collective
from ..collectives.hierarchy import Sites
from ..collectives.pipelines import least_latencies
from ..collectives.symmetric import alone_s, symmetric_rounds
from ..network.transfer import TransferModel
from .placing import place, price_s

_HIERARCHICAL: Final = "hierarchical"

MAX_FLOWS: Final = 20_000
"""A collective of more blocks that share links with each other is not priced where another one is."""

_prices: dict[tuple[Any, ...], str] = {}
"""Choices of this process: networks are built anew for each run."""


def fastest(
    algorithms: Mapping[str, Callable[[Sites, int], Collective]],
    sites: Sites,
    num_bytes: int,
    members: tuple[int, ...],
    model: TransferModel,
) -> str:
    """The name of the algorithm that ``price_s`` says is the fastest by itself; of equals the first.

    By itself is on tuned hosts with fair queues, as if all members joined at once: a guess where a scheme is
    followed to choose among algorithms (``experiments.costs.choice``).

    Args:
        algorithms: that do the same; what is made of sites does not count where there is one only.
        sites: how many members there are in each site, in the order of ``members``.
        num_bytes: of the payload.
        members: hosts.
        model: of which the steady part counts.
    """
    network = model.network
    pairs = ((a, b) for a in members for b in members if a != b)
    routes = tuple(network.route(*pair) for pair in pairs) if network.routes else ()
    key = (
        tuple(algorithms.values()), sites, num_bytes, members, network.site_of, network.latency_s,
        network.per_flow_bytes_per_s, tuple(link.bandwidth_bytes_per_s for link in network.links),
        tuple(network.up.items()), tuple(network.down.items()), tuple(network.pipe.items()),
        tuple(network.leave.items()), tuple(network.enter.items()), routes, network.node_of,
        tuple(network.inner_up.items()), tuple(network.inner_down.items()), network.inner_latency_s,
        model.sharing, model.block_overhead_s, model.added_latency_s, model.efficiency,
    )  # fmt: skip
    if key not in _prices:
        plain = replace(model, network=network.steady, queue="fair", tcp=None)
        links = plain.equal_links if len(members) == network.num_hosts else None
        rounds = None if links is None else symmetric_rounds(sites, num_bytes, links)
        if rounds is not None and _HIERARCHICAL in algorithms:  # before what would take long to price
            algorithms = {_HIERARCHICAL: algorithms[_HIERARCHICAL], **algorithms}
        hops = [network.route(a, b).latency_s for a, b in pairwise([*members, members[0]]) if a != b]
        best, best_s = "", math.inf
        names = list(algorithms)
        for name in sorted(names, key=lambda each: least_latencies(each, sites)):
            if least_latencies(name, sites) * min(hops, default=0.0) > best_s:
                continue
            if name == _HIERARCHICAL and links is not None and rounds is not None:
                took_s = alone_s(rounds, links, plain.block_overhead_s)
            else:
                placed = place(algorithms[name](sites, num_bytes), members, plain)
                if best and not placed.own_links and placed.messages > MAX_FLOWS:
                    continue
                took_s = price_s(placed)
            if took_s < best_s or (took_s == best_s and names.index(name) < names.index(best)):
                best, best_s = name, took_s
        _prices[key] = best
    return _prices[key]
