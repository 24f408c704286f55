"""Network settings of a scenario.

*Flat form*: ``latency`` and ``bandwidth`` of one switch that never blocks. *Sites*: ``sites``,
``within``, ``between`` and perhaps ``uplink``. *Graph*: ``graph``. The user's own: ``model``. Latency is
one-way; in the first two forms it is end to end between two hosts, in a graph that of a link. A bandwidth
that is left out is unlimited. Where ``host`` has several ``gpus``, each of them is a worker.

References:
    RFC 9438, CUBIC for fast and long-distance networks (section 5.1: losses).
    Mathis, Semke, Mahdavi and Ott, The macroscopic behavior of the TCP congestion avoidance algorithm,
        Computer Communication Review 27(3), 1997.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from math import inf
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, model_validator

from ..config.limits import MAX_MODEL_BYTES, MAX_SITES, MAX_WORKERS
from ..config.problems import Mistake, mistake, raise_mistakes
from ..config.settings import Settings
from ..config.units import BoundedSeconds, Bytes, Rate
from ..errors import did_you_mean, quote
from ..jitter import Jitter
from .forms import Between, Graph, Variation, Within, by_pair, find_wrong_pairs

HostTuning = Literal["tuned", "stock"]
Congestion = Literal["cubic", "reno", "bbr"]

SEGMENT_BYTES: Final = 1448
"""Payload of a segment: an Ethernet frame of 1500 bytes less the headers of IP and TCP with time stamps."""
SEND_BUFFER_BYTES: Final = 4194304.0
"""Linux: the largest of net.ipv4.tcp_wmem."""
RECEIVE_BUFFER_BYTES: Final = 6291456.0
"""Linux up to 6.15: the largest of net.ipv4.tcp_rmem."""
MAX_BUFFER_BYTES: Final = 2**31 - 1
"""Linux keeps the size of a socket's buffer in 31 bits."""
WINDOW_SHARE: Final = 0.66
"""Share of a receive buffer offered as a window: Linux since 6.6, by what packets take in memory."""
_CUBIC_PER_S3: Final = 0.4
"""RFC 9438's C: growth of a window in segments with the cube of the time."""
_CUBIC_BETA: Final = 0.7


def payload_share(mtu: int = 1500) -> float:
    """Share of a link's bits that TCP over Ethernet leaves for data.

    Around the MTU are a header of 14 bytes, a check sequence of 4, a preamble of 8 and a gap of 12 (IEEE
    802.3); IP and TCP with time stamps take 52 bytes of it.

    >>> f"{payload_share():.3f} {payload_share(9000):.3f}"
    '0.941 0.990'
    """
    headers, around = 52, 38
    return (mtu - headers) / (mtu + around)


class TcpSettings(Settings):
    """TCP of stock hosts; the defaults are Linux's, with their names there."""

    congestion: Congestion = Field(default="cubic", description="net.ipv4.tcp_congestion_control")
    initial_window: Annotated[int, Field(ge=1, le=100_000)] = Field(
        default=10, description="segments of 1448 bytes before the first acknowledgement (RFC 6928)"
    )
    slow_start_after_idle: bool = Field(
        default=True,
        description="net.ipv4.tcp_slow_start_after_idle: idle windows shrink",
    )
    send_buffer: Annotated[Bytes, Field(ge=4096, le=MAX_BUFFER_BYTES)] = Field(
        default=SEND_BUFFER_BYTES, description="the largest of net.ipv4.tcp_wmem"
    )
    receive_buffer: Annotated[Bytes, Field(ge=4096, le=MAX_BUFFER_BYTES)] = Field(
        default=RECEIVE_BUFFER_BYTES,
        description="the largest of net.ipv4.tcp_rmem; its window is 66 %",
    )
    loss: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.0, description="share of packets lost at random, which limits the window; not in the lab"
    )
    connections: Annotated[int, Field(ge=1, le=1024)] = Field(
        default=1,
        description="parallel connections between two hosts, each with an equal part of a message (NCCL's "
        "sockets); 1 in the lab",
    )

    @property
    def buffered_bytes(self) -> float:
        """Most bytes in flight: the room in the buffers of both ends."""
        return min(self.send_buffer, self.receive_buffer * WINDOW_SHARE) * self.connections

    def window_at_loss_bytes(self, rtt_s: float) -> float:
        """Mean window that losses allow; BBR's rate does not depend on them (below a fifth)."""
        if not self.loss or self.congestion == "bbr":
            return inf
        segments = math.sqrt(1.5 / self.loss)
        if self.congestion == "cubic":
            share = _CUBIC_PER_S3 * (3 + _CUBIC_BETA) / (4 * (1 - _CUBIC_BETA))
            segments = max(segments, share**0.25 * (rtt_s / self.loss) ** 0.75)
        return max(segments, 1.0) * SEGMENT_BYTES * self.connections


def describe_hosts(tcp: TcpSettings | None) -> str:
    """``tuned``, or ``stock`` with the differences from Linux's defaults."""
    if tcp is None:
        return "tuned"
    usual = TcpSettings()
    values = ((name, getattr(tcp, name)) for name in TcpSettings.model_fields)
    other = [f"{name} {value}" for name, value in values if value != getattr(usual, name)]
    return f"stock ({', '.join(other)})" if other else "stock"


Count = Annotated[int, Field(ge=1, le=MAX_WORKERS)]
TransportName = Literal["ideal", "gloo", "nccl"]
QueueName = Literal["fair", "fifo", "token_bucket"]

WHOLE: Final = ("graph", "model")
"""Forms of a single key; whether they fit the workers shows when the network is built."""
_SITE_NAME: Final = re.compile(r"[^\W_]([\w-]*[^\W_])?")


def _check_version(value: object) -> object:
    if isinstance(value, str) and not re.fullmatch(r"\d{1,3}(\.\d{1,3}){1,2}", value):
        raise mistake("is no version of NCCL; write for example '2.18' or 2.18.3")
    if isinstance(value, float):
        raise mistake(
            "is a number, of which 2.1 and 2.10 are the same; write the version in quotes, as '2.18'"
        )
    return value


class GpuHost(Settings):
    """Hosts of several GPUs, each a worker, that share the host's network card."""

    gpus: Count = Field(default=1, description="GPUs per host; consecutive workers")
    latency: BoundedSeconds = Field(default=0.0, description="one-way latency between two GPUs of a host")
    bandwidth: Rate | None = Field(
        default=None,
        description="full-duplex link of each GPU to others of its host; other traffic does not cross it "
        "(default: unlimited)",
    )
    memory: Annotated[Bytes, Field(gt=0, le=MAX_MODEL_BYTES)] | None = Field(
        default=None, description="memory of each GPU (default: `cluster.memory`)"
    )


class NetworkSettings(Settings):
    """The nominal network: flat, in sites, a graph, or the user's own."""

    latency: BoundedSeconds | None = Field(
        default=None, description="flat form: one-way latency between any two hosts"
    )
    bandwidth: Rate | None = Field(
        default=None, description="flat form: each host's access link, full duplex (default: unlimited)"
    )
    upload: Rate | None = Field(
        default=None,
        description="flat form: outgoing bandwidth of each host, if not `bandwidth`",
    )
    sites: dict[str, Count] | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_SITES,
        description="sites form: workers of each site, in the order of ranks",
    )
    within: Within | None = Field(default=None, description="sites form: network inside every site")
    between: Between | None = Field(
        default=None, description="sites form: network between sites; required for two or more"
    )
    uplink: dict[str, Rate] = Field(
        default={}, description="sites form: shared access link of a site, each way"
    )
    host: GpuHost | None = Field(
        default=None,
        description="hosts with several GPUs, each a worker; they share the host's network card, its access "
        "link of `bandwidth` or of a graph (default: one worker per host)",
    )
    graph: Graph | None = Field(default=None, description="graph form: hosts, switches and links, or a file")
    model: str | None = Field(
        default=None,
        description="your function package.module:name of the number of workers, which returns a Network",
    )
    jitter: Jitter | None = Field(
        default=None, description="variation of a message's latency around its route's (default: none)"
    )
    variation: tuple[Variation, ...] = Field(
        default=(), description="links that vary in time; needs sharing: max_min or rtt"
    )
    sharing: Literal["max_min", "rtt", "none"] = Field(
        default="max_min",
        description="sharing of a link by transfers: max_min fair; rtt, weighted by one over the round trip "
        "(as TCP limited by losses); none, as if each were alone",
    )
    transport: TransportName | None = Field(
        default="ideal",
        description="transport: `ideal` (collectives limited by data dependence, latency and bandwidth "
        "alone), gloo, or nccl (point-to-point messages over gloo). Default with a profile: the profile's; "
        "null: as in result folders that name none",
    )
    nccl: Annotated[str, BeforeValidator(_check_version)] | None = Field(
        default=None,
        description="with nccl: its version in quotes, as '2.18.3'; with the rates of `bandwidth` and "
        "`host.bandwidth` (up to 64 GB/s: PCI Express) it decides on ring or tree (default: the newest)",
    )
    hosts: HostTuning = Field(
        default="tuned",
        description="TCP of the hosts, simulated and in the lab: tuned (no slow start, unlimited windows) "
        "or stock (Linux's defaults; default with `tcp`)",
    )
    tcp: TcpSettings | None = Field(
        default=None, description="settings of stock hosts other than Linux's defaults"
    )
    queue: QueueName = Field(
        default="fair",
        description="queue discipline of links, simulated and in the lab: fair (by `sharing`) or fifo "
        "(first in, first out); token_bucket, in the lab alone: the kernel's tbf on each host's interface, "
        "burst 32 KiB, latency 50 ms, which drops packets",
    )
    overhead: BoundedSeconds = Field(
        default=0.0, description="software overhead of one transfer, beside the transport's own"
    )
    averaging: Annotated[float, Field(ge=0, le=10)] | None = Field(
        default=None,
        description="share of a gradient's duration that averaging it takes on the device beside the "
        "collective (default: nccl 0.03, as DDP's; 0 for Horovod, and where `compute` was measured with it)",
    )
    connect: BoundedSeconds = Field(
        default=0.0,
        description="time in which the members of a group connect, at their first collective; gloo's group "
        "of all workers connects before a run",
    )
    announcement: float = Field(
        default=0.0,
        ge=0,
        le=1000,
        description="cost of a rendezvous in latencies of the route; gloo: 1",
    )

    @model_validator(mode="before")
    @classmethod
    def _take_stock(cls, data: Any) -> Any:
        """Fill in TCP settings of stock hosts, or ``stock`` where TCP settings are given."""
        match data:
            case {"hosts": "stock"} if data.get("tcp") is None:
                return {**data, "tcp": {}}
            case {"tcp": tcp} if tcp is not None and "hosts" not in data:
                return {**data, "hosts": "stock"}
        return data

    @model_validator(mode="after")
    def _one_form(self) -> NetworkSettings:
        raise_mistakes(self._wrong_form())
        if self.sites is not None:
            raise_mistakes(self._wrong_sites(self.sites))
        return self

    def _wrong_form(self) -> list[Mistake]:
        flat = [key for key in ("latency", "bandwidth", "upload") if getattr(self, key) is not None]
        parts = [key for key in ("sites", "within", "between", "uplink") if getattr(self, key)]
        tcp, line, varies = self.tcp is not None, self.queue != "fair", bool(self.variation)
        alone = self.sharing == "none"
        own_nodes = self.model is not None and self.gpus > 1
        for wrong, key, text in (
            (varies and alone, "variation", "needs sharing: max_min or rtt"),
            (tcp and self.hosts == "tuned", "tcp", "is of stock hosts; write hosts: stock, or leave it out"),
            (tcp and alone, "hosts", "'stock' needs sharing: max_min or rtt"),
            (line and self.sharing != "max_min", "queue", f"'{self.queue}' needs sharing: max_min"),
            (line and varies, "variation", "needs queue: fair; what waits in one line has its times already"),
            (
                self.nccl is not None and self.transport != "nccl",
                "nccl",
                "is the version of a library that is not used; write transport: nccl, or leave it out",
            ),
            (own_nodes, "host", "is not of a network of your own, which names its nodes itself"),
        ):
            if wrong:
                return [Mistake((key,), text)]
        whole = [key for key in WHOLE if getattr(self, key) is not None]
        if whole and (flat or parts or len(whole) > 1):
            other = [*flat, *parts, *whole[1:]][0]
            text = f"{quote(other)} is of another form than '{whole[0]}'; keep to one of them"
            return [Mistake((whole[0],), text)]
        if flat and parts:
            text = f"'{flat[0]}' is of the flat form, '{parts[0]}' of the sites form; keep to one of them"
            return [Mistake((flat[0],), text)]
        if whole:
            return []
        if self.upload is not None and self.bandwidth is None:
            return [Mistake(("upload",), "needs bandwidth, each host's way in")]
        if self.within is not None and self.within.upload is not None and self.within.bandwidth is None:
            return [Mistake(("within", "upload"), "needs bandwidth, each host's way in")]
        if not parts:
            text = "give latency and bandwidth (one switch), or sites, within and between, or a graph"
            return [] if self.latency is not None else [Mistake((), text)]
        needed = ["sites", "within"]
        if self.sites is not None and len(self.sites) > 1:
            needed.append("between")
        return [Mistake((key,), "is missing") for key in needed if getattr(self, key) is None]

    @property
    def whole(self) -> str | None:
        """The key of a form of a single key; None in the flat and the sites form."""
        return next((key for key in WHOLE if getattr(self, key) is not None), None)

    @property
    def gpus(self) -> int:
        """Workers per host."""
        return self.host.gpus if self.host is not None else 1

    def _wrong_sites(self, sites: Mapping[str, int]) -> Iterator[Mistake]:
        for name, workers in sites.items():
            if not _SITE_NAME.fullmatch(name):
                yield Mistake(("sites", name), "a site's name is letters, digits, '-' and '_'")
            if workers % self.gpus:
                full = self.gpus * max(1, workers // self.gpus)
                text = f"{workers} workers do not fill hosts of {self.gpus} GPUs; write for example {full}"
                yield Mistake(("sites", name), text)
        for name in self.uplink:
            if name not in sites:
                yield Mistake(
                    ("uplink", name), f"no site is called {quote(name)}; {did_you_mean(name, sites)}"
                )
        for key in ("latency", "bandwidth", "per_flow"):
            if (values := getattr(self.between, key, None)) is not None:
                yield from find_wrong_pairs(sites, ("between", key), values)

    def of_pairs(self, key: Literal["latency", "bandwidth", "per_flow"]) -> dict[tuple[str, str], float]:
        """Values of ``between`` for every ordered pair of different sites; empty where it has none."""
        values = getattr(self.between, key, None)
        return {} if self.sites is None or values is None else by_pair(self.sites, values)
