"""The registry's record of a topology, and what it builds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..config.settings import Settings
from .matrix import Matrix


@dataclass(frozen=True, eq=False)
class Graphs:
    """The sequence of graphs of a topology.

    Attributes:
        at: the adjacency [n, n] of a step (from 0), or its mixing matrix where ``weighted``.
        period: number of steps after which the graphs repeat; None: never.
        weighted: the topology comes with weights of its own.
        rate: of a random sequence, the root of the second eigenvalue of E[W'W] with the weights that ``auto``
            means: the factor per step by which disagreement shrinks in mean square.
    """

    at: Callable[[int], Matrix]
    period: int | None = 1
    weighted: bool = False
    rate: float | None = None


class NoOptions(Settings):
    """Options of topologies that have none."""


@dataclass(frozen=True)
class Topology:
    """A registered topology; its row in ``docs/topologies.md``.

    Attributes:
        build: (workers, options, seed) -> the graphs; raises ``InputError`` where there are none.
        workers, degree: accepted numbers of workers, and number of others heard in a step, in words.
        directed: whether i may hear j without j hearing i.
        drawn: whether the graphs depend on the seed.
    """

    name: str
    build: Callable[[int, Any, int], Graphs]
    options: type[Settings]
    workers: str
    degree: str
    directed: bool = False
    drawn: bool = False


def static(graph: Matrix) -> Graphs:
    """A sequence with one graph at every step."""
    return Graphs(lambda step: graph)
