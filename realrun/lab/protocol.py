"""What crosses the pipes between a lab and its switch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

from paceline.sim.errors import InputError
from paceline.sim.jitter import Jitter
from paceline.sim.network.network import Link, Network
from paceline.sim.network.settings import Variation

from .queues import Path

Discipline = Literal["fair", "fifo"]


@dataclass(frozen=True, slots=True)
class Forwarding:
    """How packets go.

    Attributes:
        queue: the discipline of every link.
        bandwidth_bytes_per_s: of each link.
        routes: (source host, destination host) -> path and one-way latency in seconds.
        jitter: how latencies vary once a run has started.
        variation: (link, how its bandwidth changes then).
    """

    queue: Discipline
    bandwidth_bytes_per_s: tuple[float, ...]
    routes: dict[tuple[int, int], tuple[Path, float]]
    jitter: Jitter | None = None
    variation: tuple[tuple[int, Variation], ...] = ()

    @property
    def links(self) -> tuple[Link, ...]:
        """The links, for what changes on them."""
        varying = dict(self.variation)
        return tuple(
            Link(str(number), bandwidth, varying.get(number))
            for number, bandwidth in enumerate(self.bandwidth_bytes_per_s)
        )


def plan_of(network: Network, queue: Discipline) -> Forwarding:
    """Spell out all routes of ``network``.

    Raises:
        InputError: it has something that the switch cannot do.
    """
    variation = tuple(
        (number, link.variation) for number, link in enumerate(network.links) if link.variation is not None
    )
    if variation and queue == "fifo":
        raise InputError(
            "the lab's first-in-first-out links cannot change their bandwidth: they settle when a packet is "
            "through as soon as it comes; use lab.queue: fair, or leave cluster.network.variation out"
        )
    routes = {}
    for source in range(network.num_hosts):
        for destination in range(network.num_hosts):
            if source != destination:
                route = network.route(source, destination)
                path = Path(route.links, route.per_flow_bytes_per_s)
                routes[source, destination] = (path, route.latency_s)
    bandwidths = tuple(link.bandwidth_bytes_per_s for link in network.links)
    return Forwarding(queue, bandwidths, routes, network.jitter, variation)


def to_json(plan: Forwarding) -> str:
    """One line of JSON (with ``Infinity``, which Python reads back)."""
    routes = [
        [source, destination, path.links, path.cap_bytes_per_s, latency_s]
        for (source, destination), (path, latency_s) in plan.routes.items()
    ]
    written = {
        "queue": plan.queue,
        "bandwidth": plan.bandwidth_bytes_per_s,
        "routes": routes,
        "jitter": None if plan.jitter is None else plan.jitter.model_dump(mode="json"),
        "variation": [(link, variation.model_dump(mode="json")) for link, variation in plan.variation],
    }
    return json.dumps(written)


def from_json(line: str) -> Forwarding:
    """The inverse of ``to_json``."""
    data = json.loads(line)
    routes = {
        (source, destination): (Path(tuple(links), cap), latency_s)
        for source, destination, links, cap, latency_s in data["routes"]
    }
    jitter = None if data["jitter"] is None else Jitter.model_validate(data["jitter"])
    variation = tuple((link, Variation.model_validate(found)) for link, found in data["variation"])
    return Forwarding(data["queue"], tuple(data["bandwidth"]), routes, jitter, variation)


@dataclass(frozen=True, slots=True)
class Statistics:
    """What the switch did since its plan was last set.

    Attributes:
        packets, bytes: read from the hosts; a packet may stand for 64 KB, bytes are IP lengths.
        unroutable: of these, packets to no host of the plan.
        drops: packets lost for lack of room, in the switch and at the devices.
        worst_lateness_s, mean_lateness_s: how long after its computed time a packet was written.
        longest_turn_s: longest time that one turn of the loop took; a packet that finds its flow idle may
            start this much late.
        cpu_share: of one core.
        real_time: whether the kernel let the switch run ahead of ordinary processes.
    """

    packets: int
    bytes: int
    unroutable: int
    drops: int
    worst_lateness_s: float
    mean_lateness_s: float
    longest_turn_s: float
    cpu_share: float
    real_time: bool
