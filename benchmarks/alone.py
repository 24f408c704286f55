"""One message on one connection, over links that nothing else uses."""

from __future__ import annotations

from paceline.sim.traffic.tcp.windows import Connection


def leave_alone(connection: Connection, start_s: float, num_bytes: float, bytes_per_s: float) -> float:
    """Let a message leave over links that nothing else uses.

    Args:
        connection: its state before; afterwards that of the end.
        start_s: when the first byte can leave.
        num_bytes: of the message.
        bytes_per_s: what the links carry.

    Returns:
        When the last byte has left.

    >>> from paceline.sim.network.network_settings import TcpSettings
    >>> connection = Connection(TcpSettings(), rtt_s=0.1, peak_bytes_per_s=1e6)
    >>> round(leave_alone(connection, 0.0, 14_480 + 28_960 + 50_000, 1e6), 2)  # two round trips, then 50 ms
    0.26
    """
    now_s = start_s
    while num_bytes > 0:
        leave = connection.next(now_s, num_bytes)
        if not leave.num_bytes:
            now_s = leave.not_before_s
            continue
        end_s = now_s + leave.num_bytes / min(leave.cap_bytes_per_s, bytes_per_s)
        connection.left(now_s, end_s, leave.num_bytes)
        num_bytes -= leave.num_bytes
        now_s = end_s
    return now_s
