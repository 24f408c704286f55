"""When the members of a group have connected: each once, at its first collective there."""

from __future__ import annotations


class Connections:
    """Ends of connecting, by worker and group."""

    def __init__(self, connect_s: float) -> None:
        self._connect_s = connect_s
        self._ends_s: dict[tuple[int, tuple[int, ...]], float] = {}

    def ready_s(self, rank: int, group: tuple[int, ...], now_s: float) -> float:
        """When a worker whose collective of ``group`` is next at ``now_s`` can join it."""
        if not self._connect_s or len(group) == 1:
            return now_s
        return max(now_s, self._ends_s.setdefault((rank, group), now_s + self._connect_s))
