"""Messages in virtual time: rendezvous, then bytes over shared links.

A transfer's bytes leave when both sides are ready: at the later of *sender ready* and *receiver ready plus
its announcement's latency*, plus the software overhead. The sender is done when the last byte has left, the
receiver one route latency later. ``Streams`` refines this to the behaviour of TCP connections.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from .. import seeds
from ..network import variation
from ..network.transport import TransferModel
from ..program.operations import ANY
from . import rendezvous
from .clock import LATE, Clock
from .sharing import FairSharing, rtt_weight

_EVEN: Final = 1_000
"""The weight of an even share, where shares are drawn: weights are whole numbers."""

_MOST_UNEVEN: Final = 2.0
"""Largest factor by which a message's share differs from an even one."""

_NO_TIME_S: Final = sys.float_info.min
"""Of a message on links without a limit, for ratios of times."""

PATTERN_TAG: Final = "mix"
"""Tag of the messages of mixes."""


class Transfers:
    """Matches sends with receives and moves their bytes.

    Attributes:
        messages: number of messages, including those of collectives that were priced as a whole.
        begun: number of matched transfers.
        posts: of sends and receives, as long as they have no match.
        watch: called with the hosts of each post of a receive and of each transfer, before it has an effect.
    """

    def __init__(self, clock: Clock, model: TransferModel) -> None:
        self._clock = clock
        self._model = model
        self._network = model.network
        self._workers = model.network.num_hosts
        self._overhead_s = model.overhead_s
        self._plain_tag = PATTERN_TAG if model.plain_patterns else None
        self._pattern_overhead_s = model.pattern_overhead_s
        self._announcement = model.announcement
        self._latencies = variation.Latencies(model.network, model.seed, model.added_latency_s)
        self._constant_s: dict[int, float] = {}  # latencies that never vary, by source * n + destination
        self._changes = variation.bandwidth_changes(model.network.links, model.seed)
        bandwidths = model.bandwidths_bytes_per_s
        self._shares = model.sharing != "none"  # else each message has its links alone
        self._sharing: FairSharing | FifoSharing = FairSharing(bandwidths)
        if model.queue != "fair" and self._shares:
            from .fifo import FifoSharing

            self._sharing = FifoSharing(bandwidths)
        self._by_rtt = model.sharing == "rtt"
        self._uneven, self._seed = model.uneven, model.seed
        self._uneven_s = model.uneven_s or (0.0,)
        self._uneven_s_per_byte = model.uneven_s_per_byte or (0.0,)
        self._shared = [0] * model.network.num_hosts  # shares drawn so far, by host
        self._alone: dict[int, float] = {}
        self.posts = rendezvous.Posts(rendezvous.Posted)
        self._flows: dict[int, rendezvous.Transfer] = {}
        self._hosts = None
        if model.tcp is not None:
            from .tcp.stock_hosts import StockHosts

            self._hosts = StockHosts(clock, model, self._sharing, self._share, self._arrive)
        self._solving = False
        self._alarm_s = float("inf")
        self.messages = 0
        self.begun = 0
        self.watch: Callable[..., None] | None = None
        self._delivered = 0
        self._between: dict[int, int] = {}  # messages that have not arrived, by pair of hosts

    @property
    def in_flight(self) -> int:
        """Number of matched transfers that share links and have not arrived."""
        return self.begun - self._delivered

    @property
    def work(self) -> int:
        """Number of matched transfers, more where they are queued cell by cell."""
        return self.begun + self._sharing.queued_work

    def pairs(self) -> Iterator[tuple[int, int]]:
        """Sources and destinations of matched transfers that have not arrived."""
        return (divmod(key, self._workers) for key, number in self._between.items() if number)

    def uses(self, host: int) -> bool:
        """Whether bytes of a host are still in flight though their sender is done."""
        return False

    def send(
        self,
        source: int,
        destination: int,
        tag: rendezvous.Tag,
        num_bytes: int,
        side: rendezvous.TransferSide,
    ) -> None:
        """Post a send now."""
        box = self.posts[tag]
        key = source * self._workers + destination
        plain = tag == self._plain_tag
        if self._hosts is not None and self._announcement and not plain:
            posted = box.receives.get(key)
            if not (posted and self._is_known(posted[0])):
                self._send_word(source, destination)
        transfer = rendezvous.post_send(box, key, side, self._clock.now, num_bytes, plain)
        if transfer is not None:
            self._match(source, destination, transfer)
        elif box.known is not None:
            self._announce_send(box, key, box.sends[key][-1])

    def _announce_send(self, box: rendezvous.Posted, key: int, send: rendezvous.Transfer) -> None:
        """Announce a waiting send to a receiver that takes from anybody."""
        if not self._announcement:
            self._send_known((box, key, send))
            return
        source, destination = divmod(key, self._workers)
        known_s = send.sender_s + self._announcement * self._latency_s(source, destination)
        self._clock.at(max(known_s, self._clock.now), self._send_known, (box, key, send))

    def _send_known(self, announced: tuple[rendezvous.Posted, int, rendezvous.Transfer]) -> None:
        box, key, send = announced
        source, destination = divmod(key, self._workers)
        waiting = box.sends.get(key, ())
        if not any(each is send for each in waiting):
            return
        receive = rendezvous.take_first(box.receives, ANY * self._workers + destination)
        if receive is None:
            assert box.known is not None
            box.known.setdefault(destination, deque()).append(source)
            return
        word = self._announce(destination, source)
        transfer = rendezvous.post_receive(box, key, receive.receiver, receive.receiver_s, receive.slot, word)
        assert transfer is not None
        self._match(source, destination, transfer)

    def receive(
        self, source: int, destination: int, tag: rendezvous.Tag, side: rendezvous.TransferSide, slot: int
    ) -> None:
        """Post a receive now; with ``source`` ``ANY`` it takes the send that was posted first."""
        if self.watch is not None:
            self.watch(destination)
        box = self.posts[tag]
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
        transfer = rendezvous.post_receive(box, key, side, now_s, slot, announced)
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

    def _announce(self, receiver: int, sender: int) -> rendezvous.Announced:
        if not self._announcement:
            return self._clock.now
        self._send_word(receiver, sender)
        return self._clock.now + self._announcement * self._latency_s(receiver, sender)

    def _send_word(self, source: int, destination: int) -> None:
        if self._hosts is not None:
            self._hosts.connection(source, destination).sends(self._clock.now)

    def _is_known(self, receive: rendezvous.Transfer) -> bool:
        announced = receive.announced
        known_s = announced.arrival_s if isinstance(announced, rendezvous.Notice) else announced
        return known_s is not None and known_s <= self._clock.now

    def replay(self, start_s: float, begin: Callable[[], None]) -> None:
        """Begin transfers in the past, on links that nothing else has used since, and continue them now."""
        sharing, watch, self.watch = self._sharing, self.watch, None
        if self._shares and isinstance(sharing, FairSharing):
            self._sharing = beside = sharing.beside()
            self._solving, self._alarm_s = False, float("inf")
            self._clock.replay(start_s, begin)
            sharing.adopt(beside)
            self._sharing, self._alarm_s = sharing, float("inf")
            self._solve_late()
        else:
            self._clock.replay(start_s, begin)
        self.watch = watch

    def close(self, tag: rendezvous.Tag) -> None:
        """Forget a tag that will not be used again."""
        self.posts.pop(tag, None)  # a collective of one worker has sent nothing

    def _match(self, source: int, destination: int, transfer: rendezvous.Transfer) -> None:
        if self.watch is not None:
            self.watch(source, destination)
        self._count(source, destination)
        announced = transfer.announced
        if isinstance(announced, rendezvous.Notice):
            if announced.arrival_s is None:
                announced.then = partial(self._launch, source, destination, transfer)
                return
            announced = announced.arrival_s
        self._launch(source, destination, transfer, announced)

    def _count(self, source: int, destination: int) -> None:
        self.messages += 1
        self.begun += 1
        key = source * self._workers + destination
        self._between[key] = self._between.get(key, 0) + 1

    def _launch(
        self, source: int, destination: int, transfer: rendezvous.Transfer, announced_s: float
    ) -> None:
        sender_s = transfer.sender_s
        start_s = sender_s if sender_s >= announced_s else announced_s
        start_s += self._pattern_overhead_s if transfer.plain else self._overhead_s
        self._set_out(source, destination, transfer, start_s)

    def _set_out(self, source: int, destination: int, transfer: rendezvous.Transfer, start_s: float) -> None:
        if not self._shares:
            self._leave_alone(source, destination, transfer, start_s)
            return
        self._plan_route(source, destination, transfer)
        if transfer.plain:
            Transfers._enqueue(self, transfer, start_s)
        else:
            self._enqueue(transfer, start_s)

    def _leave_alone(
        self, source: int, destination: int, transfer: rendezvous.Transfer, start_s: float
    ) -> None:
        latency_s = self._latency_s(source, destination)
        sent_s = start_s + transfer.num_bytes / self._rate_alone(source, destination)
        transfer.sender.sent(sent_s, transfer.receiver_s)
        transfer.receiver.received(
            transfer.slot, transfer.sender, source, sent_s + latency_s, transfer.sender_s
        )

    def _plan_route(self, source: int, destination: int, transfer: rendezvous.Transfer) -> None:
        route = self._network.route(source, destination)
        transfer.source, transfer.destination = source, destination
        transfer.latency_s, transfer.links = self._latency_s(source, destination), route.links
        transfer.cap = route.per_flow_bytes_per_s * self._model.efficiency
        transfer.weight = rtt_weight(self._model.round_trip_s(source, destination)) if self._by_rtt else 1
        if self._uneven and transfer.num_bytes:
            transfer.weight = self._drawn_weight(transfer)

    def carry(
        self, source: int, destination: int, num_bytes: float, side: rendezvous.TransferSide, start_s: float
    ) -> None:
        """Send bytes at ``start_s``, or now if that has passed; both ends are already there.

        Both calls of ``side`` follow: when the last byte has left, and when it has arrived.
        """
        if self.watch is not None:
            self.watch(source, destination)
        self._count(source, destination)
        transfer = rendezvous.Transfer()
        transfer.sender = transfer.receiver = side
        transfer.sender_s = transfer.receiver_s = self._clock.now
        transfer.num_bytes, transfer.slot, transfer.plain = num_bytes, 0, True
        self._set_out(source, destination, transfer, start_s)

    def _enqueue(self, transfer: rendezvous.Transfer, start_s: float) -> None:
        if start_s <= self._clock.now:
            self._begin(transfer)
        else:
            self._clock.at(start_s, self._begin, transfer)

    def _drawn_weight(self, transfer: rendezvous.Transfer) -> int:
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
        alone_s = max(transfer.num_bytes / self._rate_alone(source, transfer.destination), _NO_TIME_S)
        slower = 1 + longer_s / alone_s
        return max(1, round(_EVEN * transfer.weight / min(max(slower, 1 / _MOST_UNEVEN), _MOST_UNEVEN)))

    def _rate_alone(self, source: int, destination: int) -> float:
        key = source * self._workers + destination
        if key not in self._alone:
            self._alone[key] = self._model.alone_bytes_per_s(source, destination)
        return self._alone[key]

    def _arrive(self, number: int, sent_s: float) -> None:
        transfer = self._flows.pop(number)
        transfer.sender.sent(sent_s, transfer.receiver_s)
        self._deliver(transfer, sent_s + transfer.latency_s)

    def _deliver(self, transfer: rendezvous.Transfer, time_s: float) -> None:
        self._delivered += 1
        self._between[transfer.source * self._workers + transfer.destination] -= 1
        transfer.receiver.received(transfer.slot, transfer.sender, transfer.source, time_s, transfer.sender_s)

    def _begin(self, transfer: rendezvous.Transfer) -> None:
        self._flows[self._flow(transfer, transfer.num_bytes)] = transfer

    def _flow(self, transfer: rendezvous.Transfer, num_bytes: float) -> int:
        """Begin a flow of a transfer's bytes; return its number."""
        if self._hosts is None or not num_bytes:
            return self._share(transfer, num_bytes, transfer.cap)
        return self._hosts.begin(transfer, num_bytes)

    def _share(self, transfer: rendezvous.Transfer, num_bytes: float, cap: float) -> int:
        number = self._sharing.start(self._clock.now, transfer.links, num_bytes, cap, transfer.weight)
        self._solve_late()
        return number

    def _solve_late(self) -> None:
        if not self._solving:
            self._solving = True
            self._clock.at(self._clock.now, self._solve, None, LATE)

    def _solve(self, _: None) -> None:
        """At the end of this instant, finish flows and solve the rates of the others."""
        self._solving = False
        now_s = self._clock.now
        finish = self._arrive if self._hosts is None else self._hosts.finish
        for number in self._sharing.finished(now_s):
            finish(number, now_s)
        for link, bandwidth in self._changes.until(now_s).items():
            self._sharing.change(link, bandwidth * self._model.efficiency)
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
