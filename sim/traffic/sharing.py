"""Max-min fair sharing of links: which rate each transfer gets, and when it ends.

A pure algorithm: it has no clock of its own and starts nothing. The caller reports what begins at which
instant, reads the earliest finish, and continues there.

How it works:

- **Progressive filling.** All rates rise together; a flow stops at its cap, or when a link on its way is
  full. The result is the max-min fair one: no rate can be raised without lowering a smaller or equal one.
- **Weights.** Where flows have weights, rates rise in proportion to them, and all of this holds for rates
  per weight. Weights are whole numbers, so that sums of them are exact however flows come and go.
  ``rtt_weight`` makes them from round trips: of TCP connections with the same losses, one gets ``1 / RTT``.
- **Components.** A start or an end can only change flows that are connected to it through links that may
  be full. A link that the flows on it could not fill if each ran as fast as its cap and its own links
  allow connects nothing. Only touched components are solved again.
- **Lazy updates.** A flow keeps (bytes left, rate, since when, finish). They are brought up to date only
  when its rate changes, so that a flow of constant rate ends at exactly start + size / rate. A rate is kept
  as the quotient that it came from: bytes * flows / bandwidth is exact where bytes / (bandwidth / flows)
  need not be.
- **Ties.** Shares within ``TIE`` of each other (relative) are one level, a rate that moves by less than that
  has not changed, and flows that end within ``TIE * now`` after now end now. Without this, flows that end
  together on paper would end in n instants a rounding error apart, each with its own solution.

References:
    Bertsekas and Gallager, Data Networks, 2nd ed. 1992, section 6.5.2 (progressive filling; a flow is max-min
    optimal if and only if it is at its cap or has a bottleneck link).
    Mathis, Semke, Mahdavi and Ott, The macroscopic behavior of the TCP congestion avoidance algorithm,
    Computer Communication Review 27(3), 1997 (the rate of a connection is proportional to 1 / RTT).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import inf

import numpy as np

from ..collectives.classes import TIE

# Below this many flows plain Python is faster than filling arrays (measured: they meet at 200 to 400).
_VECTORISE_FROM = 256
_LEAST_RTT_S = 1e-6


def rtt_weight(rtt_s: float) -> int:
    """The weight of a flow with this round trip, proportional to its inverse; below 1 µs as 1 µs."""
    return max(1, round(1e6 / max(rtt_s, _LEAST_RTT_S)))


@dataclass(slots=True, eq=False)
class _Flow:
    """One transfer: how far it is, and marks for the search for components."""

    number: int
    since_s: float
    links: tuple[int, ...]
    remaining: float
    cap: float
    peak: float  # the most it can get: the smaller of its cap and its links' bandwidths
    weight: int
    numerator: float = 0.0  # rate = numerator / divisor
    divisor: int = 1
    rate: float = 0.0
    finish_s: float = inf
    mark: int = 0
    index: int = 0


# A flow with its new rate as a quotient.
_Rates = list[tuple[_Flow, float, int]]


class FairSharing:
    """Max-min fair rates of transfers over shared links, recomputed when one starts or ends.

    At one instant: ``finished`` and any number of ``start`` and ``change``, then ``solve`` once. Then
    ``next_finish_s`` is the next instant at which something ends by itself.

    Args:
        bandwidth_bytes_per_s: one positive number per link; ``inf`` is a link that limits nothing.

    >>> sharing = FairSharing([8.0])
    >>> flows = [sharing.start(0.0, (0,), size, float("inf")) for size in (8.0, 16.0)]
    >>> sharing.solve(0.0)
    >>> sharing.next_finish_s, sharing.finished(2.0)
    (2.0, [0])
    >>> sharing.solve(2.0)
    >>> sharing.next_finish_s
    3.0
    """

    queued_work = 0
    """Beside one for each transfer, as in ``FifoSharing``."""

    def __init__(self, bandwidth_bytes_per_s: Sequence[float]) -> None:
        self._bandwidth = [float(bandwidth) for bandwidth in bandwidth_bytes_per_s]
        num_links = len(self._bandwidth)
        self._on_link: list[dict[int, _Flow]] = [{} for _ in range(num_links)]
        self._demand = [0.0] * num_links  # sum of the peaks of the flows on it
        self._fillable = [False] * num_links  # whether that exceeds the bandwidth, as of the last solve
        self._flows: dict[int, _Flow] = {}
        self._num_started = 0
        self._changed: list[_Flow] = []  # those that are new, or can get more or less than before
        self._touched: dict[int, None] = {}  # links; a dict keeps the order, so runs repeat exactly
        self._heap: list[tuple[float, int]] = []  # (finish, flow); stale unless it is that flow's finish
        self._epoch = 0
        # Scratch space of the search and of the filling, per link.
        self._link_mark = [0] * num_links
        self._residual = [0.0] * num_links
        self._count = [0] * num_links  # weights of the flows without a rate
        self.next_finish_s = inf

    def start(
        self, now_s: float, links: tuple[int, ...], size_bytes: float, cap_bytes_per_s: float, weight: int = 1
    ) -> int:
        """Begin a transfer; it takes effect at the next ``solve``.

        Args:
            now_s: the present instant.
            links: the links that it crosses, each once.
            size_bytes: not negative.
            cap_bytes_per_s: the most that this transfer may get, ``inf`` for no limit of its own.
            weight: its share of a link, beside the weights of the others; at least 1.

        Returns:
            Its number; they count up from 0. A transfer without bytes, or that nothing limits, ends at once
            and takes no share of any link.
        """
        peak = cap_bytes_per_s
        bandwidth = self._bandwidth
        for link in links:
            if bandwidth[link] < peak:
                peak = bandwidth[link]
        number = self._num_started
        self._num_started = number + 1
        if size_bytes == 0 or peak == inf:
            flow = _Flow(number, now_s, (), size_bytes, peak, peak, weight)
            flow.rate = peak
            flow.finish_s = now_s
            heappush(self._heap, (now_s, number))
        else:
            flow = _Flow(number, now_s, links, size_bytes, cap_bytes_per_s, peak, weight)
            for link in links:
                self._on_link[link][number] = flow
                self._demand[link] += peak
                self._touched[link] = None
            self._changed.append(flow)
        self._flows[number] = flow
        return number

    def beside(self) -> FairSharing:
        """Copy the links without flows, in the same numbering, for flows that ``adopt`` takes over."""
        other = FairSharing(self._bandwidth)
        other._num_started = self._num_started
        return other

    def adopt(self, other: FairSharing) -> None:
        """Take over the flows of ``beside`` as they are, with their rates and ends; ``solve`` next."""
        self._num_started = other._num_started
        for number, flow in other._flows.items():
            self._flows[number] = flow
            flow.mark = 0
            heappush(self._heap, (flow.finish_s, number))
            for link in flow.links:
                self._on_link[link][number] = flow
                self._demand[link] += flow.peak
                self._touched[link] = None

    def change(self, link: int, bandwidth_bytes_per_s: float) -> None:
        """Give a link another bandwidth; it takes effect at the next ``solve``, from that instant on.

        With 0 it carries nothing, and what is on it waits.
        """
        bandwidth = self._bandwidth
        bandwidth[link] = bandwidth_bytes_per_s
        self._touched[link] = None
        for flow in self._on_link[link].values():
            peak = min(flow.cap, *[bandwidth[crossed] for crossed in flow.links])
            for crossed in flow.links:
                self._demand[crossed] += peak - flow.peak
                self._touched[crossed] = None
            flow.peak = peak
            self._changed.append(flow)

    @property
    def in_flight(self) -> bool:
        """Whether any flow has not ended; a link that carries nothing may hold it up."""
        return bool(self._flows)

    def solve(self, now_s: float) -> None:
        """Give every flow of a touched component its fair rate from ``now_s`` on; set ``next_finish_s``."""
        fillable = self._fillable
        seeds = self._changed
        for link in self._touched:
            on_link = self._on_link[link]
            if not on_link:
                self._demand[link] = 0.0  # forgets the rounding errors of sums and differences
            before = fillable[link]
            after = self._demand[link] > self._bandwidth[link]
            fillable[link] = after
            if before or after:
                seeds.extend(on_link.values())
        self._touched.clear()
        self._changed = []
        self._epoch = epoch = self._epoch + 1  # the mark of flows that have been reached
        changed: list[tuple[float, int]] = []
        for seed in seeds:
            if seed.mark < epoch:
                flows, links = self._component(seed, epoch)
                if not links:
                    rates: _Rates = [(seed, seed.peak, 1)]
                elif len(flows) < _VECTORISE_FROM:
                    rates = self._fill(flows, links)
                else:
                    rates = self._fill_arrays(flows, links)
                _apply(now_s, rates, changed)
        self._push(changed)

    def finished(self, now_s: float) -> list[int]:
        """Remove and return the flows that end at ``now_s``, ascending; call ``solve`` next.

        These are all that would end up to ``now_s * (1 + TIE)``.
        """
        until_s = now_s + TIE * abs(now_s)
        done = []
        heap = self._heap
        while heap and heap[0][0] <= until_s:
            finish_s, number = heappop(heap)
            flow = self._flows.get(number)
            if flow is None or flow.finish_s != finish_s:
                continue
            del self._flows[number]
            done.append(number)
            for link in flow.links:
                del self._on_link[link][number]
                self._demand[link] -= flow.peak
                self._touched[link] = None
        self._set_next_finish()
        done.sort()
        return done

    def _component(self, seed: _Flow, epoch: int) -> tuple[list[_Flow], list[int]]:
        """All flows connected to ``seed`` through links that may be full, and those links."""
        fillable, link_mark, on_link = self._fillable, self._link_mark, self._on_link
        seed.mark = epoch
        flows = [seed]
        links = []
        for flow in flows:  # grows while it is read
            for link in flow.links:
                if fillable[link] and link_mark[link] != epoch:
                    link_mark[link] = epoch
                    links.append(link)
                    for other in on_link[link].values():
                        if other.mark < epoch:
                            other.mark = epoch
                            flows.append(other)
        return flows, links

    def _fill(self, flows: list[_Flow], links: list[int]) -> _Rates:
        """Progressive filling of one component in plain Python, level by level."""
        residual, count = self._residual, self._count
        for link in links:
            residual[link] = self._bandwidth[link]
            count[link] = sum([flow.weight for flow in self._on_link[link].values()])
        rates: _Rates = []
        while flows:
            share, numerator, divisor = _lowest_level(links, residual, count)
            # A flow that cannot use this level gets its peak; that leaves the others no less than the level.
            limited = [flow for flow in flows if flow.peak <= share * flow.weight]
            if limited:
                for flow in limited:
                    rates.append((flow, flow.peak, 1))
                    for link in flow.links:
                        residual[link] -= flow.peak
                        count[link] -= flow.weight
                flows = [flow for flow in flows if flow.peak > share * flow.weight]
            else:
                bound = share * (1 + TIE)
                full = {link for link in links if count[link] and residual[link] <= bound * count[link]}
                held = [flow for flow in flows if not full.isdisjoint(flow.links)]
                flows = [flow for flow in flows if full.isdisjoint(flow.links)]
                rates += [(flow, numerator * flow.weight, divisor) for flow in held]
                if flows:
                    self._take(held, links, numerator, divisor)
        return rates

    def _take(self, held: list[_Flow], links: list[int], numerator: float, divisor: int) -> None:
        """Take what flows get at a level from their links, in one product for each link."""
        count = self._count
        before = [count[link] for link in links]
        for flow in held:
            for link in flow.links:
                count[link] -= flow.weight
        for link, had in zip(links, before, strict=True):
            self._residual[link] -= (had - count[link]) * numerator / divisor

    def _fill_arrays(self, flows: list[_Flow], links: list[int]) -> _Rates:
        """Progressive filling of one component with arrays, many levels at once.

        A link whose share (per weight) is the smallest on the way of every flow on it is full in the solution
        at just that share, whatever happens elsewhere, so all such links are settled in the same round.
        """
        for index, flow in enumerate(flows):
            flow.index = index
        on_link = [self._on_link[link] for link in links]
        flow_of = np.array([flow.index for members in on_link for flow in members.values()])
        link_of = np.repeat(np.arange(len(links)), [len(members) for members in on_link])
        peak = np.array([flow.peak for flow in flows])
        weight = np.array([flow.weight for flow in flows])
        residual = np.array([self._bandwidth[link] for link in links])
        rate = np.zeros(len(flows))
        numerator = peak.copy()
        divisor = np.ones(len(flows), dtype=np.int64)
        while flow_of.size:
            count = np.bincount(link_of, weights=weight[flow_of], minlength=len(links)).astype(np.int64)
            share = np.divide(residual, count, out=np.full(len(links), inf), where=count > 0)
            offered = np.full(len(flows), inf)  # per flow: the smallest share on its way
            np.minimum.at(offered, flow_of, share[link_of])
            wanted = np.minimum(offered, peak / weight)
            lowest = np.full(len(links), inf)  # per link: the least that a flow on it can take
            np.minimum.at(lowest, link_of, wanted[flow_of])
            full = (share <= lowest * (1 + TIE))[link_of]  # per (flow, link)
            numerator[flow_of[full]] = residual[link_of[full]] * weight[flow_of[full]]
            divisor[flow_of[full]] = count[link_of[full]]
            settled = np.zeros(len(flows), dtype=bool)
            settled[flow_of] = (peak <= offered * weight)[flow_of]
            numerator[settled] = peak[settled]
            divisor[settled] = 1
            settled[flow_of[full]] = True
            rate[settled] = numerator[settled] / divisor[settled]
            gone = settled[flow_of]
            residual -= np.bincount(link_of[gone], weights=rate[flow_of[gone]], minlength=len(links))
            flow_of, link_of = flow_of[~gone], link_of[~gone]
        return list(zip(flows, numerator.tolist(), divisor.tolist(), strict=True))

    def _push(self, changed: list[tuple[float, int]]) -> None:
        """Put new finishes on the heap; rebuild it when too much of it is stale."""
        heap = self._heap
        if len(heap) + len(changed) > 4 * len(self._flows) + 1000:
            heap[:] = [(flow.finish_s, number) for number, flow in self._flows.items()]
            heapify(heap)
        elif 8 * len(changed) > len(heap):
            heap.extend(changed)
            heapify(heap)
        else:
            for entry in changed:
                heappush(heap, entry)
        self._set_next_finish()

    def _set_next_finish(self) -> None:
        heap = self._heap
        while heap:
            finish_s, number = heap[0]
            flow = self._flows.get(number)
            if flow is not None and flow.finish_s == finish_s:
                self.next_finish_s = finish_s
                return
            heappop(heap)
        self.next_finish_s = inf


def _lowest_level(links: list[int], residual: list[float], count: list[int]) -> tuple[float, float, int]:
    """The smallest share of a link per weight, and the quotient that it comes from."""
    share = numerator = inf
    divisor = 1
    for link in links:
        if count[link]:
            here = residual[link] / count[link]
            if here < share:
                share, numerator, divisor = here, residual[link], count[link]
    return share, numerator, divisor


def _apply(now_s: float, rates: _Rates, changed: list[tuple[float, int]]) -> None:
    """Bring the flows up to date whose rate has changed; append their (finish, number)."""
    for flow, numerator, divisor in rates:
        rate = numerator / divisor
        before = flow.rate
        if before > 0 and abs(rate - before) <= TIE * before:
            continue
        remaining = flow.remaining
        if before > 0:
            remaining -= (now_s - flow.since_s) * flow.numerator / flow.divisor
            if remaining < 0:  # or it would end before now
                remaining = 0.0
        flow.remaining = remaining
        flow.since_s = now_s
        flow.numerator = numerator
        flow.divisor = divisor
        flow.rate = rate
        flow.finish_s = finish_s = now_s + remaining * divisor / numerator if numerator else inf
        changed.append((finish_s, flow.number))
