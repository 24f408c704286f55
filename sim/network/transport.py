"""Transports: the rules of each library, its constants where there is no profile, and what a transfer costs.

Costs are those beside its bytes; routes between many pairs of hosts at once are arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

import numpy as np

from ..collectives.algorithm_registry import algorithms
from ..collectives.pipelines import NEWEST_NCCL, NcclHosts
from ..seeds import Floats, Integers
from .network import Network, Route, rate_of
from .network_settings import NetworkSettings, TcpSettings


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


AUTO_ALGORITHM: Final = "auto"
"""Leave the all-reduce to the transport."""


@dataclass(frozen=True)
class PackagedFactor:
    """A constant of a library, in SI units, and the interval of its observations."""

    value: float
    low: float
    high: float
    unit: str
    source: str


GLOO_FACTORS: Final[Mapping[str, PackagedFactor]] = MappingProxyType(
    {
        "overhead_s": PackagedFactor(
            1.35e-3,
            0.7e-3,
            1.5e-3,
            "s",
            "software per message or segment: four AWS hosts (six rows of "
            "benchmarks/board/netem_collectives); low: the lab (docs/validation.md)",
        ),
        "buffer_bytes": PackagedFactor(
            4.0 * 2**20, 2.5e6, 2.0**25, "bytes", "Linux: the largest send buffer that is not configured"
        ),
        "efficiency": PackagedFactor(
            0.997, 0.991, 1.0, "of the nominal bandwidth", "the lab (docs/validation.md)"
        ),
    }
)
"""Fields of ``TransferModel`` that hold for gloo on any hosts."""

DEVICE_COPY: Final = PackagedFactor(
    1 / 6e9, 1 / 12e9, 1 / 3e9, "s/byte", "PCIe 3 x16 between pageable host memory and a GPU, each way"
)
"""Cost of a point-to-point message of GPU workers at each end, since it goes over gloo."""

NCCL_LAUNCH: Final = PackagedFactor(
    20e-6,
    8.4e-6,
    60e-6,
    "s",
    "one more collective on one V100, by DDP's buckets of 1 MB and 25 MB: 10 us (ResNet-50, some 30 more) "
    "and 25 us (ResNet-101, some 80 more), pytorch/pytorch at bf69c14, benchmarks/distributed/ddp/README.md; "
    "low: NCCL's own base latency, NVIDIA/nccl at 5067397, src/graph/tuning.cc; high: all that 128 bytes "
    "take on two hosts of H100s, issue 1453 of NVIDIA/nccl",
)
"""Time to launch a collective over NCCL: its kernel, and the proxies of the network."""

NCCL_CONNECT: Final = PackagedFactor(
    0.4, 0.33, 0.52, "s", "first all-reduce of a process against its later ones, four hosts over TCP, "
    "Adnan082/diloco-measured at 07b7885, results/raw",
)  # fmt: skip
"""Time in which a communicator of NCCL connects, at its first collective; counted by ``network.connect``."""


def nccl_hosts(settings: NetworkSettings, network: Network) -> NcclHosts:
    """What decides NCCL's choice on these hosts; their cards have the rate of their access links."""
    known = NEWEST_NCCL
    if settings.nccl is not None:
        known = known._replace(version=tuple(map(int, settings.nccl.split("."))))
    if settings.host is not None and settings.host.bandwidth is not None:
        known = known._replace(inside_bytes_per_s=settings.host.bandwidth)
    routes = (route.links[0] for route in network.routes.values() if route.links)
    rates = [network.links[link].bandwidth_bytes_per_s for link in network.up.values() or routes]
    return known._replace(card_bytes_per_s=min(rates, default=known.card_bytes_per_s))


DDP_SHARE: Final = PackagedFactor(
    0.03,
    0.014,
    0.056,
    "of a gradient's duration",
    "one GPU with DDP and without: ResNet-50 3.1 %, ResNet-101 5.6 %, ResNeXt-50 1.4 %, ResNeXt-101 2.4 %, "
    "pytorch/pytorch at bf69c14, benchmarks/distributed/ddp/README.md (V100, batches of 32)",
)
"""Cost of averaging gradients on a GPU itself: hooks of the backward pass, copies to and from buckets."""


@dataclass(frozen=True)
class TransportRules:
    """Rules of one library.

    Attributes:
        name: as scenarios spell it; empty: versions before there were transports.
        gloo_messages: messages are gloo's: streams, announcements, its constants.
        nccl_collectives: collectives are NCCL's, chosen by size and number of ranks; a worker's go one after
            another, mixes too, and its point-to-point messages are copied from and to devices.
        averaging_share: cost of averaging gradients, as a share of a gradient's duration.
    """

    name: str
    gloo_messages: bool = False
    nccl_collectives: bool = False
    averaging_share: float = 0.0

    @property
    def all_reduces(self) -> tuple[str, ...]:
        """The all-reduces that it can be made to use."""
        return tuple(algorithms("all_reduce", self.name, True))

    @property
    def choices(self) -> tuple[str, ...]:
        """The all-reduces that ``auto`` chooses among; one alone is always taken."""
        return tuple(algorithms("all_reduce", self.name))

    @property
    def by_price(self) -> bool:
        """Whether the algorithm is chosen by its price on the cluster."""
        return len(self.choices) > 1 and not self.nccl_collectives

    def transfer(self, model: TransferModel) -> TransferModel:
        """Apply this library's rules for messages, and its packaged constants, to ``model``."""
        if not self.gloo_messages:
            return model
        factors = GLOO_FACTORS
        return replace(
            model,
            plain_patterns=self.nccl_collectives,
            pattern_overhead_s=model.overhead_s,
            overhead_s=model.overhead_s + factors["overhead_s"].value,
            announcement=max(model.announcement, 1.0),
            streams=True,
            buffer_bytes=factors["buffer_bytes"].value,
            efficiency=model.efficiency if self.nccl_collectives else factors["efficiency"].value,
            device_copy_s_per_byte=2 * DEVICE_COPY.value if self.nccl_collectives else 0.0,
            launch_s=NCCL_LAUNCH.value if self.nccl_collectives else 0.0,
        )


TRANSPORTS: Final[Mapping[str | None, TransportRules]] = MappingProxyType(
    {
        None: TransportRules(""),
        "ideal": TransportRules("ideal"),
        "gloo": TransportRules("gloo", gloo_messages=True),
        "nccl": TransportRules(
            "nccl", gloo_messages=True, nccl_collectives=True, averaging_share=DDP_SHARE.value
        ),
    }
)
"""Rules by name in the scenario; None: a result folder of a version before there were transports."""
