"""The latency of one message: that of its route, times a random factor where there is jitter."""

from __future__ import annotations

from .. import seeds
from ..jitter import Jitter
from .network import Network


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
