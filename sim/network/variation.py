"""Bandwidths that change as time goes on: piecewise constant, from a table or from random slow periods."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heapify, heapreplace
from itertools import count
from math import inf

from .. import seeds
from .network import Link
from .settings import BandwidthTrace, SlowPeriods


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
