"""Collectives placed on the hosts of a network: the costs of their blocks, and each rank's completion."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from typing import Any, Final

import numpy as np

from ..collectives.classes import TIE, time_alike
from ..collectives.collective import Collective, sends_of
from ..collectives.pricing import BlockCosts, Layout, StreamCosts, Times, completion_s, lay_out
from ..network.transport import RouteArrays, TransferModel, route_pairs
from ..seeds import Floats, Integers
from .clock import Clock
from .flows import Alike, AlikeTransfers, Flows, find_alike
from .rendezvous import Tag
from .streams import Streams
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
        collective: its rank i is ``members[i]``.
        costs: of its blocks, on the steady network.
        routes: of its pairs of ranks.
        pair: [B] number of the pair of each block.
    """

    members: tuple[int, ...]
    model: TransferModel
    collective: Collective
    costs: BlockCosts
    routes: RouteArrays
    pair: Integers
    kept: dict[tuple[float, ...], Completion] = field(default_factory=dict, init=False, repr=False)
    _alike: dict[tuple[int, ...], Alike | None] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def _owners(self) -> list[frozenset[int]]:
        """Members whose access link each used link is; empty: it is another's, or not an access link."""
        own, used = self.model.network.own_links, np.unique(self.routes.links)
        owners = (own.get(link, frozenset()) for link in used[used >= 0].tolist())
        return [each if each <= self.position.keys() else frozenset() for each in owners]

    @property
    def access_only(self) -> bool:
        """Whether it uses no links but access links of its members' hosts, not shared with other hosts."""
        return all(self._owners)

    @property
    def separate(self) -> bool:
        """Whether, beyond that, no two members have an access link together."""
        return all(len(owners) == 1 for owners in self._owners)

    @cached_property
    def unlimited(self) -> bool:
        """Whether its blocks share nothing, so that no other traffic can meet them."""
        return self.recursive and self.costs.stream is None and not self._owners

    @cached_property
    def lanes(self) -> frozenset[int]:
        """What other traffic has to use to meet it, see ``lanes_between``."""
        hosts, links = np.array(self.members), np.unique(self.routes.links)
        ends = np.sort([hosts[self.collective.source], hosts[self.collective.destination]], axis=0)
        streams = _stream(self.model, *ends)
        return frozenset((*links[links >= 0].tolist(), *np.unique(streams).tolist()))

    @cached_property
    def _ends(self) -> Integers:
        """[links, 2]: the one source and destination of all blocks on a link; -1: several, -2: no block."""
        hosts, (row, column) = np.array(self.members), np.nonzero(self.routes.links >= 0)
        link, ends = self.routes.links[row, column], np.full((len(self.model.network.links), 2), -2)
        for side, ranks in enumerate((self.collective.source, self.collective.destination)):
            of_pair = np.zeros(len(self.routes.links), np.int64)
            of_pair[self.pair] = hosts[ranks]
            ends[link, side] = of_pair[row]
            ends[link[ends[link, side] != of_pair[row]], side] = -1
        return ends

    @cached_property
    def position(self) -> dict[int, int]:
        """Host -> rank."""
        return {host: rank for rank, host in enumerate(self.members)}

    @cached_property
    def sends(self) -> Mapping[int, list[tuple[int, int]]]:
        """Host -> destination and bytes of each of its messages."""
        return sends_of(((self.collective, self.members),)).of_hosts

    def completion(self, ready_s: tuple[float, ...], times: Times | None = None) -> Completion:
        """Completion by the times at which members join; ``times``: of the recursion, if they are known."""
        if ready_s not in self.kept:
            if len(self.kept) >= MAX_KEPT_PRICES:
                self.kept.clear()
            self.kept[ready_s] = self._price(ready_s, times)
        return self.kept[ready_s]

    def _price(self, ready_s: tuple[float, ...], times: Times | None) -> Completion:
        solved_s = [] if self.always_apart else self._all_at_once(ready_s)
        if solved_s:
            return solved_s, solved_s
        one_by_one = self.always_apart or self.alike(ready_s) is None
        return (one_by_one and self._by_recursion(ready_s, times)) or _follow(self, ready_s)

    def _by_recursion(self, ready_s: tuple[float, ...], times: Times | None = None) -> Completion | None:
        """Completion if all blocks are alone on their links; None: they are not."""
        if not self.recursive:
            return None
        if times is None:
            joined_s = np.array([each + self.model.launch_s for each in ready_s])
            times = completion_s(self.layout, joined_s, self.costs)
        return None if self._meet(times) else (times.done_s.tolist(), times.idle_s.tolist())

    @cached_property
    def recursive(self) -> bool:
        """Whether the recursion holds for blocks that are alone on their links."""
        model = self.model
        fair = model.sharing == "none" or model.queue == "fair"
        return fair and model.tcp is None and not model.network.varies

    @cached_property
    def always_apart(self) -> bool:
        """Whether the recursion holds whenever its members join: no two blocks can be on a link at once."""
        return self.recursive and not len(self._crossings)

    def _meet(self, times: Times) -> bool:
        """Whether, on a line, an event begins before the one in front is over."""
        if not len(self._crossings):
            return False
        layout, (first_s, left_s, at_s) = self.layout, map(np.asarray, times[2:])
        begin_s, announced_s = first_s - self.costs.piece_s[layout.numbers], at_s[layout.posted]
        tie_s = TIE * (left_s.max() - at_s.min())
        # An announcement may not even be made when bytes begin to leave, or have just left.
        begin_s = np.concatenate((begin_s, announced_s - 2 * tie_s))
        left_s = np.concatenate((left_s, announced_s + 2 * tie_s))
        line, event = np.divmod(self._crossings, len(begin_s))

        def meet(event: Integers) -> bool:
            before, after = event[:-1], event[1:]
            early = (line[1:] == line[:-1]) & (begin_s[after] < left_s[before] - tie_s)
            return bool((early & (np.minimum(before, after) < len(first_s))).any())

        # The order of the layout is mostly that of time.
        return meet(event) and meet(event[np.lexsort((begin_s[event], line))])

    @cached_property
    def _crossings(self) -> Integers:
        """Crossings, each ``line * 2B + event``, ascending, without lines on which nothing can meet.

        A *line* is a link, or a stream that has both blocks and announcements. An *event* is a block, by its
        position in the layout, or the announcement of its receive, B positions further on.
        """
        c, links, number = self.collective, self.routes.links, self.layout.numbers
        streams, events = self.costs.stream is not None, 2 * c.messages
        if self.model.sharing == "none":
            return number[:0]
        alone = (links >= 0) & (np.bincount(links[links >= 0], minlength=1)[links] == 1)
        # Links of one pair are used alike, so that one is enough; and a stream keeps the order.
        links = np.where(alone & (np.cumsum(alone, axis=1) > (not streams)), -1, links)[self.pair[number]]
        sends = c.num_bytes[number] > 0
        event, column = np.nonzero((links >= 0) & sends[:, None])
        crossings = np.sort(links[event, column] * events + event)
        line, event = np.divmod(crossings, max(events, 1))
        before, after = number[event[:-1]], number[event[1:]]
        behind = c.streams if streams else c.behind
        waits = np.isin(after * c.messages + before, behind.owner * c.messages + behind.flat)
        crossings = crossings[np.isin(line, line[1:][(line[1:] == line[:-1]) & ~waits])]
        if not (streams and self.costs.announcements):
            return crossings
        source, destination = c.source[number], c.destination[number]
        there, back = source * c.ranks + destination, destination * c.ranks + source
        announced = np.flatnonzero(np.isin(back, there[sends]))
        sent = np.flatnonzero(np.isin(there, back) & sends)
        stream = np.concatenate((there[sent], back[announced])) + len(self.model.network.links)
        of_streams = stream * events + np.concatenate((sent, c.messages + announced))
        return np.concatenate((crossings, np.sort(of_streams)))

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
        if (
            any(map(len, (c.ends.flat, c.after.flat, c.behind.flat)))
            or c.rendezvous
            or not model.shares_evenly
        ):
            return []
        joined_s = np.array([each + model.launch_s for each in ready_s])
        left_s = time_alike(
            np.maximum(joined_s[c.source], joined_s[c.destination]) + model.block_overhead_s,
            c.num_bytes,
            self.routes.bytes_per_s[self.pair],
            self.routes.links[self.pair],
            np.array(model.bandwidths_bytes_per_s),
        )
        np.maximum.at(joined_s, c.source, left_s)
        np.maximum.at(joined_s, c.destination, left_s + self.costs.latency_s)
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
        if self.always_apart:
            return 0
        together = (0.0,) * len(self.members)
        alike = self.alike(together)
        if alike is not None:
            return len(alike.classes.one)
        return 0 if self._by_recursion(together) else self.collective.messages


def complete_together(collectives: Sequence[tuple[Placed, tuple[float, ...]]]) -> None:
    """Compute ``completion`` for several clusters, those of the same collective at once."""
    alike: dict[int, list[tuple[Placed, tuple[float, ...]]]] = {}
    for placed, ready_s in collectives:
        if placed.recursive and placed.costs.stream is None and ready_s not in placed.kept:
            alike.setdefault(id(placed.collective), []).append((placed, ready_s))
    for same in alike.values():
        if len(same) == 1:
            continue
        times = _together(tuple(placed for placed, _ in same)).times(np.array([each for _, each in same]))
        for column, (placed, ready_s) in enumerate(same):
            placed.completion(ready_s, Times(*(np.asarray(each)[..., column] for each in times)))


@dataclass(frozen=True, eq=False)
class PlacedOnEach:
    """One collective on hosts of several clusters."""

    each: tuple[Placed, ...]

    def completion(self, ready_s: Floats) -> tuple[Floats, Floats]:
        """``Placed.completion`` on each cluster: [clusters, ranks], as is ``ready_s``."""
        apart = all(each.always_apart and each.costs.stream is None for each in self.each)
        if len(self.each) > 1 and apart:
            times = self.times(ready_s)
            return times.done_s.T, times.idle_s.T
        both_s = [own.completion(tuple(row)) for own, row in zip(self.each, ready_s.tolist(), strict=True)]
        return np.array([done_s for done_s, _ in both_s]), np.array([idle_s for _, idle_s in both_s])

    def times(self, ready_s: Floats) -> Times:
        """Times by the recursion, with a column for each cluster."""
        joined_s = ready_s.T + [placed.model.launch_s for placed in self.each]
        return completion_s(self.each[0].layout, joined_s, self._costs)

    @cached_property
    def _costs(self) -> BlockCosts:
        costs = [each.costs for each in self.each]
        return BlockCosts(
            np.stack([each.piece_s for each in costs], axis=1),
            np.stack([each.latency_s for each in costs], axis=1),
            np.stack([each.back_s for each in costs], axis=1),
            np.array([each.overhead_s for each in costs]),
            costs[0].announcements,
        )


_together = lru_cache(maxsize=8)(PlacedOnEach)  # the last ones are mostly asked for again


def place(collective: Collective, members: tuple[int, ...], model: TransferModel) -> Placed:
    """Place a collective on hosts: rank i on ``members[i]``."""
    c = collective
    keys, pair = c.pairs
    sources, destinations = np.divmod(keys, c.ranks)
    routes = route_pairs(sources, destinations, members, model)
    back = routes
    if c.rendezvous:
        back = route_pairs(destinations, sources, members, model)
    costs = BlockCosts(
        piece_s=c.num_bytes / c.pieces / routes.bytes_per_s[pair],
        latency_s=routes.latency_s[pair],
        back_s=back.latency_s[pair],
        overhead_s=model.overhead_s if c.rendezvous else model.block_overhead_s,
        announcements=model.announcement if c.rendezvous else 0.0,
        stream=StreamCosts(model.buffer_bytes, model.copy_s_per_byte, model.device_copy_s_per_byte / 2)
        if c.rendezvous and model.streams and model.sharing != "none"
        else None,
    )
    return Placed(members, model, c, costs, routes, pair)


def lanes_between(model: TransferModel, source: int, destination: int) -> frozenset[int]:
    """The links between two hosts, and below zero a number for their streams, in either direction."""
    stream = _stream(model, *sorted((source, destination)))
    return frozenset((stream, *model.network.route(source, destination).links))


def _stream(model: TransferModel, low: Any, high: Any) -> Any:
    return -1 - (low * model.network.num_hosts + high)


@lru_cache(maxsize=64)
def in_turn_apart(before: Placed, after: Placed) -> bool:
    """Whether no two blocks can meet if each member is through with one collective when it joins the other.

    So it is where all blocks on a link have one member at an end, the same in both collectives.
    """
    both = (before._ends[:, 0] > -2) & (after._ends[:, 0] > -2)
    ours, theirs = before._ends[both, :, None], after._ends[both, None, :]
    return bool(((ours == theirs) & (ours >= 0)).any((1, 2)).all())


def price_s(placed: Placed) -> float:
    """Seconds of a collective on an idle, steady network if all members begin at once."""
    return max(placed.completion((0.0,) * len(placed.members))[0])


def _follow(placed: Placed, ready_s: tuple[float, ...]) -> Completion:
    """``completion`` by simulating the blocks, which share links, on a clock of their own."""
    clock, first_s = Clock(), min(ready_s)
    model = replace(placed.model, network=placed.model.network.steady)
    ended_s: dict[int, float] = {}
    idle_s: dict[int, float] = {}

    def end(rank: Any) -> None:
        ended_s[rank] = first_s + clock.now

    alike, transfers = placed.alike(ready_s), Transfers(clock, model)
    if alike is not None:
        transfers = alone = AlikeTransfers(clock, model, alike)
        flows, of = alike.flows(clock, alone, end), alike.classes.rank.tolist()
    else:
        if placed.costs.stream is not None:
            transfers = Streams(clock, model)
        flows, of = placed.flows(clock, transfers, ("alone", 0, 0), end), list(range(len(ready_s)))
    joined_s = dict(zip(of, ready_s, strict=True))
    for rank, at_s in joined_s.items():
        clock.at(at_s - first_s, partial(flows.join, rank), rank)
    while len(idle_s) < len(joined_s):
        clock.step()
        for rank in ended_s.keys() - idle_s.keys():
            if not transfers.uses(placed.members[rank]):
                idle_s[rank] = first_s + clock.now
    return [ended_s[rank] for rank in of], [idle_s[rank] for rank in of]
