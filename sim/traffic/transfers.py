"""Messages in virtual time: rendezvous, then bytes over shared links.

A transfer's bytes leave when both sides are ready: at the later of *sender ready* and *receiver ready plus
its announcement's latency*, plus the software overhead. The sender is done when the last byte has left, the
receiver one route latency later. ``Streams`` refines this to the behaviour of TCP connections.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from .. import seeds
from ..network.transfer import TransferModel
from ..network.variation import Latencies, bandwidth_changes, peak_bytes_per_s
from ..program.operations import ANY
from .clock import LATE, Clock
from .fifo import CELLS_OF_ONE, FifoSharing
from .rendezvous import (
    Announced,
    Notice,
    Posted,
    Tag,
    Transfer,
    TransferSide,
    forget,
    post_receive,
    post_send,
    take_first,
)
from .sharing import FairSharing, rtt_weight
from .tcp.flight import Queues
from .tcp.windows import Connection

_EVEN: Final = 1_000
"""The weight of an even share, where shares are drawn: weights are whole numbers."""

_MOST_UNEVEN: Final = 2.0
"""Largest factor by which a message's share differs from an even one."""

PATTERN_TAG: Final = "mix"
"""Tag of the messages of mixes."""


@dataclass(slots=True, eq=False)
class Windows:
    """Bytes of a transfer that leave piece by piece as TCP's window allows; one flow to the outside."""

    connection: Connection
    transfer: Transfer
    flow: int
    rest: float
    piece: float = 0.0
    since_s: float = 0.0


class Transfers:
    """Matches sends with receives and moves their bytes.

    Attributes:
        messages: number of messages, including those of collectives that were priced as a whole.
        begun: number of matched transfers.
        watch: called with the hosts of each post of a receive and of each transfer, before it has an effect.
    """

    def __init__(self, clock: Clock, model: TransferModel) -> None:
        self._clock = clock
        self._network = model.network
        self._workers = model.network.num_hosts
        self._overhead_s = model.overhead_s
        self._plain_tag = PATTERN_TAG if model.plain_patterns else None
        self._pattern_overhead_s = model.pattern_overhead_s
        self._announcement = model.announcement
        self._latencies = Latencies(model.network, model.seed, model.added_latency_s)
        self._constant_s: dict[int, float] = {}  # latencies that never vary, by source * n + destination
        self._changes = bandwidth_changes(model.network.links, model.seed)
        self._efficiency = model.efficiency
        bandwidths = model.bandwidths_bytes_per_s
        self._sharing: FairSharing | FifoSharing | None = None
        if model.sharing != "none":
            self._sharing = FairSharing(bandwidths) if model.queue == "fair" else FifoSharing(bandwidths)
        self._by_rtt = model.sharing == "rtt"
        self._uneven, self._seed = model.uneven, model.seed
        self._uneven_s = model.uneven_s or (0.0,)
        self._uneven_s_per_byte = model.uneven_s_per_byte or (0.0,)
        self._shared = [0] * model.network.num_hosts  # shares drawn so far, by host
        self._added_latency_s = model.added_latency_s
        self._bandwidths = bandwidths
        self._alone: dict[int, float] = {}
        self._timings: dict[int, tuple[float, float]] = {}  # of messages that share no link and never vary
        self._boxes: dict[Tag, Posted] = {}
        self._flows: dict[int, Transfer] = {}
        self._tcp = model.tcp
        self._connections: dict[int, Connection] = {}
        self._pieces: dict[int, Windows] = {}
        self._behind: defaultdict[Connection | None, list[Windows]] = defaultdict(list)
        self._num_windows = 0
        self._solving = False
        self._alarm_s = float("inf")
        self.messages = 0
        self.begun = 0
        self.watch: Callable[..., None] | None = None
        self._delivered = 0

    @property
    def in_flight(self) -> int:
        """Number of matched transfers that share links and have not arrived."""
        return self.begun - self._delivered

    @property
    def work(self) -> int:
        """Number of matched transfers, more where they are queued cell by cell."""
        cells = self._sharing.crossings if isinstance(self._sharing, FifoSharing) else 0
        return self.begun + cells // CELLS_OF_ONE

    def uses(self, host: int) -> bool:
        """Whether bytes of a host are still in flight though their sender is done."""
        return False

    def _box(self, tag: Tag) -> Posted:
        box = self._boxes.get(tag)
        if box is None:
            box = self._boxes[tag] = Posted()
        return box

    def send(
        self,
        source: int,
        destination: int,
        tag: Tag,
        num_bytes: int,
        side: TransferSide,
    ) -> None:
        """Post a send now."""
        box = self._boxes.get(tag) or self._box(tag)
        key = source * self._workers + destination
        plain = tag == self._plain_tag
        if self._tcp is not None and self._announcement and not plain:
            posted = box.receives.get(key)
            if not (posted and self._is_known(posted[0])):
                self._send_word(source, destination)
        transfer = post_send(box, key, side, self._clock.now, num_bytes, plain)
        if transfer is not None:
            self._match(source, destination, transfer)
        elif box.known is not None:
            self._announce_send(box, key, box.sends[key][-1])

    def _announce_send(self, box: Posted, key: int, send: Transfer) -> None:
        """Announce a waiting send to a receiver that takes from anybody."""
        if not self._announcement:
            self._send_known((box, key, send))
            return
        source, destination = divmod(key, self._workers)
        known_s = send.sender_s + self._announcement * self._latency_s(source, destination)
        self._clock.at(max(known_s, self._clock.now), self._send_known, (box, key, send))

    def _send_known(self, announced: tuple[Posted, int, Transfer]) -> None:
        box, key, send = announced
        source, destination = divmod(key, self._workers)
        waiting = box.sends.get(key, ())
        if not any(each is send for each in waiting):
            return
        receive = take_first(box.receives, ANY * self._workers + destination)
        if receive is None:
            assert box.known is not None
            box.known.setdefault(destination, deque()).append(source)
            return
        transfer = take_first(box.sends, key)
        assert transfer is not None
        transfer.receiver, transfer.receiver_s, transfer.slot = (
            receive.receiver,
            receive.receiver_s,
            receive.slot,
        )
        transfer.announced = self._announce(destination, source)
        self._match(source, destination, transfer)

    def receive(self, source: int, destination: int, tag: Tag, side: TransferSide, slot: int) -> None:
        """Post a receive now; with ``source`` ``ANY`` it takes the send that was posted first."""
        if self.watch is not None:
            self.watch(destination)
        box = self._boxes.get(tag) or self._box(tag)
        if source == ANY and box.known is None:
            box.known = {}
            unannounced = [(send.sender_s, key, send) for key, sends in box.sends.items() for send in sends]
            for _, key, send in sorted(unannounced, key=lambda each: each[:2]):
                self._announce_send(box, key, send)
        if box.known is not None:
            sources = box.known.get(destination)
            if sources:
                if source == ANY:
                    source = sources.popleft()
                elif source in sources:
                    sources.remove(source)
        key = source * self._workers + destination
        now_s = self._clock.now
        at_once = not self._announcement or source == ANY or tag == self._plain_tag
        announced = now_s if at_once else self._announce(destination, source)
        transfer = post_receive(box, key, side, now_s, slot, announced)
        if transfer is not None:
            self._match(source, destination, transfer)

    def _latency_s(self, source: int, destination: int) -> float:
        key = source * self._workers + destination
        known_s = self._constant_s.get(key)
        if known_s is None:
            known_s = self._latencies.draw_s(source, destination, self._clock.now)
            if self._latencies.constant:
                self._constant_s[key] = known_s
        return known_s

    def _announce(self, receiver: int, sender: int) -> Announced:
        if not self._announcement:
            return self._clock.now
        self._send_word(receiver, sender)
        return self._clock.now + self._announcement * self._latency_s(receiver, sender)

    def _send_word(self, source: int, destination: int) -> None:
        if self._tcp is not None:
            self._connection(source, destination).sends(self._clock.now)

    def _is_known(self, receive: Transfer) -> bool:
        announced = receive.announced
        known_s = announced.arrival_s if isinstance(announced, Notice) else announced
        return known_s is not None and known_s <= self._clock.now

    def replay(self, start_s: float, begin: Callable[[], None]) -> None:
        """Begin transfers in the past, on links that nothing else has used since, and continue them now."""
        sharing, watch, self.watch = self._sharing, self.watch, None
        if isinstance(sharing, FairSharing):
            self._sharing = beside = sharing.beside()
            self._solving, self._alarm_s = False, float("inf")
            self._clock.replay(start_s, begin)
            sharing.adopt(beside)
            self._sharing, self._alarm_s = sharing, float("inf")
            self._solve_late()
        else:
            self._clock.replay(start_s, begin)
        self.watch = watch

    def close(self, tag: Tag) -> None:
        """Forget a tag that will not be used again."""
        self._boxes.pop(tag, None)  # a collective of one worker has sent nothing

    def drop(self, side: TransferSide) -> None:
        """Forget all unmatched posts of ``side``."""
        for box in self._boxes.values():  # ``known`` stays: its receiver is dead
            forget(box.sends, lambda send: send.sender is side)
            forget(box.receives, lambda receive: receive.receiver is side)

    def waiting_for(self, worker: int) -> list[TransferSide]:
        """Sides with unmatched posts to or from ``worker``."""
        sides: dict[TransferSide, None] = {}
        for box in self._boxes.values():
            for key, sends in box.sends.items():
                if key % self._workers == worker:
                    sides |= dict.fromkeys(send.sender for send in sends)
            for key, receives in box.receives.items():
                if key // self._workers == worker:
                    sides |= dict.fromkeys(receive.receiver for receive in receives)
        return list(sides)

    def _match(self, source: int, destination: int, transfer: Transfer) -> None:
        if self.watch is not None:
            self.watch(source, destination)
        self.messages += 1
        self.begun += 1
        announced = transfer.announced
        if isinstance(announced, Notice):
            if announced.arrival_s is None:
                announced.then = partial(self._launch, source, destination, transfer)
                return
            announced = announced.arrival_s
        self._launch(source, destination, transfer, announced)

    def _launch(self, source: int, destination: int, transfer: Transfer, announced_s: float) -> None:
        sender_s = transfer.sender_s
        start_s = sender_s if sender_s >= announced_s else announced_s
        start_s += self._pattern_overhead_s if transfer.plain else self._overhead_s
        if self._sharing is None:
            self._leave_alone(source, destination, transfer, start_s)
            return
        self._plan_route(source, destination, transfer)
        if transfer.plain:
            Transfers._enqueue(self, transfer, start_s)
        else:
            self._enqueue(transfer, start_s)

    def _leave_alone(self, source: int, destination: int, transfer: Transfer, start_s: float) -> None:
        timing = self._timings.get(source * self._workers + destination)
        latency_s, rate = timing or self._timing(source, destination)
        sent_s = start_s + transfer.num_bytes / rate
        transfer.sender.sent(sent_s, transfer.receiver_s)
        transfer.receiver.received(
            transfer.slot, transfer.sender, source, sent_s + latency_s, transfer.sender_s
        )

    def _timing(self, source: int, destination: int) -> tuple[float, float]:
        timing = self._latency_s(source, destination), self._rate_alone(source, destination)
        if self._latencies.constant:
            self._timings[source * self._workers + destination] = timing
        return timing

    def _plan_route(self, source: int, destination: int, transfer: Transfer) -> None:
        route = self._network.route(source, destination)
        transfer.source, transfer.destination = source, destination
        transfer.latency_s, transfer.links = self._latency_s(source, destination), route.links
        transfer.cap = route.per_flow_bytes_per_s * self._efficiency
        transfer.weight = rtt_weight(self._round_trip_s(source, destination)) if self._by_rtt else 1
        if self._uneven and transfer.num_bytes:
            transfer.weight = self._drawn_weight(transfer)

    def carry(
        self, source: int, destination: int, num_bytes: float, side: TransferSide, start_s: float
    ) -> None:
        """Send bytes at ``start_s``, or now if that has passed; both ends are already there.

        Both calls of ``side`` follow: when the last byte has left, and when it has arrived.
        """
        if self.watch is not None:
            self.watch(source, destination)
        self.messages += 1
        self.begun += 1
        transfer = Transfer()
        transfer.sender = transfer.receiver = side
        transfer.sender_s = transfer.receiver_s = self._clock.now
        transfer.num_bytes, transfer.slot, transfer.plain = num_bytes, 0, True
        if self._sharing is None:
            self._leave_alone(source, destination, transfer, start_s)
            return
        self._plan_route(source, destination, transfer)
        Transfers._enqueue(self, transfer, start_s)

    def _enqueue(self, transfer: Transfer, start_s: float) -> None:
        if start_s <= self._clock.now:
            self._begin(transfer)
        else:
            self._clock.at(start_s, self._begin, transfer)

    def _round_trip_s(self, source: int, destination: int) -> float:
        """Round trip without jitter and queues."""
        there, back = self._network.route(source, destination), self._network.route(destination, source)
        return there.latency_s + back.latency_s + 2 * self._added_latency_s

    def _connection(self, source: int, destination: int) -> Connection:
        key = source * self._workers + destination
        connection = self._connections.get(key)
        if connection is None:
            assert self._tcp is not None
            route = self._network.route(source, destination)
            peaks = [peak_bytes_per_s(self._network.links[link]) for link in route.links]
            peak = self._efficiency * min([route.per_flow_bytes_per_s, *peaks])
            connection = Connection(self._tcp, self._round_trip_s(source, destination), peak)
            self._connections[key] = connection
            if isinstance(self._sharing, FifoSharing):
                back = self._network.route(destination, source)
                connection.queues = Queues(
                    partial(self._sharing.wait_s, route.links), partial(self._sharing.wait_s, back.links)
                )
            connection.other = self._connections.get(destination * self._workers + source)
            if connection.other is not None:
                connection.other.other = connection
        return connection

    def _drawn_weight(self, transfer: Transfer) -> int:
        """Weight of a host's next message, drawn around the weight of its round trip.

        Time on hosts counts for little beside slow links: shares are the more uneven, the faster links are,
        and the shorter a message is.
        """
        source = transfer.source
        number = self._shared[source]
        self._shared[source] = number + 1
        longer_s = (
            self._uneven_s[seeds.integer(self._seed, source, "share", number, len(self._uneven_s))]
            + self._uneven_s_per_byte[
                seeds.integer(self._seed, source, "share of bytes", number, len(self._uneven_s_per_byte))
            ]
            * transfer.num_bytes
        )
        alone_s = transfer.num_bytes / self._rate_alone(source, transfer.destination)
        slower = 1 + longer_s / alone_s
        return max(1, round(_EVEN * transfer.weight / min(max(slower, 1 / _MOST_UNEVEN), _MOST_UNEVEN)))

    def _rate_alone(self, source: int, destination: int) -> float:
        known = self._alone.get(source * self._workers + destination)
        if known is not None:
            return known
        route = self._network.route(source, destination)
        cap = route.per_flow_bytes_per_s * self._efficiency
        rate = min([cap, *(self._bandwidths[link] for link in route.links)])
        self._alone[source * self._workers + destination] = rate
        return rate

    def _arrive(self, number: int, sent_s: float) -> None:
        transfer = self._flows.pop(number)
        transfer.sender.sent(sent_s, transfer.receiver_s)
        self._deliver(transfer, sent_s + transfer.latency_s)

    def _deliver(self, transfer: Transfer, time_s: float) -> None:
        self._delivered += 1
        transfer.receiver.received(transfer.slot, transfer.sender, transfer.source, time_s, transfer.sender_s)

    def _begin(self, transfer: Transfer) -> None:
        self._flows[self._flow(transfer, transfer.num_bytes)] = transfer

    def _flow(self, transfer: Transfer, num_bytes: float) -> int:
        """Begin a flow of a transfer's bytes; return its number."""
        if self._tcp is None or not num_bytes:
            return self._share(transfer, num_bytes, transfer.cap)
        self._num_windows -= 1  # negative, unlike the numbers of shares
        connection = self._connection(transfer.source, transfer.destination)
        self._open_window(Windows(connection, transfer, self._num_windows, num_bytes))
        return self._num_windows

    def _share(self, transfer: Transfer, num_bytes: float, cap: float) -> int:
        assert self._sharing is not None
        number = self._sharing.start(self._clock.now, transfer.links, num_bytes, cap, transfer.weight)
        self._solve_late()
        return number

    def _open_window(self, windows: Windows) -> None:
        now_s = self._clock.now
        leave = windows.connection.next(now_s, self._wanted_bytes(windows))
        if not leave.num_bytes:
            if leave.not_before_s < float("inf"):
                self._clock.at(leave.not_before_s, self._open_window, windows)
            else:
                self._behind[windows.connection.other].append(windows)
            return
        windows.piece, windows.since_s = leave.num_bytes, now_s
        windows.rest -= leave.num_bytes
        cap = min(windows.transfer.cap, leave.cap_bytes_per_s)
        self._pieces[self._share(windows.transfer, leave.num_bytes, cap)] = windows

    def _wanted_bytes(self, windows: Windows) -> float:
        return windows.rest

    def _finish(self, number: int, now_s: float) -> None:
        windows = self._pieces.pop(number, None)
        if windows is None:
            self._arrive(number, now_s)
            return
        windows.connection.left(windows.since_s, now_s, windows.piece)
        for waiting in self._behind.pop(windows.connection, ()):
            self._open_window(waiting)
        if windows.rest > 0:
            self._open_window(windows)
        else:
            self._arrive(windows.flow, now_s)

    def _solve_late(self) -> None:
        if not self._solving:
            self._solving = True
            self._clock.at(self._clock.now, self._solve, None, LATE)

    def _solve(self, _: None) -> None:
        """At the end of this instant, finish flows and solve the rates of the others."""
        assert self._sharing is not None
        self._solving = False
        now_s = self._clock.now
        for number in self._sharing.finished(now_s):
            self._finish(number, now_s)
        for link, bandwidth in self._changes.until(now_s).items():
            self._sharing.change(link, bandwidth * self._efficiency)
        self._sharing.solve(now_s)
        next_s = self._sharing.next_finish_s
        if self._sharing.in_flight:  # else changes must not keep the clock going
            next_s = min(next_s, self._changes.next_s)
        if next_s < self._alarm_s or self._alarm_s <= now_s:
            if next_s != float("inf"):
                self._alarm_s = max(next_s, now_s)
                self._clock.at(self._alarm_s, self._wake, self._alarm_s, LATE)
            else:
                self._alarm_s = next_s

    def _wake(self, time_s: float) -> None:
        if time_s == self._alarm_s and not self._solving:
            self._solve(None)
