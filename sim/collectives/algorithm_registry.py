"""The registry of collective algorithms: a new algorithm is a function and a line here.

Transports are named as in ``cluster.network.transport``; "" is that of result folders of older versions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from typing import Final, NamedTuple

from ..config.problems import format_value
from ..config.user_code import call as user_code
from ..errors import Deadlock, InputError, quote
from . import algorithms as tables
from . import pipelines
from .algorithms import Sites, count_ranks, hierarchical_all_reduce
from .collective import Collective, Schedule, of_rounds
from .pricing import lay_out

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


# --- users' all-reduces --------------------------------------------------------------------------


def users_all_reduce(name: str) -> Callable[[int, int], Schedule]:
    """Load the all-reduce at ``package.module:name``, a function of (workers, bytes).

    Its schedules are checked for unreceived messages and circular waits. Raises ``InputError`` if there is no
    such function; the all-reduce raises it for a wrong schedule.
    """
    function = user_code.load_object(name)  # refuse a missing one at once
    if not callable(function):
        raise InputError(
            f"{quote(name)} is {format_value(function)}; it must be a function of (workers, bytes)"
        )
    return _users(name, function)


@lru_cache(maxsize=64)
def _users(name: str, function: Callable[..., object]) -> Callable[[int, int], Schedule]:
    """Cache the algorithm; ``function`` is part of the key because its name may be redefined."""

    @cache
    def checked(workers: int, num_bytes: int) -> Schedule:
        arguments = {"workers": workers, "bytes": num_bytes}
        schedule = user_code.call(name, arguments, user_code.instance_of(Schedule), "a paceline.Schedule")
        who = user_code.format_call(name, arguments)
        with user_code.report_errors(f"a look at the schedule that {who} returned"):
            why = _find_mistake(schedule, workers)
        if why:
            raise InputError(f"{who} returned a schedule {why}{user_code.format_place(function)}")
        return schedule

    return checked


def _find_mistake(schedule: Schedule, workers: int) -> str:
    if len(schedule.rounds) != workers:
        return f"with rounds for {len(schedule.rounds)} workers"
    if type(schedule.window) is not int or schedule.window < 1:
        return f"whose window is {format_value(schedule.window)}; it must be a whole number from 1"
    sent: Counter[tuple[int, int, int]] = Counter()
    received: Counter[tuple[int, int, int]] = Counter()
    for rank, rounds in enumerate(schedule.rounds):
        for one in rounds:
            for peer, size in (*one.sends, *one.receives):
                if type(peer) is not int or not 0 <= peer < workers or peer == rank:
                    return f"in which {rank} has a message from or to {format_value(peer)}"
                if type(size) is not int or size < 0:
                    return f"with a message of {format_value(size)}; its bytes must be a whole number from 0"
            sent.update((rank, peer, size) for peer, size in one.sends)
            received.update((peer, rank, size) for peer, size in one.receives)
    for source, destination, size in (sent - received) + (received - sent):
        return (
            f"in which, of the messages of {size} bytes from {source} to {destination}, "
            f"{sent[source, destination, size]} are sent and {received[source, destination, size]} received"
        )
    try:
        lay_out(of_rounds(schedule))
    except Deadlock as error:
        return f"that cannot be carried out: {error}"
    return ""
