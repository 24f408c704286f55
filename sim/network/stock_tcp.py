"""TCP settings of stock hosts: Linux's names and defaults, and the windows that losses leave.

References:
    RFC 9438, CUBIC for fast and long-distance networks (section 5.1: losses).
    Mathis, Semke, Mahdavi and Ott, The macroscopic behavior of the TCP congestion avoidance algorithm,
        Computer Communication Review 27(3), 1997.
"""

from __future__ import annotations

import math
from math import inf
from typing import Annotated, Final, Literal

from pydantic import Field

from ..config.settings import Settings
from ..config.units import Bytes

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
