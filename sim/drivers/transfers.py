"""Messages in virtual time: rendezvous, then bytes over shared links.

A transfer's bytes start when both sides are there: at the later of *sender ready* and *receiver ready
plus its announcement's latency*, plus the software overhead. The sender is done when the last byte
has left, the receiver one route latency later.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

import torch

from sim.drivers.clock import LATE, Clock
from sim.job import TransferModel
from sim.network.sharing import FairSharing
from sim.operations import ANY

Tensor = torch.Tensor
Tag = str | tuple[str, int, int]


class Part(Protocol):
    """Whoever waits for one side of a transfer."""

    def sent(self, time_s: float, peer_s: float) -> None:
        """The send is complete at ``time_s`` (now or later); the receive was posted at ``peer_s``."""

    def received(self, slot: int, value: Tensor | None, source: int, time_s: float, peer_s: float) -> None:
        """The value is there at ``time_s`` (now or later); the send was posted at ``peer_s``."""


_Sent = tuple[Part, float, int, Tensor | None]
_Posted = tuple[Part, float, int]
_Flow = tuple[Part, Part, int, Tensor | None, int, float, float, float]


class Transfers:
    """Matches sends with receives and moves their bytes."""

    def __init__(self, clock: Clock, model: TransferModel) -> None:
        self._clock = clock
        self._network = model.network
        self._overhead_s = model.overhead_s
        self._announcement = model.announcement
        bandwidths = [link.bandwidth_bytes_per_s for link in model.network.links]
        self._sharing = FairSharing(bandwidths) if model.sharing == "max_min" else None
        self._bandwidths = bandwidths
        self._sends: dict[tuple[int, int, Tag], deque[_Sent]] = {}
        self._receives: dict[tuple[int, int, Tag], deque[_Posted]] = {}
        self._callers: dict[tuple[int, Tag], deque[int]] = {}
        self._flows: dict[int, _Flow] = {}
        self._solving = False
        self._alarm_s = float("inf")
        self.messages = 0

    def send(self, source: int, destination: int, tag: Tag, num_bytes: int, part: Part, value: Tensor | None) -> None:
        """Post a send now."""
        now_s = self._clock.now
        for key in ((source, destination, tag), (ANY, destination, tag)):
            posted = self._receives.get(key)
            if posted:
                receiver, posted_s, slot = posted.popleft()
                self._match(source, destination, num_bytes, part, now_s, value, receiver, posted_s, slot)
                return
        self._sends.setdefault((source, destination, tag), deque()).append((part, now_s, num_bytes, value))
        if type(tag) is str:
            self._callers.setdefault((destination, tag), deque()).append(source)

    def receive(self, source: int, destination: int, tag: Tag, part: Part, slot: int) -> None:
        """Post a receive now; ``source`` may be ``ANY``: then the send that was posted first is taken."""
        now_s = self._clock.now
        if type(tag) is str:
            callers = self._callers.get((destination, tag))
            if callers:
                if source == ANY:
                    source = callers.popleft()
                elif source in callers:
                    callers.remove(source)
        posted = self._sends.get((source, destination, tag))
        if posted:
            sender, posted_s, num_bytes, value = posted.popleft()
            self._match(source, destination, num_bytes, sender, posted_s, value, part, now_s, slot)
        else:
            self._receives.setdefault((source, destination, tag), deque()).append((part, now_s, slot))

    def drop(self, part: Part) -> None:
        """Forget everything that ``part`` has posted and that is not yet matched."""
        for (source, destination, tag), sends in self._sends.items():
            for sent in [s for s in sends if s[0] is part]:
                sends.remove(sent)
                if type(tag) is str:
                    self._callers[destination, tag].remove(source)
        for receives in self._receives.values():
            for received in [r for r in receives if r[0] is part]:
                receives.remove(received)

    def waiting_for(self, worker: int) -> list[Part]:
        """Who has posted something to or from ``worker`` that is not yet matched."""
        found: list[Part] = []
        for (source, destination, _), sends in self._sends.items():
            if destination == worker and source != worker:
                found += [s[0] for s in sends]
        for (source, destination, _), receives in self._receives.items():
            if source == worker and destination != worker:
                found += [r[0] for r in receives]
        return list(dict.fromkeys(found))

    def _match(
        self,
        source: int,
        destination: int,
        num_bytes: int,
        sender: Part,
        sender_s: float,
        value: Tensor | None,
        receiver: Part,
        receiver_s: float,
        slot: int,
    ) -> None:
        self.messages += 1
        route = self._network.route(source, destination)
        announced_s = receiver_s
        if self._announcement:
            announced_s += self._announcement * self._network.route(destination, source).latency_s
        start_s = (sender_s if sender_s >= announced_s else announced_s) + self._overhead_s
        flow = (sender, receiver, slot, value, source, sender_s, receiver_s, route.latency_s)
        if self._sharing is None:
            rate = route.per_flow_bytes_per_s
            for link in route.links:
                rate = min(rate, self._bandwidths[link])
            self._arrive(flow, start_s + num_bytes / rate)
        elif start_s <= self._clock.now:
            self._begin((flow, route.links, num_bytes, route.per_flow_bytes_per_s))
        else:
            self._clock.at(start_s, self._begin, (flow, route.links, num_bytes, route.per_flow_bytes_per_s))

    def _arrive(self, flow: _Flow, sent_s: float) -> None:
        sender, receiver, slot, value, source, sender_s, receiver_s, latency_s = flow
        sender.sent(sent_s, receiver_s)
        receiver.received(slot, value, source, sent_s + latency_s, sender_s)

    def _begin(self, what: tuple[_Flow, tuple[int, ...], int, float]) -> None:
        assert self._sharing is not None
        flow, links, num_bytes, cap = what
        self._flows[self._sharing.start(self._clock.now, links, num_bytes, cap)] = flow
        self._solve_late()

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
            self._arrive(self._flows.pop(number), now_s)
        self._sharing.solve(now_s)
        next_s = self._sharing.next_finish_s
        if next_s < self._alarm_s or self._alarm_s <= now_s:
            if next_s != float("inf"):
                self._alarm_s = max(next_s, now_s)
                self._clock.at(self._alarm_s, self._wake, self._alarm_s, LATE)
            else:
                self._alarm_s = next_s

    def _wake(self, time_s: float) -> None:
        if time_s == self._alarm_s and not self._solving:
            self._solve(None)
