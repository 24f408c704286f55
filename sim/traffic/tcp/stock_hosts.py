"""Messages between stock hosts: their bytes leave piece by piece, as windows of TCP allow."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ...network.transport import TransferModel
from ...network.variation import peak_bytes_per_s
from ..clock import Clock
from ..fifo import FifoSharing
from ..rendezvous import Transfer
from ..sharing import FairSharing
from .windows import Connection, Queues


@dataclass(slots=True, eq=False)
class Windows:
    """Bytes of a transfer that leave piece by piece as TCP's window allows; one flow to the outside."""

    connection: Connection
    transfer: Transfer
    flow: int
    rest: float
    piece: float = 0.0
    since_s: float = 0.0


class StockHosts:
    """Connections of hosts, and the messages that leave through their windows.

    Args:
        clock: virtual time.
        model: how messages travel, with ``tcp``.
        sharing: of the links.
        share: begins a flow of a transfer's bytes, at most at a rate; returns its number.
        ended: called with the number of a flow whose last byte has left, and when.

    Attributes:
        wanted_bytes: number of the bytes left that may leave now, if the window is large enough.
    """

    def __init__(
        self,
        clock: Clock,
        model: TransferModel,
        sharing: FairSharing | FifoSharing,
        share: Callable[[Transfer, float, float], int],
        ended: Callable[[int, float], None],
    ) -> None:
        self._clock, self._model, self._sharing = clock, model, sharing
        self._share, self._ended = share, ended
        self._connections: dict[tuple[int, int], Connection] = {}
        self._pieces: dict[int, Windows] = {}
        self._behind: defaultdict[Connection | None, list[Windows]] = defaultdict(list)
        self._num_windows = 0
        self.wanted_bytes: Callable[[Windows], float] = lambda windows: windows.rest

    def connection(self, source: int, destination: int) -> Connection:
        """One direction between two hosts."""
        connection = self._connections.get((source, destination))
        if connection is None:
            model = self._model
            assert model.tcp is not None
            route = model.network.route(source, destination)
            peaks = [peak_bytes_per_s(model.network.links[link]) for link in route.links]
            peak = model.efficiency * min([route.per_flow_bytes_per_s, *peaks])
            connection = Connection(model.tcp, model.round_trip_s(source, destination), peak)
            self._connections[source, destination] = connection
            if isinstance(self._sharing, FifoSharing):
                back = model.network.route(destination, source)
                connection.queues = Queues(
                    partial(self._sharing.wait_s, route.links), partial(self._sharing.wait_s, back.links)
                )
            connection.other = self._connections.get((destination, source))
            if connection.other is not None:
                connection.other.other = connection
        return connection

    def begin(self, transfer: Transfer, num_bytes: float) -> int:
        """Let a transfer's bytes leave; return the number of their flow."""
        self._num_windows -= 1  # negative, unlike the numbers of shares
        connection = self.connection(transfer.source, transfer.destination)
        self._open(Windows(connection, transfer, self._num_windows, num_bytes))
        return self._num_windows

    def _open(self, windows: Windows) -> None:
        now_s = self._clock.now
        leave = windows.connection.next(now_s, self.wanted_bytes(windows))
        if not leave.num_bytes:
            if leave.not_before_s < float("inf"):
                self._clock.at(leave.not_before_s, self._open, windows)
            else:
                self._behind[windows.connection.other].append(windows)
            return
        windows.piece, windows.since_s = leave.num_bytes, now_s
        windows.rest -= leave.num_bytes
        cap = min(windows.transfer.cap, leave.cap_bytes_per_s)
        self._pieces[self._share(windows.transfer, leave.num_bytes, cap)] = windows

    def finish(self, number: int, now_s: float) -> None:
        """End a flow on links: a piece, or what is no message of ours."""
        windows = self._pieces.pop(number, None)
        if windows is None:
            self._ended(number, now_s)
            return
        windows.connection.left(windows.since_s, now_s, windows.piece)
        for waiting in self._behind.pop(windows.connection, ()):
            self._open(waiting)
        if windows.rest > 0:
            self._open(windows)
        else:
            self._ended(windows.flow, now_s)
