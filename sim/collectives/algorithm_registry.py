"""The registry of collective algorithms: a new algorithm is a function and a line here.

Transports are named as in ``cluster.network.transport``; "" is that of result folders of older versions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Final, NamedTuple

from . import algorithms as tables
from . import pipelines
from .collective import Collective, Schedule, of_rounds
from .hierarchy import Sites, count_ranks, hierarchical_all_reduce

Builder = Callable[[Sites, int], Collective]
"""Builds a collective of a payload's bytes among the ranks of some sites."""


class Algorithm(NamedTuple):
    """An algorithm of a collective.

    Attributes:
        name: as in scenarios and records.
        operation: ``all_reduce``; ``reduce_scatter``, ``all_gather``, or ``shares`` for both; ``scatter``, a
            reduce-scatter of values that cannot be summed in transit; ``broadcast``, from rank 0;
            ``barrier``.
        build: from (sites, bytes in all).
        auto: transports that use it without being told: of several algorithms the one with the shortest step,
            for NCCL by its own estimate.
        named: transports that use it if a scenario names it.
        by_site: its ranks are in the order of sites and hosts, not of workers.
    """

    name: str
    operation: str
    build: Builder
    auto: tuple[str, ...]
    named: tuple[str, ...] = ()
    by_site: bool = True


def posted(
    operation: str,
    name: str,
    table: Callable[[int, int], Schedule],
    auto: tuple[str, ...],
    named: tuple[str, ...] = (),
) -> Algorithm:
    """An algorithm of rounds: a rank posts a round when those before it are complete, as gloo does."""
    return Algorithm(name, operation, lambda s, b: of_rounds(table(count_ranks(s), b)), auto, named, False)


ALGORITHMS: Final = (
    # The first of equally fast algorithms is taken.
    Algorithm("hierarchical", "all_reduce", pipelines.hierarchical, ("ideal",), ("nccl",)),
    Algorithm("halving_doubling", "all_reduce", pipelines.halving_doubling, ("ideal",)),
    Algorithm("double_tree", "all_reduce", pipelines.double_tree, ("ideal",)),
    Algorithm("ring", "all_reduce", pipelines.ring, ("ideal",)),
    Algorithm("recursive_doubling", "all_reduce", pipelines.recursive_doubling, (), ("ideal",)),
    Algorithm("nccl_ring", "all_reduce", pipelines.nccl_ring, ("nccl",)),
    Algorithm("nccl_tree", "all_reduce", pipelines.nccl_tree, ("nccl",)),
    posted("all_reduce", "gloo_ring", tables.gloo_ring_all_reduce, ("gloo",), ("", "ideal")),
    posted("all_reduce", "ring_stop_and_wait", tables.ring_all_reduce, ("",), ("ideal", "gloo")),
    posted("all_reduce", "halving_doubling", tables.halving_doubling_all_reduce, (), ("", "gloo")),
    posted("all_reduce", "recursive_doubling", tables.recursive_doubling_all_reduce, (), ("", "gloo")),
    Algorithm(
        "hierarchical", "all_reduce", lambda s, b: of_rounds(hierarchical_all_reduce(s, b)), (), ("", "gloo")
    ),
    Algorithm("ring_share", "shares", pipelines.ring_share, ("ideal",)),
    Algorithm("exchange", "shares", pipelines.exchange, ("ideal",)),
    Algorithm("nccl_ring", "shares", pipelines.nccl_share, ("nccl",)),
    posted("reduce_scatter", "ring", tables.ring_reduce_scatter, ("", "gloo")),
    posted("all_gather", "ring", tables.ring_gather_chunks, ("",)),
    posted("all_gather", "gloo_ring", lambda n, b: tables.gloo_all_gather(n, b // n), ("gloo",)),
    Algorithm("exchange", "scatter", pipelines.exchange, ("ideal", "nccl")),
    posted("scatter", "exchange", tables.direct_reduce_scatter, ("", "gloo")),
    Algorithm("tree", "broadcast", pipelines.tree_broadcast, ("ideal",)),
    Algorithm("chain", "broadcast", pipelines.chain_broadcast, ("ideal",)),
    Algorithm("nccl_chain", "broadcast", pipelines.nccl_broadcast, ("nccl",)),
    posted("broadcast", "binomial", lambda n, b: tables.binomial_broadcast(n, b, 0), ("",)),
    posted("broadcast", "gloo_binomial", lambda n, b: tables.gloo_broadcast(n, b, 0), ("gloo",)),
    Algorithm("dissemination", "barrier", lambda s, _: pipelines.barrier(count_ranks(s)), ("ideal", "nccl")),
    posted("barrier", "dissemination", lambda n, _: tables.dissemination_barrier(n), ("", "gloo")),
)


@cache
def algorithms(operation: str, transport: str, named: bool = False) -> Mapping[str, Algorithm]:
    """The algorithms that a transport uses for an operation by default or, if ``named``, can use.

    >>> list(algorithms("all_gather", "ideal")), list(algorithms("all_reduce", "nccl", True))
    (['ring_share', 'exchange'], ['hierarchical', 'nccl_ring', 'nccl_tree'])
    """
    kinds = ("shares", operation) if operation in ("reduce_scatter", "all_gather") else (operation,)
    return {
        each.name: each
        for each in ALGORITHMS
        if each.operation in kinds and (transport in each.auto or (named and transport in each.named))
    }
