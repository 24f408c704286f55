"""Messages in virtual time: rendezvous, then bytes over shared links.

A transfer's bytes start when both sides are there: at the later of *sender ready* and *receiver ready
plus its announcement's latency*, plus the software overhead. The sender is done when the last byte
has left, the receiver one route latency later. ``Streams`` refines this to what TCP connections do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

from ..network.latency import Latencies
from ..network.sharing import FairSharing, rtt_weight
from ..network.transfer import TransferModel
from ..network.variation import BandwidthChanges
from ..program.encoding import Payload
from ..program.operations import ANY
from .clock import LATE, Clock

Tag = str | tuple[str, int, int]


class TransferSide(Protocol):
    """Whoever waits for one side of a transfer."""

    def sent(self, time_s: float, peer_s: float) -> None:
        """The send is complete at ``time_s`` (now or later); the receive was posted at ``peer_s``."""

    def received(self, slot: int, value: Payload | None, source: int, time_s: float, peer_s: float) -> None:
        """The value is there at ``time_s`` (now or later); the send was posted at ``peer_s``."""


class Notice:
    """A receiver's announcement on its way to the sender; ``then`` is called when it is there."""

    __slots__ = ("arrival_s", "then")

    def __init__(self) -> None:
        self.arrival_s: float | None = None
        self.then: Callable[[float], None] | None = None

    def arrives(self, time_s: float) -> None:
        """It is known when it will be there."""
        self.arrival_s = time_s
        if self.then is not None:
            self.then(time_s)


Announced = float | Notice
"""When the sender knows of a receive."""

_Sent = tuple[TransferSide, float, int, Payload | None]
_Posted = tuple[TransferSide, float, int, Announced]
_Flow = tuple[TransferSide, TransferSide, int, Payload | None, int, float, float, float]
_What = tuple[_Flow, tuple[int, ...], float, float, int]


class _Box:
    """What is posted under one tag and not yet matched: by source * n + destination, oldest first.

    ``callers``: by destination, whose sends it has heard of; only once it has received from anybody.
    """

    __slots__ = ("callers", "receives", "sends")

    def __init__(self) -> None:
        self.sends: dict[int, deque[_Sent]] = {}
        self.receives: dict[int, deque[_Posted]] = {}
        self.callers: dict[int, deque[int]] | None = None


class Transfers:
    """Matches sends with receives and moves their bytes."""

    def __init__(self, clock: Clock, model: TransferModel) -> None:
        self._clock = clock
        self._network = model.network
        self._workers = model.network.num_hosts
        self._overhead_s = model.overhead_s
        self._announcement = model.announcement
        self._latencies = Latencies(model.network, model.seed, model.added_latency_s)
        self._changes = BandwidthChanges(model.network.links, model.seed)
        self._efficiency = model.efficiency
        bandwidths = [link.bandwidth_bytes_per_s * model.efficiency for link in model.network.links]
        self._sharing = FairSharing(bandwidths) if model.sharing != "none" else None
        self._by_rtt = model.sharing == "rtt"
        self._added_latency_s = model.added_latency_s
        self._bandwidths = bandwidths
        self._alone: dict[int, float] = {}
        self._boxes: dict[Tag, _Box] = {}
        self._flows: dict[int, _Flow] = {}
        self._solving = False
        self._alarm_s = float("inf")
        self.messages = 0

    def _box(self, tag: Tag) -> _Box:
        box = self._boxes.get(tag)
        if box is None:
            box = self._boxes[tag] = _Box()
        return box

    def send(
        self,
        source: int,
        destination: int,
        tag: Tag,
        num_bytes: int,
        part: TransferSide,
        value: Payload | None,
    ) -> None:
        """Post a send now."""
        box = self._boxes.get(tag) or self._box(tag)
        key = source * self._workers + destination
        posted = box.receives.get(key)
        if posted:
            receiver, posted_s, slot, announced = posted.popleft()
            now_s = self._clock.now
            self._match(
                source, destination, num_bytes, part, now_s, value, receiver, posted_s, slot, announced
            )
            return
        waiting = box.sends.get(key)
        if waiting is None:
            waiting = box.sends[key] = deque()
        sent = (part, self._clock.now, num_bytes, value)
        waiting.append(sent)
        if box.callers is not None:
            self._call(box, key, sent)

    def _call(self, box: _Box, key: int, sent: _Sent) -> None:
        """Let a receiver that takes from anybody know of a send that waits."""
        if not self._announcement:
            self._heard((box, key, sent))
            return
        source, destination = divmod(key, self._workers)
        heard_s = sent[1] + self._announcement * self._latency_s(source, destination)
        self._clock.at(max(heard_s, self._clock.now), self._heard, (box, key, sent))

    def _heard(self, what: tuple[_Box, int, _Sent]) -> None:
        box, key, sent = what
        source, destination = divmod(key, self._workers)
        waiting = box.sends[key]
        if not any(each is sent for each in waiting):
            return
        posted = box.receives.get(ANY * self._workers + destination)
        if not posted:
            assert box.callers is not None
            box.callers.setdefault(destination, deque()).append(source)
            return
        part, sender_s, num_bytes, value = waiting.popleft()
        receiver, posted_s, slot, _ = posted.popleft()
        announced = self._announce(destination, source)
        self._match(
            source, destination, num_bytes, part, sender_s, value, receiver, posted_s, slot, announced
        )

    def receive(self, source: int, destination: int, tag: Tag, part: TransferSide, slot: int) -> None:
        """Post a receive now; ``source`` may be ``ANY``: then the send that was posted first is taken."""
        box = self._boxes.get(tag) or self._box(tag)
        if source == ANY and box.callers is None:
            box.callers = {}
            waiting_sends = [(sent[1], key, sent) for key, sends in box.sends.items() for sent in sends]
            for _, key, sent in sorted(waiting_sends, key=lambda each: each[:2]):
                self._call(box, key, sent)
        if box.callers is not None:
            callers = box.callers.get(destination)
            if callers:
                if source == ANY:
                    source = callers.popleft()
                elif source in callers:
                    callers.remove(source)
        key = source * self._workers + destination
        posted = box.sends.get(key)
        now_s = self._clock.now
        announced = now_s if source == ANY else self._announce(destination, source)
        if posted:
            sender, posted_s, num_bytes, value = posted.popleft()
            self._match(source, destination, num_bytes, sender, posted_s, value, part, now_s, slot, announced)
            return
        waiting = box.receives.get(key)
        if waiting is None:
            waiting = box.receives[key] = deque()
        waiting.append((part, now_s, slot, announced))

    def _latency_s(self, source: int, destination: int) -> float:
        return self._latencies.draw_s(source, destination)

    def _announce(self, receiver: int, sender: int) -> Announced:
        """A receive is posted now: when does the sender know?"""
        if not self._announcement:
            return self._clock.now
        return self._clock.now + self._announcement * self._latency_s(receiver, sender)

    def close(self, tag: Tag) -> None:
        """Forget a tag that will not be used again."""
        self._boxes.pop(tag, None)  # a collective of one worker has sent nothing

    def drop(self, part: TransferSide) -> None:
        """Forget everything that ``part`` has posted and that is not yet matched."""
        for box in self._boxes.values():
            for sends in box.sends.values():
                for sent in [s for s in sends if s[0] is part]:
                    sends.remove(sent)  # who has heard of it is gone
            for receives in box.receives.values():
                for received in [r for r in receives if r[0] is part]:
                    receives.remove(received)

    def waiting_for(self, worker: int) -> list[TransferSide]:
        """Who has posted something to or from ``worker`` that is not yet matched."""
        found: list[TransferSide] = []
        for box in self._boxes.values():
            for key, sends in box.sends.items():
                if key % self._workers == worker:
                    found += [s[0] for s in sends]
            for key, receives in box.receives.items():
                if key // self._workers == worker:
                    found += [r[0] for r in receives]
        return list(dict.fromkeys(found))

    def _match(
        self,
        source: int,
        destination: int,
        num_bytes: int,
        sender: TransferSide,
        sender_s: float,
        value: Payload | None,
        receiver: TransferSide,
        receiver_s: float,
        slot: int,
        announced: Announced,
    ) -> None:
        self.messages += 1
        if isinstance(announced, Notice) and announced.arrival_s is None:
            announced.then = partial(
                self._launch,
                source,
                destination,
                num_bytes,
                sender,
                sender_s,
                value,
                receiver,
                receiver_s,
                slot,
            )
            return
        announced_s = announced.arrival_s if isinstance(announced, Notice) else announced
        assert announced_s is not None
        self._launch(
            source, destination, num_bytes, sender, sender_s, value, receiver, receiver_s, slot, announced_s
        )

    def _launch(
        self,
        source: int,
        destination: int,
        num_bytes: int,
        sender: TransferSide,
        sender_s: float,
        value: Payload | None,
        receiver: TransferSide,
        receiver_s: float,
        slot: int,
        announced_s: float,
    ) -> None:
        """Both sides are there, or it is known when they will be."""
        start_s = (sender_s if sender_s >= announced_s else announced_s) + self._overhead_s
        latency_s = self._latency_s(source, destination)
        if self._sharing is None:
            rate = self._alone.get(source * self._workers + destination) or self._rate_alone(
                source, destination
            )
            sent_s = start_s + num_bytes / rate
            sender.sent(sent_s, receiver_s)
            receiver.received(slot, value, source, sent_s + latency_s, sender_s)
            return
        route = self._network.route(source, destination)
        flow = (sender, receiver, slot, value, source, sender_s, receiver_s, latency_s)
        cap = route.per_flow_bytes_per_s * self._efficiency
        weight = self._weight(source, destination) if self._by_rtt else 1
        self._enqueue((flow, route.links, num_bytes, cap, weight), start_s, destination)

    def _enqueue(self, what: _What, start_s: float, destination: int) -> None:
        if start_s <= self._clock.now:
            self._begin(what)
        else:
            self._clock.at(start_s, self._begin, what)

    def _weight(self, source: int, destination: int) -> int:
        """Of a connection on its links; round trips as they are without jitter."""
        there, back = self._network.route(source, destination), self._network.route(destination, source)
        return rtt_weight(there.latency_s + back.latency_s + 2 * self._added_latency_s)

    def _rate_alone(self, source: int, destination: int) -> float:
        """Rate of a transfer that has its route for itself."""
        route = self._network.route(source, destination)
        cap = route.per_flow_bytes_per_s * self._efficiency
        rate = min([cap, *(self._bandwidths[link] for link in route.links)])
        self._alone[source * self._workers + destination] = rate
        return rate

    def _arrive(self, number: int, sent_s: float) -> None:
        """The last byte of a flow has left."""
        flow = self._flows.pop(number)
        sender, receiver, slot, value, source, sender_s, receiver_s, latency_s = flow
        sender.sent(sent_s, receiver_s)
        receiver.received(slot, value, source, sent_s + latency_s, sender_s)

    def _begin(self, what: _What) -> None:
        flow, links, num_bytes, cap, weight = what
        self._flows[self._flow(links, num_bytes, cap, weight)] = flow

    def _flow(self, links: tuple[int, ...], num_bytes: float, cap: float, weight: int) -> int:
        assert self._sharing is not None
        number = self._sharing.start(self._clock.now, links, num_bytes, cap, weight)
        self._solve_late()
        return number

    def _solve_late(self) -> None:
        if not self._solving:
            self._solving = True
            self._clock.at(self._clock.now, self._solve, None, LATE)

    def _solve(self, _: None) -> None:
        """Once everything of this instant has been said: who has finished, and who gets what."""
        assert self._sharing is not None
        self._solving = False
        now_s = self._clock.now
        for number in self._sharing.finished(now_s):
            self._arrive(number, now_s)
        for link, bandwidth in self._changes.until(now_s).items():
            self._sharing.change(link, bandwidth * self._efficiency)
        self._sharing.solve(now_s)
        next_s = self._sharing.next_finish_s
        if next_s != float("inf"):  # where nothing is under way, changes must not keep the clock going
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
