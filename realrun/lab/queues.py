"""Queueing of packets at links: exact arithmetic on given times, with no clock and no device.

A packet may be a segmentation-offload packet of up to 64 KB, which stands for some 45 packets on a
real wire. Both disciplines therefore treat its bytes as a fluid that streams through the links of
its path at once (cut-through): crossing two links of equal speed takes hardly longer than one.

``Fair``
    Every link serves the flows that wait at it at equal rates, and gives to the others what a flow
    cannot use (generalised processor sharing, the limit of fair queueing with tiny packets). A flow
    that is held up at one link only shares it; rates are max-min per link, link after link.
``Fifo``
    Every link serves in order of arrival; a small packet waits for all bytes in front of it.

A path's ``cap`` is a link of its own in front of the path, which only that flow crosses.

References:
    Parekh and Gallager, "A generalized processor sharing approach to flow control in integrated
    services networks: the single-node case", IEEE/ACM Transactions on Networking 1(3), 1993.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from typing import Generic, TypeVar

from paceline.sim.errors import InputError
from paceline.sim.traffic.fifo import CellQueues

MTU_BYTES = 1500

P = TypeVar("P")
Leave = Callable[[float, P], None]
"""Called with the time at which a packet's last byte leaves its last link, which may lie ahead."""


@dataclass(frozen=True, slots=True)
class Path:
    """The links of a flow, in order, and its own rate limit."""

    links: tuple[int, ...]
    cap_bytes_per_s: float = math.inf


@dataclass(slots=True, eq=False)
class _Link(Generic[P]):
    bytes_per_s: float
    rank: int
    flows: dict[_Flow[P], int] = field(default_factory=dict)
    """The active flows, and the number of this link's hop on each."""


@dataclass(slots=True, eq=False)
class _Flow(Generic[P]):
    path: tuple[_Link[P], ...]
    slowest_bytes_per_s: float
    backlog: list[float]
    """Bytes that wait at each hop, at ``since_s``."""
    rate: list[float]
    """Bytes per second that leave each hop; what leaves hop h enters hop h + 1 at once."""
    packets: deque[tuple[int, P]] = field(default_factory=deque)
    remaining: float = 0.0
    """Bytes of the first packet that have not left the last hop, at ``since_s``."""
    since_s: float = 0.0
    turn: int = -1
    """Number of the flow's only valid event in the heap."""
    empties: int = -1
    """The hop that is empty at that event; -1 if the first packet is through instead."""
    not_before_s: float = -math.inf

    def advance(self, now_s: float) -> None:
        elapsed = now_s - self.since_s
        if elapsed > 0:
            inflow = 0.0
            for hop, rate in enumerate(self.rate):
                if rate != inflow:
                    self.backlog[hop] = max(0.0, self.backlog[hop] + (inflow - rate) * elapsed)
                inflow = rate
            self.remaining -= inflow * elapsed
        self.since_s = now_s


class Fair(Generic[P]):
    """Serves the flows that wait at a link at equal rates: see the head of this module.

    A packet of at most one MTU whose flow has nothing waiting passes at its slowest link's full speed and
    takes nothing from the others: under fair queueing it would wait for about one packet of 1,500 bytes.

    ``leave`` is called for each packet when its time is known; ``paths`` are all that packets will take.
    Raises ``InputError`` where they cross links in a circle, so that no order of computation exists.
    """

    def __init__(
        self, bandwidth_bytes_per_s: Sequence[float], paths: Iterable[Path], leave: Leave[P]
    ) -> None:
        rank = _order(len(bandwidth_bytes_per_s), paths)
        self._links = [_Link[P](b, r) for b, r in zip(bandwidth_bytes_per_s, rank, strict=True)]
        self._leave = leave
        self._flows: dict[Hashable, _Flow[P]] = {}
        self._events: list[tuple[float, int, _Flow[P]]] = []
        self._turn = 0

    def next_s(self) -> float:
        """Time of the next thing for ``advance`` to do; ``inf`` if nothing waits."""
        events = self._events
        while events and events[0][2].turn != events[0][1]:
            heappop(events)
        return events[0][0] if events else math.inf

    def arrive(self, now_s: float, flow: Hashable, path: Path, size_bytes: int, packet: P) -> None:
        """Let a packet of ``flow`` reach the first link of ``path``; call ``advance(now_s)`` first."""
        f = self._flows.get(flow) or self._new_flow(flow, path)
        if not f.path:
            self._leave(now_s, packet)
        elif f.packets:
            f.packets.append((size_bytes, packet))
            f.advance(now_s)
            refilled = f.backlog[0] == 0
            f.backlog[0] += size_bytes
            if refilled:
                self._share(f.path, now_s)
            elif f.empties == 0:
                self._schedule(f, now_s)
        elif (
            size_bytes <= MTU_BYTES
            and f.slowest_bytes_per_s > 0
            and (f.not_before_s - now_s) * f.slowest_bytes_per_s <= MTU_BYTES
        ):
            f.not_before_s = max(now_s, f.not_before_s) + size_bytes / f.slowest_bytes_per_s
            self._leave(f.not_before_s, packet)
        else:
            f.packets.append((size_bytes, packet))
            f.remaining = size_bytes
            f.backlog[:] = [float(size_bytes), *(0.0 for _ in f.path[1:])]
            f.rate[:] = [0.0] * len(f.path)
            f.since_s = now_s
            for hop, link in enumerate(f.path):
                link.flows[f] = hop
            self._share(f.path, now_s)

    def advance(self, now_s: float) -> None:
        """Do everything that happens up to ``now_s``, which never decreases."""
        events = self._events
        while events and events[0][0] <= now_s:
            time_s, turn, flow = heappop(events)
            if flow.turn != turn:
                continue
            flow.advance(time_s)
            if flow.empties >= 0:
                flow.backlog[flow.empties] = 0.0
                self._share(flow.path, time_s)
                continue
            self._leave(max(time_s, flow.not_before_s), flow.packets.popleft()[1])
            if flow.packets:
                flow.remaining = flow.packets[0][0]
                self._schedule(flow, time_s)
            else:
                for link in flow.path:
                    del link.flows[flow]
                self._share(flow.path, time_s)

    def change(self, now_s: float, link: int, bytes_per_s: float) -> None:
        """Give a link another bandwidth, perhaps 0, from now on; call ``advance(now_s)`` first."""
        changed = self._links[link]
        changed.bytes_per_s = bytes_per_s
        for flow in self._flows.values():
            if changed in flow.path:
                flow.slowest_bytes_per_s = min(crossed.bytes_per_s for crossed in flow.path)
        self._share([changed], now_s)

    def _new_flow(self, key: Hashable, path: Path) -> _Flow[P]:
        links = [self._links[i] for i in path.links]
        if math.isfinite(path.cap_bytes_per_s):
            links.insert(0, _Link(path.cap_bytes_per_s, -1))
        slowest = min((link.bytes_per_s for link in links), default=math.inf)
        hops = len(links)
        flow = self._flows[key] = _Flow[P](tuple(links), slowest, [0.0] * hops, [0.0] * hops)
        return flow

    def _share(self, changed: Iterable[_Link[P]], now_s: float) -> None:
        """Set the rates of all flows connected to the ``changed`` links by shared links."""
        links = dict.fromkeys(changed)
        flows: dict[_Flow[P], None] = {}
        todo = list(links)
        while todo:
            for flow in todo.pop().flows:
                if flow not in flows:
                    flows[flow] = None
                    flow.advance(now_s)
                    for link in flow.path:
                        if link not in links:
                            links[link] = None
                            todo.append(link)
        for link in sorted(links, key=lambda link: link.rank):
            _share_link(link)
        for flow in flows:
            self._schedule(flow, now_s)

    def _schedule(self, flow: _Flow[P], now_s: float) -> None:
        """Put the next event of ``flow``, whose state is that of ``now_s``, into the heap."""
        wait, empties, inflow, waiting = math.inf, -1, 0.0, False
        for hop, backlog in enumerate(flow.backlog):
            rate = flow.rate[hop]
            if backlog > 0:
                waiting = True
                if rate > inflow and backlog < wait * (rate - inflow):
                    wait, empties = backlog / (rate - inflow), hop
            inflow = rate
        if not waiting or flow.remaining <= 0:
            # All bytes are through; a remainder is rounding.
            wait, empties = 0.0, -1
        elif inflow > 0 and flow.remaining <= wait * inflow:
            wait, empties = flow.remaining / inflow, -1
        self._turn += 1
        flow.turn, flow.empties = self._turn, empties
        heappush(self._events, (now_s + wait, self._turn, flow))


def _share_link(link: _Link[P]) -> None:
    """Divide one link: a flow with a backlog here wants all it can get, any other no more than comes in."""
    wanted: list[tuple[float, int, _Flow[P], int]] = []
    for index, (flow, hop) in enumerate(link.flows.items()):
        wants = math.inf if flow.backlog[hop] > 0 else flow.rate[hop - 1] if hop else 0.0
        wanted.append((wants, index, flow, hop))
    wanted.sort()
    left, sharers = link.bytes_per_s, len(wanted)
    for wants, _, flow, hop in wanted:
        share = left / sharers
        if wants < share:
            flow.rate[hop] = wants
            left -= wants
            sharers -= 1
        else:
            flow.rate[hop] = share


def _order(num_links: int, paths: Iterable[Path]) -> list[int]:
    """``rank[link]`` such that every path crosses links of ascending rank."""
    before: dict[int, set[int]] = {link: set() for link in range(num_links)}
    for path in paths:
        for a, b in zip(path.links, path.links[1:], strict=False):
            before[b].add(a)
    rank = [0] * num_links
    try:
        for position, link in enumerate(TopologicalSorter(before).static_order()):
            rank[link] = position
    except CycleError as error:
        raise InputError("the lab cannot share links fairly when routes cross them in a circle") from error
    return rank


class Fifo(Generic[P]):
    """Serves packets in order of arrival at every link: ``paceline.sim.traffic.fifo``.

    Arguments as for ``Fair``.
    """

    def __init__(
        self, bandwidth_bytes_per_s: Sequence[float], paths: Iterable[Path], leave: Leave[P]
    ) -> None:
        _order(len(bandwidth_bytes_per_s), paths)
        self._cells = CellQueues[P](bandwidth_bytes_per_s, leave)
        self._leave = leave
        self._flows: dict[Hashable, tuple[int, ...]] = {}

    def next_s(self) -> float:
        """Time of the next thing for ``advance`` to do; ``inf`` if nothing waits."""
        return self._cells.next_s()

    def arrive(self, now_s: float, flow: Hashable, path: Path, size_bytes: int, packet: P) -> None:
        """Let a packet of ``flow`` reach the first link of ``path``; call ``advance(now_s)`` first."""
        links = self._flows.get(flow)
        if links is None:
            capped = math.isfinite(path.cap_bytes_per_s)
            links = (self._cells.add_link(path.cap_bytes_per_s), *path.links) if capped else path.links
            self._flows[flow] = links
        if links:
            self._cells.arrive(now_s, links, size_bytes, packet)
        else:
            self._leave(now_s, packet)

    def advance(self, now_s: float) -> None:
        """Do everything that happens up to ``now_s``, which never decreases."""
        self._cells.advance(now_s)
