"""The messages to a lab's switch: plans from the lab, announcements from the workers in its hosts.

Announcements are datagrams to addresses of no host: a run's start and seed, and a cut. The processes of a
machine share its monotonic clock, so the time in it is exact whatever its delay.
"""

from __future__ import annotations

import math
import os
import shutil
import socket
import struct
import time
from dataclasses import dataclass
from itertools import permutations
from typing import Annotated, ClassVar, Final

from pydantic import BeforeValidator, ConfigDict, PlainSerializer, TypeAdapter

from paceline.sim.errors import InputError
from paceline.sim.jitter import Jitter
from paceline.sim.network.network import Link, Network
from paceline.sim.network.network_settings import QueueName
from paceline.sim.network.variation import trace_of

from .kernel import INTERFACE
from .queues import Path

Discipline = QueueName

_Hosts = tuple[int, int]
_Way = tuple[Path, float]
_Routes = Annotated[
    dict[_Hosts, _Way],  # a list in JSON, whose keys cannot be pairs
    PlainSerializer(lambda routes: list(routes.items()), list[tuple[_Hosts, _Way]]),
    BeforeValidator(lambda items: {tuple(hosts): way for hosts, way in items}),
]


@dataclass(frozen=True, slots=True)
class Forwarding:
    """The routes and links of a lab's packets, and how these vary during a run.

    ``routes``: (source host, destination host) -> path and one-way latency in seconds.
    """

    __pydantic_config__: ClassVar = ConfigDict(ser_json_inf_nan="constants")

    queue: Discipline
    links: tuple[Link, ...]
    routes: _Routes
    jitter: Jitter | None = None

    @property
    def bandwidth_bytes_per_s(self) -> tuple[float, ...]:
        """Nominal bandwidth of each link."""
        return tuple(link.bandwidth_bytes_per_s for link in self.links)

    def shaped_bytes_per_s(self, host: int) -> float:
        """Rate of the token bucket on ``host``'s interface, that of its first link; ``inf``: it has none."""
        ways = (path.links for (source, _), (path, _) in self.routes.items() if source == host)
        first = next(ways, ()) if self.queue == "token_bucket" else ()
        return self.links[first[0]].bandwidth_bytes_per_s if first else math.inf

    @property
    def adds_latency(self) -> bool:
        """Whether links add to latencies over time."""
        traces = map(trace_of, self.links)
        return any(trace is not None and trace.adds_latency for trace in traces)


PLAN: Final = TypeAdapter(Forwarding)
"""JSON codec of plans, with ``Infinity``."""


def plan_of(network: Network, queue: Discipline) -> Forwarding:
    """Spell out all routes of ``network``; raises ``InputError`` where the switch cannot emulate it."""
    if queue == "token_bucket" and shutil.which("tc") is None:
        raise InputError("cluster.network.queue: token_bucket needs tc, which comes with iproute2")
    if queue != "fair" and any(link.variation for link in network.links):
        raise InputError(
            f"the lab's links with queue: {queue} cannot change their bandwidth; use queue: fair, or leave "
            "cluster.network.variation out"
        )
    routes = {}
    for hosts in permutations(range(network.num_hosts), 2):
        route = network.route(*hosts)
        routes[hosts] = (Path(route.links, route.per_flow_bytes_per_s), route.latency_s)
    return Forwarding(queue, network.links, routes, network.jitter)


@dataclass(frozen=True, slots=True)
class Statistics:
    """Statistics of the switch since its plan was last set.

    Attributes:
        packets, bytes: read from the hosts; a packet may stand for 64 KB, bytes are IP lengths.
        unroutable: of these, packets to no host of the plan.
        drops: packets lost for lack of room, in the switch and at the devices.
        worst_lateness_s, mean_lateness_s: delays from a packet's computed time to its writing.
        longest_turn_s: longest turn of the loop; a packet that finds its flow idle may begin this much late.
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


_TO: Final = ("10.255.255.254", 9)
_CUT_TO: Final = ("10.255.255.253", 9)
_START: Final = struct.Struct("!dQ")
ADDRESS: Final = socket.inet_aton(_TO[0])
"""Destination of the datagram, as in an IP header."""
CUT_ADDRESS: Final = socket.inet_aton(_CUT_TO[0])
"""That of a cut."""
CONTENTS: Final = slice(28, 28 + _START.size)
"""Position of the contents of both in the IP packet."""


def in_lab() -> bool:
    """Whether this process is a worker inside a lab's host."""
    return os.environ.get("GLOO_SOCKET_IFNAME") == INTERFACE


def tell(zero_s: float, seed: int) -> None:
    """Announce the run's start on ``time.monotonic``, and its seed, to the switch of the surrounding lab."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        datagrams.sendto(_START.pack(zero_s, seed), _TO)


def tell_cut(lasts_s: float, group: int) -> None:
    """Have the lab's switch cut this host off, from now on, from all but those in the same ``group``."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        datagrams.sendto(_START.pack(time.monotonic() + lasts_s, group), _CUT_TO)


def parse(contents: bytes) -> tuple[float, int]:
    """Read the contents sent by ``tell``: the run's start and seed; or by ``tell_cut``: its end and group."""
    time_s, number = _START.unpack(contents)
    return float(time_s), int(number)
