"""Costs of a transfer beside its bytes."""

from __future__ import annotations

from dataclasses import dataclass

from ..collectives.pipelines import NEWEST_NCCL, NcclHosts
from .network import Network
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

    @property
    def block_overhead_s(self) -> float:
        """Software overhead of a mix, or of a block of a collective whose receives are posted ahead."""
        return self.pattern_overhead_s if self.plain_patterns else self.overhead_s
