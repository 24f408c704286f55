"""Variation of latencies from message to message, and of links in time.

A latency is that of the route, times a random factor where there is jitter, plus the links' tables
at that moment. A bandwidth is piecewise constant, from a table, from random slow periods or from outages, in
which it is 0: messages on the link then stay there and continue afterwards, without loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from heapq import heapify, heapreplace
from itertools import count
from math import inf
from typing import Literal

from .. import seeds
from ..jitter import Jitter
from .forms import LinkTrace, Outage, SlowPeriods, Variation
from .network import Link, Network


def trace_of(link: Link) -> LinkTrace | None:
    """Table of a varying link, if it has one."""
    return link.variation.trace if link.variation is not None else None


def peak_bytes_per_s(link: Link) -> float:
    """Peak bandwidth of a link."""
    trace = trace_of(link)
    return max(step.bandwidth for step in trace.steps) if trace is not None else link.bandwidth_bytes_per_s


class LinkChanges:
    """Changes of a number per link in the order of time: its bandwidth, or its added latency.

    ``steps`` are link -> its (time, number), finite or endless.
    """

    def __init__(self, steps: Mapping[int, Iterator[tuple[float, float]]]) -> None:
        self._heap = [(*_first(each, index), each) for index, each in steps.items()]
        heapify(self._heap)

    @property
    def next_s(self) -> float:
        """Time of the next change; ``inf`` if there is none."""
        return self._heap[0][0] if self._heap else inf

    def until(self, now_s: float) -> dict[int, float]:
        """Take all changes up to ``now_s``: link -> its number now."""
        numbers: dict[int, float] = {}
        while self._heap and self._heap[0][0] <= now_s:
            _, index, number, steps = self._heap[0]
            numbers[index] = number
            heapreplace(self._heap, (*_first(steps, index), steps))
        return numbers


def changes_per_s(links: Sequence[Link]) -> float:
    """Long-run rate of bandwidth changes over all links, per second of the clock."""
    variations = [link.variation for link in links if link.variation is not None]
    chains = (2.0 / (each.markov.slow + each.markov.fast) for each in variations if each.markov is not None)
    traces = [each.trace for each in variations if each.trace is not None]
    return sum(chains) + sum(len(trace.steps) / trace.period for trace in traces if trace.period is not None)


def bandwidth_changes(links: Sequence[Link], seed: int) -> LinkChanges:
    """Bandwidths of varying links [bytes/s], each with its own random numbers of the run's ``seed``."""
    return LinkChanges({
        index: _steps(link.variation, link.bandwidth_bytes_per_s, index, seed)
        for index, link in enumerate(links)
        if link.variation is not None
    })  # fmt: skip


class AddedLatencies:
    """Latencies that the tables of a network's links add over time."""

    def __init__(self, links: Sequence[Link]) -> None:
        traces = ((index, trace_of(link)) for index, link in enumerate(links))
        steps = {
            index: _traced(trace, "latency")
            for index, trace in traces
            if trace is not None and trace.adds_latency
        }
        self._changes = LinkChanges(steps)
        self._added_s = dict.fromkeys(steps, 0.0)

    def __bool__(self) -> bool:
        return bool(self._added_s)

    def at_s(self, now_s: float, links: Sequence[int]) -> float:
        """Added seconds of a route over these links; ``now_s`` never decreases from call to call."""
        self._added_s |= self._changes.until(now_s)
        return sum(self._added_s.get(link, 0.0) for link in links)


def _first(steps: Iterator[tuple[float, float]], index: int) -> tuple[float, int, float]:
    time_s, number = next(steps, (inf, 0.0))
    return time_s, index, number


def _steps(variation: Variation, nominal: float, index: int, seed: int) -> Iterator[tuple[float, float]]:
    if variation.trace is not None:
        return _traced(variation.trace, "bandwidth")
    if variation.markov is not None:
        return _markov(variation.markov, nominal, index, seed)
    return _interrupted(variation.outages or (), nominal)


def _interrupted(outages: Sequence[Outage], nominal: float) -> Iterator[tuple[float, float]]:
    for outage in outages:
        yield outage.at, 0.0
        yield outage.at + outage.duration, nominal


def _traced(trace: LinkTrace, what: Literal["bandwidth", "latency"]) -> Iterator[tuple[float, float]]:
    for cycle in count():
        for step in trace.steps:
            yield cycle * (trace.period or 0.0) + step.at, getattr(step, what)
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
    """Random factors of latencies: the k-th message from a host has the k-th factor of that host."""

    def __init__(self, jitter: Jitter, hosts: int, seed: int) -> None:
        self._of_hosts = [_drawn(jitter, host, seed) for host in range(hosts)]

    def draw(self, source: int) -> float:
        """Factor of the next message from ``source``."""
        return next(self._of_hosts[source])


def _drawn(jitter: Jitter, host: int, seed: int) -> Iterator[float]:
    for block in count():
        yield from jitter.factors(seed, host, "latency", block).tolist()


class Latencies:
    """Latencies of messages over a network's routes; ``added_s``: of hosts and switches, without jitter."""

    def __init__(self, network: Network, seed: int, added_s: float) -> None:
        self._network, self._added_s = network, added_s
        self._by_links = AddedLatencies(network.links)
        self._factors = Factors(network.jitter, network.num_hosts, seed) if network.jitter else None

    @property
    def constant(self) -> bool:
        """Whether all messages between two hosts have the same latency."""
        return self._factors is None and not self._by_links

    def draw_s(self, source: int, destination: int, now_s: float = 0.0) -> float:
        """One-way latency of the next message from ``source``, here to ``destination``, sent at ``now_s``."""
        route = self._network.route(source, destination)
        latency_s = route.latency_s
        if self._factors is not None:
            latency_s *= self._factors.draw(source)
        if self._by_links:
            latency_s += self._by_links.at_s(now_s, route.links)
        return latency_s + self._added_s
