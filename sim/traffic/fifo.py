"""First-in-first-out links: later bytes wait for all bytes in front of them.

Exact arithmetic on given times, for packets of the lab and for whole messages of a simulation. Bytes stream
through the links of their path at once (cut-through): crossing two links of equal speed takes hardly longer
than one. They are cut into *cells*, queued at each later link in order of arrival there, so that a message
trickling in from a slower link does not block others for its whole length.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final, Generic, TypeVar

from ..collectives.classes import TIE

FRAME_BYTES: Final = 1500
"""The smallest cell: an Ethernet frame, or the whole message if that is less."""
CELL_S: Final = 0.0005
"""Time that a cell occupies the slowest link, unless a frame takes longer."""
MOST_CELLS: Final = 64
"""Most cells of a simulated message."""
CELLS_OF_ONE: Final = 8
"""Crossings of cells that take as long to simulate as a transfer without cells."""
_MOST_KEPT: Final = 4096
"""Per link, the latest half or more of this many cells are remembered."""

_P = TypeVar("_P")


@dataclass(slots=True, eq=False)
class _Cell(Generic[_P]):
    """A piece in flight; its last byte is at the next link at ``last_s``."""

    links: tuple[int, ...]
    size: float
    last_s: float
    packet: _P
    final: bool
    hop: int = 0


class CellQueues(Generic[_P]):
    """Links and the cells queued at them. Times never decrease from call to call.

    Args:
        bytes_per_s: of each link.
        leave: called for each packet with the time at which its last byte leaves its last link.
    """

    def __init__(self, bytes_per_s: Sequence[float], leave: Callable[[float, _P], None]) -> None:
        self._rate = list(bytes_per_s)
        self._free_s = [-math.inf] * len(self._rate)
        self._crossed: list[tuple[list[float], list[float]]] = [([], []) for _ in self._rate]
        self._leave = leave
        self._events: list[tuple[float, int, _Cell[_P]]] = []
        self._turn = 0
        self.crossings = 0

    def add_link(self, bytes_per_s: float) -> int:
        """Add a link; return its index."""
        self._rate.append(bytes_per_s)
        self._free_s.append(-math.inf)
        self._crossed.append(([], []))
        return len(self._rate) - 1

    def next_s(self) -> float:
        """Time of the next ``advance`` with an effect; ``inf`` if nothing waits."""
        return self._events[0][0] if self._events else math.inf

    def arrive(
        self,
        now_s: float,
        links: tuple[int, ...],
        size_bytes: float,
        packet: _P,
        most_cells: float = math.inf,
    ) -> None:
        """Let a packet reach the first of its links (at least one); call ``advance(now_s)`` first."""
        cells = 1
        if len(links) > 1:
            cell_bytes = max(FRAME_BYTES, CELL_S * min(self._rate[link] for link in links))
            cells = int(min(math.ceil(size_bytes / cell_bytes), most_cells))
        for number in range(cells):
            final = number == cells - 1
            self._cross(now_s, _Cell(links, size_bytes / cells, now_s, packet, final))

    def wait_s(self, links: Sequence[int], at_s: float) -> float:
        """Queueing delay of a short message that arrives at ``at_s``; in future: behind all known cells."""
        time_s = at_s
        for link in links:
            times_s, free_s = self._crossed[link]
            before = bisect_right(times_s, time_s)
            if before:
                time_s = max(time_s, free_s[before - 1])
        return time_s - at_s

    def advance(self, now_s: float) -> None:
        """Process all events up to ``now_s``."""
        while self._events and self._events[0][0] <= now_s:
            time_s, _, cell = heappop(self._events)
            self._cross(time_s, cell)

    def _cross(self, now_s: float, cell: _Cell[_P]) -> None:
        """Cross the next link, which the first byte reaches now and the last at ``cell.last_s``."""
        self.crossings += 1
        link = cell.links[cell.hop]
        start_s = max(now_s, self._free_s[link])
        self._free_s[link] = start_s + cell.size / self._rate[link]
        times_s, free_s = self._crossed[link]
        if len(times_s) >= _MOST_KEPT:
            del times_s[: _MOST_KEPT // 2], free_s[: _MOST_KEPT // 2]
        times_s.append(now_s)
        free_s.append(self._free_s[link])
        cell.last_s = max(cell.last_s, self._free_s[link])
        cell.hop += 1
        if cell.hop < len(cell.links):
            self._turn += 1
            heappush(self._events, (start_s, self._turn, cell))
        elif cell.final:
            self._leave(cell.last_s, cell.packet)


class FifoSharing:
    """Transfers over first-in-first-out links; calls as for ``FairSharing``, whose weights do not count here.

    Args:
        bandwidth_bytes_per_s: one positive number per link; ``inf`` is a link that limits nothing.

    >>> sharing = FifoSharing([8.0])
    >>> flows = [sharing.start(0.0, (0,), size, float("inf")) for size in (8.0, 16.0)]
    >>> sharing.solve(0.0)
    >>> sharing.next_finish_s, sharing.finished(1.0)
    (1.0, [0])
    >>> sharing.solve(1.0)
    >>> sharing.next_finish_s
    3.0
    """

    def __init__(self, bandwidth_bytes_per_s: Sequence[float]) -> None:
        self._links = CellQueues[int](bandwidth_bytes_per_s, self._left)
        self._bandwidth = list(bandwidth_bytes_per_s)
        self._caps: dict[tuple[tuple[int, ...], float], int] = {}
        self._done: list[tuple[float, int]] = []
        self._num_started = 0
        self.next_finish_s = math.inf

    def _left(self, time_s: float, number: int) -> None:
        heappush(self._done, (time_s, number))

    def start(
        self, now_s: float, links: tuple[int, ...], size_bytes: float, cap_bytes_per_s: float, weight: int = 1
    ) -> int:
        """Begin a transfer; a cap is a link of its own in front of the others."""
        number = self._num_started
        self._num_started = number + 1
        limited = tuple(link for link in links if self._bandwidth[link] < math.inf)
        if cap_bytes_per_s < min((self._bandwidth[link] for link in limited), default=math.inf):
            key = links, cap_bytes_per_s
            if key not in self._caps:
                self._caps[key] = self._links.add_link(cap_bytes_per_s)
            limited = (self._caps[key], *limited)
        if size_bytes == 0 or not limited:
            self._left(now_s, number)
            return number
        self._links.advance(now_s)
        self._links.arrive(now_s, limited, size_bytes, number, MOST_CELLS)
        return number

    def wait_s(self, links: Sequence[int], at_s: float) -> float:
        """Queueing delay of a short message over some links, in the order of its route."""
        return self._links.wait_s([link for link in links if self._bandwidth[link] < math.inf], at_s)

    def change(self, link: int, bandwidth_bytes_per_s: float) -> None:
        """Raise ``ValueError``: bytes queued at these links already have their times."""
        raise ValueError(f"first-in-first-out link {link} cannot change to {bandwidth_bytes_per_s} bytes/s")

    @property
    def queued_work(self) -> int:
        """Transfers without cells that take as long to simulate as all cells so far."""
        return self._links.crossings // CELLS_OF_ONE

    @property
    def in_flight(self) -> bool:
        """Whether any transfer has not ended."""
        return self.next_finish_s < math.inf

    def solve(self, now_s: float) -> None:
        """Advance to ``now_s``; set ``next_finish_s``."""
        self._links.advance(now_s)
        self.next_finish_s = min(self._links.next_s(), self._done[0][0] if self._done else math.inf)

    def finished(self, now_s: float) -> list[int]:
        """Remove and return the transfers that end at ``now_s``, ascending; call ``solve`` next."""
        self._links.advance(now_s)
        until_s = now_s + TIE * abs(now_s)
        numbers = []
        while self._done and self._done[0][0] <= until_s:
            numbers.append(heappop(self._done)[1])
        return sorted(numbers)
