"""Topologies by name: the sequence of mixing patterns that a scheme goes through."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from sim.errors import InputError, nearest
from sim.pattern import Pattern
from sim.topology import graphs, weights
from sim.topology.graphs import Sources

WEIGHTS: Mapping[str, Callable[[Sources], Pattern]] = {
    "uniform": weights.uniform,
    "metropolis": weights.metropolis,
}


@dataclass(frozen=True)
class Topology:
    """A graph for every step, periodic in the step.

    Attributes:
        name: as in scenarios.
        sources: the graph of n workers at a step.
        period: after how many steps it repeats.
        directed: whether i may hear j without j hearing i.
    """

    name: str
    sources: Callable[[int, int], Sources]
    period: Callable[[int], int]
    directed: bool

    def check(self, workers: int) -> None:
        """Raise ``InputError`` where the topology has no graph of that many workers."""
        if workers < 2:
            raise InputError(f"topology {self.name} needs at least 2 workers, not {workers}")


def _static(n: int) -> int:
    return 1


TOPOLOGIES: Mapping[str, Topology] = {
    t.name: t
    for t in (
        Topology("ring", graphs.ring, _static, directed=False),
        Topology("complete", graphs.complete, _static, directed=False),
        Topology("static_exponential", graphs.static_exponential, _static, directed=True),
        Topology(
            "one_peer_exponential",
            graphs.one_peer_exponential,
            lambda n: len(graphs.exponential_offsets(n)),
            directed=True,
        ),
    )
}


def topology_named(name: str) -> Topology:
    """Look a topology up.

    Raises:
        InputError: no such topology; names the nearest.
    """
    if name not in TOPOLOGIES:
        raise InputError(f"unknown topology '{name}'; {nearest(name, TOPOLOGIES)}")
    return TOPOLOGIES[name]


@lru_cache(maxsize=64)
def patterns(name: str, workers: int, weighting: str) -> tuple[Pattern, ...]:
    """The mixing patterns of one period: step k uses ``patterns[k % len(patterns)]``.

    Raises:
        InputError: the topology, the weighting or the worker count is not possible.
    """
    topology = topology_named(name)
    topology.check(workers)
    if weighting not in WEIGHTS:
        raise InputError(f"unknown weights '{weighting}'; {nearest(weighting, WEIGHTS)}")
    if weighting == "metropolis" and topology.directed:
        raise InputError(f"metropolis weights need an undirected graph, {name} is directed: use uniform")
    rule = WEIGHTS[weighting]
    return tuple(rule(topology.sources(workers, k)) for k in range(topology.period(workers)))
