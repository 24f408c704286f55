"""Mixing weights for a graph."""

from __future__ import annotations

from sim.pattern import Pattern
from sim.topology.graphs import Sources


def uniform(sources: Sources) -> Pattern:
    """Each worker gives the same weight to itself and to each source: 1 / (in-degree + 1).

    Row-stochastic on any graph, doubly stochastic where all degrees are equal.
    """
    share = tuple(1.0 / (len(row) + 1) for row in sources)
    return Pattern(
        own=share,
        sources=sources,
        weights=tuple((w,) * len(row) for w, row in zip(share, sources, strict=True)),
    )


def metropolis(sources: Sources) -> Pattern:
    """Metropolis-Hastings weights 1 / (1 + max(deg_i, deg_j)), the rest on itself.

    Doubly stochastic on any undirected graph. Source: Xiao and Boyd, 2004.

    Raises:
        ValueError: the graph is directed.
    """
    if any(i not in sources[j] for i, row in enumerate(sources) for j in row):
        raise ValueError("metropolis weights need an undirected graph")
    degree = [len(row) for row in sources]
    weights = tuple(
        tuple(1.0 / (1 + max(degree[i], degree[j])) for j in row) for i, row in enumerate(sources)
    )
    return Pattern(own=tuple(1.0 - sum(row) for row in weights), sources=sources, weights=weights)
