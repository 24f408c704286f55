"""What varies: latencies from message to message, bandwidths as time goes on.

A latency is that of the route, times a random factor where there is jitter. A bandwidth is piecewise
constant, from a table or from random slow periods.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heapify, heapreplace
from itertools import count
from math import inf

from .. import seeds
from ..jitter import Jitter
from .network import Link, Network
from .settings import BandwidthTrace, SlowPeriods


def peak_bytes_per_s(link: Link) -> float:
    """The most that a link ever carries."""
    trace = link.variation.trace if link.variation is not None else None
    return max(step.bandwidth for step in trace.steps) if trace is not None else link.bandwidth_bytes_per_s


class BandwidthChanges:
    """The bandwidths of all links that vary, in the order of time.

    Args:
        links: of the network; those without a variation never change.
        seed: of the run. Each link has its own random numbers, so its periods depend on nothing else.
    """

    def __init__(self, links: Sequence[Link], seed: int) -> None:
        self._heap: list[tuple[float, int, float, Iterator[tuple[float, float]]]] = []
        for index, link in enumerate(links):
            if link.variation is not None:
                steps = _steps(link, index, seed)
                self._heap.append((*_first(steps, index), steps))
        heapify(self._heap)

    @property
    def next_s(self) -> float:
        """When the next change is due; ``inf`` if there is none."""
        return self._heap[0][0] if self._heap else inf

    def until(self, now_s: float) -> dict[int, float]:
        """Take all changes up to ``now_s``: link -> its bandwidth now, in bytes per second."""
        bandwidths: dict[int, float] = {}
        while self._heap and self._heap[0][0] <= now_s:
            _, index, bandwidth, steps = self._heap[0]
            bandwidths[index] = bandwidth
            heapreplace(self._heap, (*_first(steps, index), steps))
        return bandwidths


def _first(steps: Iterator[tuple[float, float]], index: int) -> tuple[float, int, float]:
    time_s, bandwidth = next(steps, (inf, 0.0))
    return time_s, index, bandwidth


def _steps(link: Link, index: int, seed: int) -> Iterator[tuple[float, float]]:
    assert link.variation is not None
    if link.variation.trace is not None:
        return _traced(link.variation.trace)
    assert link.variation.markov is not None
    return _markov(link.variation.markov, link.bandwidth_bytes_per_s, index, seed)


def _traced(trace: BandwidthTrace) -> Iterator[tuple[float, float]]:
    for cycle in count():
        for step in trace.steps:
            yield cycle * (trace.period or 0.0) + step.at, step.bandwidth
        if trace.period is None:
            return


def _markov(periods: SlowPeriods, nominal: float, index: int, seed: int) -> Iterator[tuple[float, float]]:
    """Exponential periods, begun in the stationary state (exponential periods have no memory)."""
    slow = seeds.uniform(seed, index, "bandwidth start", 0) < periods.slow / (periods.slow + periods.fast)
    time_s = 0.0
    for number in count():
        yield time_s, nominal * periods.factor if slow else nominal
        block, offset = divmod(number, seeds.BLOCK)
        length = float(seeds.exponentials(seed, index, "bandwidth", block)[offset])
        time_s += length * (periods.slow if slow else periods.fast)
        slow = not slow


class Factors:
    """Random factors of latencies; the k-th message that a host sends has the k-th factor of that host.

    Args:
        jitter: their distribution.
        hosts: how many there are.
        seed: of the run.
    """

    def __init__(self, jitter: Jitter, hosts: int, seed: int) -> None:
        self._jitter = jitter
        self._seed = seed
        self._drawn = [0] * hosts
        self._factors: list[list[float]] = [[] for _ in range(hosts)]

    def draw(self, source: int) -> float:
        """The factor of the next message from ``source``."""
        block, offset = divmod(self._drawn[source], seeds.BLOCK)
        self._drawn[source] += 1
        if offset == 0:
            self._factors[source] = self._jitter.factors(self._seed, source, "latency", block).tolist()
        return self._factors[source][offset]


class Latencies:
    """Draws latencies, see ``Factors``.

    Args:
        network: for the routes and the jitter; without it every message takes its route's latency.
        seed: of the run.
        added_s: what hosts and switches add, without jitter.
    """

    def __init__(self, network: Network, seed: int, added_s: float) -> None:
        self._network = network
        self._added_s = added_s
        self._factors = Factors(network.jitter, network.num_hosts, seed) if network.jitter else None

    def draw_s(self, source: int, destination: int) -> float:
        """One-way latency of the next message from ``source``, here to ``destination``."""
        latency_s = self._network.route(source, destination).latency_s
        if self._factors is not None:
            latency_s *= self._factors.draw(source)
        return latency_s + self._added_s
