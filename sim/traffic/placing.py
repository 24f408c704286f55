"""Collectives placed on the hosts of a network: the costs of their blocks, and each rank's completion."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, Final

import numpy as np

from ..collectives.alike import time_alike
from ..collectives.collective import Collective
from ..collectives.pricing import BlockCosts, Layout, StreamCosts, completion_s, lay_out
from ..network.routes import PairRoutes, route_pairs
from ..network.transfer import TransferModel
from ..seeds import Integers
from .alike import Alike, AlikeTransfers, find_alike
from .clock import Clock
from .flows import Flows
from .rendezvous import Tag
from .transfers import Transfers

Completion = tuple[list[float], list[float]]
"""By rank: time of completion, and time from which its links are free of the collective."""

MAX_KEPT_CLASSES: Final = 4
"""Cached classes of a collective, by which of its members join together."""

MAX_KEPT_PRICES: Final = 64
"""Cached prices of a collective, by the times at which its members join."""


@dataclass(frozen=True, eq=False)
class Placed:
    """A collective on hosts of a network, priced as a whole on the network's steady part; prices are cached.

    Attributes:
        members: hosts, by rank.
        model: how its messages travel.
        access_only: it uses no links but the access links of its members' hosts.
        separate: and no two hosts have one of these together.
        collective: its rank i is ``members[i]``.
        costs: of its blocks, on the steady network.
        own_links: no two of its blocks are on a link at once, so that a recursion holds.
        one_by_one: it cannot be priced as a whole, but only message by message.
    """

    members: tuple[int, ...]
    model: TransferModel
    access_only: bool
    separate: bool
    collective: Collective
    costs: BlockCosts
    own_links: bool
    one_by_one: bool
    _kept: dict[tuple[float, ...], Completion] = field(default_factory=dict, init=False, repr=False)
    _alike: dict[tuple[int, ...], Alike | None] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def position(self) -> dict[int, int]:
        """Host -> rank."""
        return {host: rank for rank, host in enumerate(self.members)}

    def completion(self, ready_s: tuple[float, ...]) -> Completion:
        """Each rank's time of completion, and the time from which its links are free, by joining times."""
        known = self._kept.get(ready_s)
        if known is None:
            known = self._price(ready_s)
            self.keep(ready_s, known)
        return known

    def is_known(self, ready_s: tuple[float, ...]) -> bool:
        """Whether ``completion`` is cached for these times."""
        return ready_s in self._kept

    def keep(self, ready_s: tuple[float, ...], completion: Completion) -> None:
        """Cache a result of ``completion``."""
        if len(self._kept) >= MAX_KEPT_PRICES:
            self._kept.clear()
        self._kept[ready_s] = completion

    def _price(self, ready_s: tuple[float, ...]) -> Completion:
        if self.own_links:
            joined_s = np.array([each + self.model.launch_s for each in ready_s])
            done_s, idle_s = completion_s(self.layout, joined_s, self.costs)
            return done_s.tolist(), idle_s.tolist()
        solved_s = self._all_at_once(ready_s) or _solve_s(self, ready_s)
        return solved_s, solved_s

    @cached_property
    def layout(self) -> Layout:
        """Its blocks, in steps."""
        return lay_out(self.collective, self.costs.stream is not None)

    def flows(self, clock: Clock, transfers: Transfers, tag: Tag, finished: Callable[[Any], None]) -> Flows:
        """The collective as ``Flows``, block by block."""
        return Flows(self.collective, self.members, self.model, self.costs, clock, transfers, tag, finished)

    def _all_at_once(self, ready_s: tuple[float, ...]) -> list[float]:
        """Completion with all blocks as flows, equal ones merged; empty where one block waits for another."""
        model, c = self.model, self.collective
        if c.any_needs or c.rendezvous or not model.shares_evenly:
            return []
        joined_s = np.array([each + model.launch_s for each in ready_s])
        routes = route_pairs(c.source, c.destination, self.members, model)
        left_s = time_alike(
            np.maximum(joined_s[c.source], joined_s[c.destination]) + model.block_overhead_s,
            c.num_bytes,
            routes.bytes_per_s,
            routes.links,
            np.array(model.bandwidths_bytes_per_s),
        )
        np.maximum.at(joined_s, c.source, left_s)
        np.maximum.at(joined_s, c.destination, left_s + routes.latency_s)
        done_s: list[float] = joined_s.tolist()
        return done_s

    def alike(self, ready_s: tuple[float, ...]) -> Alike | None:
        """Its classes of like blocks while its members join at these times; None: few blocks are alike."""
        ready = tuple(np.unique(ready_s, return_inverse=True)[1].tolist())
        if ready not in self._alike:
            if len(self._alike) >= MAX_KEPT_CLASSES:
                self._alike.clear()
            self._alike[ready] = find_alike(self.collective, ready, self.members, self.model, self.costs)
        return self._alike[ready]

    @property
    def num_flows(self) -> int:
        """Number of flows of its price if all members join at once; 0: a recursion holds."""
        if self.own_links:
            return 0
        alike = self.alike((0.0,) * len(self.members))
        return self.collective.messages if alike is None else len(alike.classes.one)


def complete_together(collectives: Sequence[tuple[Placed, tuple[float, ...]]]) -> None:
    """Compute ``completion`` for several clusters, those of the same collective at once."""
    alike: dict[int, list[tuple[Placed, tuple[float, ...]]]] = {}
    for placed, ready_s in collectives:
        if placed.own_links and placed.costs.stream is None and not placed.is_known(ready_s):
            alike.setdefault(id(placed.collective), []).append((placed, ready_s))
    for of_one in alike.values():
        if len(of_one) == 1:
            continue
        costs = _costs_together(tuple(placed.costs for placed, _ in of_one))
        joined_s = np.array([ready_s for _, ready_s in of_one]).T
        joined_s += [placed.model.launch_s for placed, _ in of_one]
        done_s = completion_s(of_one[0][0].layout, joined_s, costs)[0].T.tolist()
        for (placed, ready_s), each in zip(of_one, done_s, strict=True):
            placed.keep(ready_s, (each, each))


@lru_cache(maxsize=8)
def _costs_together(costs: tuple[BlockCosts, ...]) -> BlockCosts:
    """Costs on several clusters [blocks, clusters]; the last call's are mostly asked for again."""
    return BlockCosts(
        np.stack([each.piece_s for each in costs], axis=1),
        np.stack([each.latency_s for each in costs], axis=1),
        np.stack([each.back_s for each in costs], axis=1),
        np.array([each.overhead_s for each in costs]),
        costs[0].announcements,
    )


def place(collective: Collective, members: tuple[int, ...], model: TransferModel) -> Placed:
    """Place a collective on hosts: rank i on ``members[i]``."""
    c, network, shared = collective, model.network, model.sharing != "none"
    keys, pair = np.unique(c.source * c.ranks + c.destination, return_inverse=True)
    sources, destinations = np.divmod(keys, c.ranks)
    routes = route_pairs(sources, destinations, members, model)
    back = routes
    if c.rendezvous or len(c.room.flat):
        back = route_pairs(destinations, sources, members, model)
    streams = c.rendezvous and model.streams and shared
    costs = BlockCosts(
        piece_s=c.num_bytes / c.pieces / routes.bytes_per_s[pair],
        latency_s=routes.latency_s[pair],
        back_s=back.latency_s[pair],
        overhead_s=model.overhead_s if c.rendezvous else model.block_overhead_s,
        announcements=model.announcement if c.rendezvous else 0.0,
        stream=StreamCosts(model.buffer_bytes, model.copy_s_per_byte, model.device_copy_s_per_byte / 2)
        if streams
        else None,
    )
    return Placed(
        members,
        model,
        routes.access_only,
        routes.separate,
        c,
        costs,
        own_links=not network.varies
        and not model.tcp
        and (streams or not shared or (model.queue == "fair" and _in_turn(c, routes.links[pair]))),
        one_by_one=c.rendezvous
        and (network.varies or not c.messages or (streams and _streams_meet(keys, c.ranks, routes, model))),
    )


def _streams_meet(keys: Integers, ranks: int, routes: PairRoutes, model: TransferModel) -> bool:
    sources, destinations = np.divmod(keys, ranks)
    both_ways = bool(model.announcement) and bool(np.isin(destinations * ranks + sources, keys).any())
    return both_ways or len(np.unique(sources)) < len(keys) or routes.most_pairs > 1


def _in_turn(c: Collective, links: Integers) -> bool:
    """Whether no two blocks are on a link at once, given the ``links`` [B, most of one] of each.

    A block has left when another is behind it, or is offered or posted by a post that waits for its end.
    """
    number, column = np.nonzero(links >= 0)
    link, place = links[number, column], np.empty(c.messages, np.int64)
    place[lay_out(c).numbers] = np.arange(c.messages)
    order = np.lexsort((place[number], link))
    number, link = number[order], link[order]
    met = link[1:] == link[:-1]
    before, after = number[:-1][met], number[1:][met]
    sent_for, received_for = (np.full(c.messages, len(c.post_rank)) for _ in range(2))
    received = c.source[c.ends.flat] != c.post_rank[c.ends.owner]
    sent_for[c.ends.flat[~received]] = c.ends.owner[~received]
    received_for[c.ends.flat[received]] = c.ends.owner[received]
    turns = (c.source[before] == c.source[after]) & (sent_for[before] <= c.offered[after])
    turns |= (c.destination[before] == c.destination[after]) & (received_for[before] <= c.posted[after])
    left = np.flatnonzero(~turns)
    for some in (left[:64], left[64:]):  # mostly the first tell
        flat, lengths = c.behind.of(after[some])
        pair = np.repeat(np.arange(len(some)), lengths)
        if not np.isin(np.arange(len(some)), pair[flat == before[some][pair]]).all():
            return False
    return True


def price_s(placed: Placed) -> float:
    """Seconds of a collective on an idle, steady network if all members begin at once."""
    return max(placed.completion((0.0,) * len(placed.members))[0])


def _solve_s(placed: Placed, ready_s: tuple[float, ...]) -> list[float]:
    """Each rank's completion by simulating the blocks, which share links, on a clock of their own."""
    clock, first_s = Clock(), min(ready_s)
    model = replace(placed.model, network=placed.model.network.steady)
    ended_s: dict[int, float] = {}

    def end(rank: Any) -> None:
        ended_s[rank] = first_s + clock.now

    alike = placed.alike(ready_s)
    if alike is None:
        flows, of = placed.flows(clock, Transfers(clock, model), _ALONE, end), list(range(len(ready_s)))
    else:
        flows, of = alike.flows(clock, AlikeTransfers(clock, model, alike), end), alike.classes.rank.tolist()
    joined_s = dict(zip(of, ready_s, strict=True))
    for rank, at_s in joined_s.items():
        clock.at(at_s - first_s, _join, (flows, rank))
    while len(ended_s) < len(joined_s):
        clock.step()
    return [ended_s[rank] for rank in of]


def _join(joining: tuple[Flows, int]) -> None:
    flows, rank = joining
    flows.join(rank, rank)


_ALONE: Final = ("alone", 0, 0)
"""Tag of a collective simulated on a clock of its own."""
