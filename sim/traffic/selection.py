"""The choice of a collective's algorithm, and the order of its members' hosts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, Final

from ..collectives.algorithm_registry import Algorithm, Builder, algorithms, posted, users_all_reduce
from ..collectives.algorithms import Sites, host_sizes
from ..collectives.collective import Collective
from ..collectives.pipelines import least_latencies, nccl_choice
from ..config.units import format_seconds
from ..config.user_code.call import is_import_path
from ..network.transport import AUTO_ALGORITHM, TransferModel, TransportRules
from ..program import operations as ops
from ..program.averaging import root_of
from ..program.encoding import Encoded, message_bytes, shard_bytes
from .placing import place, price_s

BY_PRICE: Final = "fastest_for_each"
"""Choose the algorithm that ``fastest`` finds for a collective's size and group."""

MAX_FLOWS: Final = 20_000
"""Most blocks sharing links of a collective that is priced where an alternative exists."""

MAX_COMPARED: Final = 32
"""Most members of an all-reduce that is priced by the algorithm that was not taken, too."""

Payloads = dict[tuple[tuple[int, ...], Sites, int], str]
"""Members site by site, members per site, and bytes of their payload -> the algorithm."""

_prices: dict[tuple[Any, ...], str] = {}
"""Choices of this process: networks are built anew for each run."""


@dataclass(frozen=True, eq=False)
class Algorithms:
    """The algorithms of one scheme's collectives, where there is a choice.

    Purposes are ``all_reduce``, ``shares`` (reduce-scatters and all-gathers) or ``broadcast``.

    Attributes:
        names: purpose -> the algorithm, or ``BY_PRICE``, as for absent ones.
        taken: purpose -> the algorithms used so far.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    taken: dict[str, Payloads] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Choice:
    """The algorithms of a job's collectives.

    Attributes:
        transport: of the collectives.
        all_reduce: the algorithm of all-reduces, or a user's function; ``auto``: the transport's choice.
        chosen: meaning of ``auto``.
        model: how messages travel; ``auto`` is priced on its steady network.
        bytes_per_parameter: on the wire.
    """

    transport: TransportRules
    all_reduce: str
    chosen: Algorithms
    model: TransferModel
    bytes_per_parameter: float

    def collective_of(
        self, operation: ops.Operation[Any], members: tuple[int, ...], rank: int
    ) -> tuple[Collective, tuple[int, ...]]:
        """A collective among ``members``, and its members in the order of its ranks.

        Raises ``SchemeError`` if the root of a broadcast is not one of them.
        """
        what, num_bytes = self._payload(operation, len(members))
        order, sites = self.by_site(members)
        if what not in ("all_reduce", "broadcast") and self.model.network.routes:
            sites = (1,) * len(order)  # in a graph any two members may have links of their own
        algorithm = self._algorithm(what, order, sites, num_bytes)
        if not algorithm.by_site:
            order = members
        if isinstance(operation, ops.Broadcast):
            first = order.index(root_of(operation, rank, members))
            order = order[first:] + order[:first]
        return algorithm.build(sites, num_bytes), order

    def name_of_all_reduce(self, members: tuple[int, ...], num_bytes: int) -> str:
        """Name of the algorithm of an all-reduce among ``members``."""
        return self._algorithm("all_reduce", *self.by_site(members), num_bytes).name

    def assumed(self, members: tuple[int, ...], num_bytes: int) -> str | None:
        """What NCCL's choice for an all-reduce between two hosts rests on; None: it is no such choice.

        Says what the algorithm not taken would take, if that differs by over 10 %.
        """
        order, sites = self.by_site(members)
        if not (self.transport.nccl_collectives and len(host_sizes(sites)) == 2 < len(order)):
            return None
        taken, where = self.name_of_all_reduce(members, num_bytes), "network.nccl, network.host.bandwidth"
        text = f"{taken} by the rule of NCCL {self.model.nccl.era} inside hosts ({where})"
        if len(order) <= MAX_COMPARED:
            plain = replace(self.model, network=self.model.network.steady, queue="fair", tcp=None)
            builders = self.candidates("all_reduce").items()
            took_s = {name: price_s(place(build(sites, num_bytes), order, plain)) for name, build in builders}
            best_s, ((other, other_s),) = took_s.pop(taken), took_s.items()
            if abs(other_s - best_s) > 0.1 * best_s:
                text += f"; a model takes {format_seconds(best_s)}, by {other} {format_seconds(other_s)}"
        return text.replace("_", " ")

    def candidates(self, what: str) -> dict[str, Builder]:
        """The algorithms from which ``auto`` chooses, by name."""
        return {name: each.build for name, each in algorithms(what, self._library).items()}

    def by_site(self, members: tuple[int, ...]) -> tuple[tuple[int, ...], Sites]:
        """``members`` sorted by site, and how many each site, or each node of a site, has."""
        network = self.model.network  # a user's may have lists
        return _sort_by_site(members, tuple(network.site_of), tuple(network.nodes))

    @cached_property
    def _library(self) -> str:
        """The transport; older result folders name gloo by its ring alone."""
        return "gloo" if self.all_reduce == "gloo_ring" and not self.transport.name else self.transport.name

    def _payload(self, operation: ops.Operation[Any], n: int) -> tuple[str, int]:
        match operation:
            case ops.AllReduce(value=value, wide=wide):
                return "all_reduce", message_bytes(value, (1 + wide) * self.bytes_per_parameter)
            case ops.Broadcast(value=value):
                return "broadcast", message_bytes(value, self.bytes_per_parameter)
            case ops.ReduceScatter(value=value, wide=wide):
                what = "scatter" if isinstance(value, Encoded) else "reduce_scatter"
                return what, message_bytes(value, (1 + wide) * self.bytes_per_parameter)
            case ops.AllGather(value=value):
                return "all_gather", n * value.numel() * value.element_size()
            case ops.AllGatherShards(value=value, length=length):
                if isinstance(value, Encoded) or self._library == "gloo":  # gloo pads shards
                    return "all_gather", n * shard_bytes(value, length, n, self.bytes_per_parameter)
                return "all_gather", round(length * self.bytes_per_parameter)
        return "barrier", 0

    def _algorithm(self, what: str, order: tuple[int, ...], sites: Sites, num_bytes: int) -> Algorithm:
        if what == "all_reduce" and is_import_path(self.all_reduce):
            return posted(what, self.all_reduce, users_all_reduce(self.all_reduce), ())
        if what == "all_reduce" and self.all_reduce != AUTO_ALGORITHM:
            return algorithms(what, self._library, named=True)[self.all_reduce]
        candidates = algorithms(what, self._library)
        if len(candidates) == 1:
            return next(iter(candidates.values()))
        if self.transport.nccl_collectives:
            return candidates[nccl_choice(sites, num_bytes, self.model.nccl)]
        return candidates[self._take(what, order, sites, num_bytes)]

    def _take(self, what: str, order: tuple[int, ...], sites: Sites, num_bytes: int) -> str:
        what = "shares" if what in ("reduce_scatter", "all_gather") else what
        taken, key = self.chosen.taken.setdefault(what, {}), (order, sites, num_bytes)
        if key not in taken:
            name = self.chosen.names.get(what, BY_PRICE)
            if name == BY_PRICE:
                name = fastest(self.candidates(what), sites, num_bytes, order, self.model)
            taken[key] = name
        return taken[key]


@lru_cache(maxsize=64)
def _sort_by_site(
    members: tuple[int, ...], site_of: tuple[int, ...], nodes: tuple[int, ...]
) -> tuple[tuple[int, ...], Sites]:
    order = tuple(sorted(members, key=lambda host: (site_of[host], nodes[host], host)))
    in_nodes: dict[int, Counter[int]] = {}
    for host in order:
        in_nodes.setdefault(site_of[host], Counter())[nodes[host]] += 1
    if all(max(of_site.values()) == 1 for of_site in in_nodes.values()):
        return order, tuple(of_site.total() for of_site in in_nodes.values())
    return order, tuple(tuple(of_site.values()) for of_site in in_nodes.values())


def fastest(
    candidates: Mapping[str, Builder],
    sites: Sites,
    num_bytes: int,
    members: tuple[int, ...],
    model: TransferModel,
) -> str:
    """Name of the algorithm that is fastest alone by ``price_s``; of equals the first.

    Priced on tuned hosts with fair queues, as if all members joined at once: a guess where a scheme is
    simulated to choose among them (``experiments.choice``). ``candidates``: for one purpose, by name; those
    made for sites do not count where there is only one. ``sites``: members per site, in the order of
    ``members``.
    """
    network = model.network
    pairs = ((a, b) for a in members for b in members if a != b)
    routes = tuple(network.route(*pair) for pair in pairs) if network.routes else ()
    key = (
        tuple(candidates.values()), sites, num_bytes, members, network.site_of, network.latency_s,
        network.per_flow_bytes_per_s, tuple(link.bandwidth_bytes_per_s for link in network.links),
        tuple(network.up.items()), tuple(network.down.items()), tuple(network.pipe.items()),
        tuple(network.leave.items()), tuple(network.enter.items()), routes, network.node_of,
        tuple(network.inner_up.items()), tuple(network.inner_down.items()), network.inner_latency_s,
        model.sharing, model.block_overhead_s, model.added_latency_s, model.efficiency,
    )  # fmt: skip
    if key not in _prices:
        plain = replace(model, network=network.steady, queue="fair", tcp=None)
        hops = [network.route(a, b).latency_s for a, b in pairwise([*members, members[0]]) if a != b]
        best, best_s = "", math.inf
        names = list(candidates)
        for name in sorted(names, key=lambda each: least_latencies(each, sites)):
            least = least_latencies(name, sites)
            if math.isinf(least) or least * min(hops, default=0.0) > best_s:
                continue
            placed = place(candidates[name](sites, num_bytes), members, plain)
            if best and placed.num_flows > MAX_FLOWS:
                continue
            took_s = price_s(placed)
            if took_s < best_s or (took_s == best_s and names.index(name) < names.index(best)):
                best, best_s = name, took_s
        _prices[key] = best
    return _prices[key]
