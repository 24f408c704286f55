"""Blocks of a collective in virtual time: by a recursion where links are its own, else as flows."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, Final

import numpy as np
from typing_extensions import override

from ..collectives.alike import time_alike
from ..collectives.block_pricing import BlockCosts, block_completion_s, block_waves
from ..collectives.blocks import BlockCost, BlockSchedule, completion_s
from ..collectives.hierarchy import Sites
from ..collectives.pipelines import least_latencies
from ..collectives.symmetric import alone_s, symmetric_rounds
from ..network.routes import route_pairs
from ..network.transfer import TransferModel
from ..seeds import Integers
from .clock import Clock
from .transfers import Transfers

Completion = tuple[list[float], list[float]]
"""By rank: when it is through a collective, and from when on nothing of it is on its links."""

MAX_KEPT_PRICES: Final = 64
"""Prices of a collective that are kept, by when its members join."""

_VECTORISE_FROM: Final = 24
"""Blocks in a wave, on average, from which arrays are faster than plain Python."""


@dataclass(frozen=True, eq=False)
class PlacedCollective(ABC):
    """A collective on hosts of a steady network, priced as a whole; prices are kept.

    Attributes:
        members: hosts, by rank.
        model: how its messages travel.
        access_only: of the links only those of its members' hosts are used.
    """

    members: tuple[int, ...]
    model: TransferModel
    access_only: bool

    @cached_property
    def position(self) -> dict[int, int]:
        """Host -> rank."""
        return {host: rank for rank, host in enumerate(self.members)}

    def completion(self, ready_s: tuple[float, ...]) -> Completion:
        """When each rank is through, and from when on nothing of it is on its links; both by rank.

        Args:
            ready_s: when each rank joins, by rank.
        """
        known = self._kept.get(ready_s)
        if known is None:
            known = self._price(ready_s)
            self.keep(ready_s, known)
        return known

    def is_known(self, ready_s: tuple[float, ...]) -> bool:
        """Whether ``completion`` has the answer at hand."""
        return ready_s in self._kept

    def keep(self, ready_s: tuple[float, ...], completion: Completion) -> None:
        """Keep an answer of ``completion``, for a while."""
        if len(self._kept) >= MAX_KEPT_PRICES:
            self._kept.clear()
        self._kept[ready_s] = completion

    @abstractmethod
    def _price(self, ready_s: tuple[float, ...]) -> Completion:
        """Compute what ``completion`` keeps."""

    @cached_property
    def _kept(self) -> dict[tuple[float, ...], Completion]:
        return {}


@dataclass(frozen=True, eq=False)
class PlacedBlocks(PlacedCollective):
    """A block schedule on hosts.

    Attributes:
        schedule: rank i of it is ``members[i]``.
        columns: the costs of its blocks, on the steady network.
        own_links: nothing else of the collective is on a block's links, so that a recursion holds.
    """

    schedule: BlockSchedule
    columns: BlockCosts
    own_links: bool

    @property
    def messages(self) -> int:
        """How many blocks it has."""
        return len(self.schedule.blocks)

    @property
    def bytes_sent(self) -> tuple[int, ...]:
        """Bytes that each rank sends."""
        return self.schedule.bytes_sent

    @property
    def overhead_s(self) -> float:
        """Software, before a block leaves."""
        return self.model.block_overhead_s

    @override
    def _price(self, ready_s: tuple[float, ...]) -> Completion:
        launched_s = tuple([each + self.model.launch_s for each in ready_s])
        if self.own_links:
            done_s = self._by_recursion(launched_s)
        else:
            done_s = self._all_at_once(launched_s) or _solve_s(self, ready_s)
        return done_s, done_s

    def _all_at_once(self, ready_s: tuple[float, ...]) -> list[float]:
        """As flows, those that are alike as one; none where one block waits for another."""
        model, schedule, joined_s = self.model, self.schedule, np.array(ready_s)
        plain = model.sharing == "max_min" and model.queue == "fair" and not model.tcp and not model.uneven
        if schedule.any_needs or not plain:
            return []
        ends = schedule.sources, schedule.destinations
        routes = route_pairs(*ends, self.members, model)
        left_s = time_alike(
            joined_s[list(ends)].max(axis=0) + self.overhead_s,
            schedule.pieces * schedule.piece_bytes,
            routes.bytes_per_s,
            routes.links,
            model.efficiency * np.array([link.bandwidth_bytes_per_s for link in model.network.links]),
        )
        np.maximum.at(joined_s, ends[0], left_s)
        np.maximum.at(joined_s, ends[1], left_s + routes.latency_s)
        done_s: list[float] = joined_s.tolist()
        return done_s

    def _by_recursion(self, ready_s: tuple[float, ...]) -> list[float]:
        schedule, many = self.schedule, 2 * _VECTORISE_FROM
        wide = self.messages >= many and self.messages >= _VECTORISE_FROM * len(block_waves(schedule).waves)
        if not wide:
            return completion_s(schedule, ready_s, self.costs, self.overhead_s)
        done_s = block_completion_s(schedule, np.array(ready_s), self.columns, self.overhead_s)
        return [float(each) for each in done_s]

    @cached_property
    def costs(self) -> list[BlockCost]:
        """The costs one by one."""
        columns = (self.columns.piece_s, self.columns.latency_s, self.columns.back_s)
        return [BlockCost(*each) for each in zip(*(column.tolist() for column in columns), strict=True)]


def complete_together(collectives: Sequence[tuple[PlacedBlocks, tuple[float, ...]]]) -> None:
    """Work out ``completion`` for collectives on several clusters, those of one schedule at once."""
    by_schedule: dict[int, list[tuple[PlacedBlocks, tuple[float, ...]]]] = {}
    for placed, ready_s in collectives:
        if placed.own_links and not placed.is_known(ready_s):
            by_schedule.setdefault(id(placed.schedule), []).append((placed, ready_s))
    for alike in by_schedule.values():
        if len(alike) == 1:
            continue
        costs = _costs_together(tuple(placed.columns for placed, _ in alike))
        overhead_s = np.array([placed.overhead_s for placed, _ in alike])
        begun_s = np.array([ready_s for _, ready_s in alike]).T
        begun_s += [placed.model.launch_s for placed, _ in alike]
        done_s = block_completion_s(alike[0][0].schedule, begun_s, costs, overhead_s).T.tolist()
        for (placed, ready_s), each in zip(alike, done_s, strict=True):
            placed.keep(ready_s, (each, each))


@lru_cache(maxsize=8)
def _costs_together(columns: tuple[BlockCosts, ...]) -> BlockCosts:
    """Costs of one schedule on several clusters [blocks, clusters]; mostly those of the call before again."""
    return BlockCosts(
        np.stack([each.piece_s for each in columns], axis=1),
        np.stack([each.latency_s for each in columns], axis=1),
        np.stack([each.back_s for each in columns], axis=1),
    )


def place_blocks(schedule: BlockSchedule, members: tuple[int, ...], model: TransferModel) -> PlacedBlocks:
    """Place a schedule on hosts: rank i on ``members[i]``."""
    network, shared, n = model.network, model.sharing != "none", schedule.ranks
    keys, pair = np.unique(schedule.sources * n + schedule.destinations, return_inverse=True)
    sources, destinations = np.divmod(keys, n)
    routes = route_pairs(sources, destinations, members, model)
    back = routes
    if schedule.waits_for_room:
        back = route_pairs(destinations, sources, members, model)
    rates = routes.bytes_per_s[pair]
    return PlacedBlocks(
        members,
        model,
        routes.access_only,
        schedule,
        BlockCosts(schedule.piece_bytes * (1.0 / rates), routes.latency_s[pair], back.latency_s[pair]),
        own_links=not network.varies
        and not model.tcp
        and (not shared or (model.queue == "fair" and _in_turn(schedule, routes.links[pair]))),
    )


def _in_turn(schedule: BlockSchedule, links: Integers) -> bool:
    """Whether on each link every block is behind the one before, of the ``links`` [blocks, most of one]."""
    number, column = np.nonzero(links >= 0)
    link = links[number, column]
    order = np.argsort(link, kind="stable")
    number, link = number[order], link[order]
    met = link[1:] == link[:-1]
    before, after = number[:-1][met], number[1:][met]
    return bool((schedule.behind[after] == before[:, None]).any(axis=1).all())


def price_s(placed: PlacedCollective) -> float:
    """Seconds that a collective takes on an idle, steady network, if all members begin at once."""
    return max(placed.completion((0.0,) * len(placed.members))[0])


def _solve_s(placed: PlacedBlocks, ready_s: tuple[float, ...]) -> list[float]:
    """Let blocks share their links on a clock of their own: when each rank is through."""
    clock, first_s = Clock(), min(ready_s)
    transfers = Transfers(clock, replace(placed.model, network=placed.model.network.steady))
    ended_s: dict[int, float] = {}

    def end(rank: int) -> None:
        ended_s[rank] = first_s + clock.now

    flows = BlockFlows(placed, clock, transfers, end)
    for rank, joined_s in enumerate(ready_s):
        clock.at(joined_s - first_s, flows.join, rank)
    while len(ended_s) < len(placed.members):
        clock.step()
    return [ended_s[rank] for rank in range(len(placed.members))]


_HIERARCHICAL: Final = "hierarchical"

MAX_FLOWS: Final = 20_000
"""A collective of more blocks that share links with each other is not priced where another one is."""

_prices: dict[tuple[Any, ...], str] = {}
"""Choices of this process: networks are built anew for each run."""


def fastest(
    algorithms: Mapping[str, Callable[[Sites, int], BlockSchedule]],
    sites: Sites,
    num_bytes: int,
    members: tuple[int, ...],
    model: TransferModel,
) -> str:
    """The name of the algorithm that ``price_s`` says is the fastest by itself; of equals the first.

    By itself is on tuned hosts with fair queues, as if all members joined at once: a guess where a scheme is
    followed to choose among algorithms (``experiments.costs.choice``).

    Args:
        algorithms: that do the same; what is made of sites does not count where there is one only.
        sites: how many members there are in each site, in the order of ``members``.
        num_bytes: of the payload.
        members: hosts.
        model: of which the steady part counts.
    """
    network = model.network
    pairs = ((a, b) for a in members for b in members if a != b)
    routes = tuple(network.route(*pair) for pair in pairs) if network.routes else ()
    key = (
        tuple(algorithms.values()), sites, num_bytes, members, network.site_of, network.latency_s,
        network.per_flow_bytes_per_s, tuple(link.bandwidth_bytes_per_s for link in network.links),
        tuple(network.up.items()), tuple(network.down.items()), tuple(network.pipe.items()),
        tuple(network.leave.items()), tuple(network.enter.items()), routes, network.node_of,
        tuple(network.inner_up.items()), tuple(network.inner_down.items()), network.inner_latency_s,
        model.sharing, model.block_overhead_s, model.added_latency_s, model.efficiency,
    )  # fmt: skip
    if key not in _prices:
        plain = replace(model, network=network.steady, queue="fair", tcp=None)
        links = plain.equal_links if len(members) == network.num_hosts else None
        rounds = None if links is None else symmetric_rounds(sites, num_bytes, links)
        if rounds is not None and _HIERARCHICAL in algorithms:  # before what would take long to price
            algorithms = {_HIERARCHICAL: algorithms[_HIERARCHICAL], **algorithms}
        hops = [network.route(a, b).latency_s for a, b in pairwise([*members, members[0]]) if a != b]
        best, best_s = "", math.inf
        names = list(algorithms)
        for name in sorted(names, key=lambda each: least_latencies(each, sites)):
            if least_latencies(name, sites) * min(hops, default=0.0) > best_s:
                continue
            if name == _HIERARCHICAL and links is not None and rounds is not None:
                took_s = alone_s(rounds, links, plain.block_overhead_s)
            else:
                placed = place_blocks(algorithms[name](sites, num_bytes), members, plain)
                if best and not placed.own_links and placed.messages > MAX_FLOWS:
                    continue
                took_s = price_s(placed)
            if took_s < best_s or (took_s == best_s and names.index(name) < names.index(best)):
                best, best_s = name, took_s
        _prices[key] = best
    return _prices[key]


class BlockFlows:
    """The blocks of one collective on their way through a network that others may use too.

    Args:
        placed: what and where.
        clock, transfers: virtual time, and what moves the bytes.
        finished: called with a rank when it has sent and received all.
    """

    def __init__(
        self, placed: PlacedBlocks, clock: Clock, transfers: Transfers, finished: Callable[[int], None]
    ) -> None:
        self._placed = placed
        self._clock = clock
        self._transfers = transfers
        self._finished = finished
        blocks = placed.schedule.blocks
        self._joined_s = [math.inf] * placed.schedule.ranks
        self._open = [0] * placed.schedule.ranks  # blocks of a rank that are not through
        self._of_rank: list[list[int]] = [[] for _ in range(placed.schedule.ranks)]  # from it or to it
        self._in_front = [len(block.behind) for block in blocks]  # that have not left
        self._behind: list[list[int]] = [[] for _ in blocks]
        self._first_needs = [len(block.after) + len(block.room) for block in blocks]
        self._last_needs = list(self._first_needs)
        self._first_s = [0.0] * len(blocks)  # when the first piece of all that a block needs was there
        self._last_s = [0.0] * len(blocks)  # when the last piece of all that a block needs was there
        self._needed_by: list[list[int]] = [[] for _ in blocks]
        self._makes_room_for: list[list[int]] = [[] for _ in blocks]
        self._left: dict[int, float] = {}  # blocks whose bytes have left, but not all that they need is there
        for number, block in enumerate(blocks):
            self._open[block.source] += 1
            self._open[block.destination] += 1
            self._of_rank[block.source].append(number)
            self._of_rank[block.destination].append(number)
            for each in block.behind:
                self._behind[each].append(number)
            for each in block.after:
                self._needed_by[each].append(number)
            for each in block.room:
                self._makes_room_for[each].append(number)
        self._tail_s = placed.schedule.tail * float(placed.columns.latency_s.max(initial=0.0))

    def join(self, rank: int) -> None:
        """A rank is there: as soon as it has launched its part, its blocks can come and go."""
        if self._placed.model.launch_s:
            self._clock.at(self._clock.now + self._placed.model.launch_s, self._launched, rank)
        else:
            self._launched(rank)

    def _launched(self, rank: int) -> None:
        """A rank has posted its receives, and has what it sends of its own."""
        self._joined_s[rank] = self._clock.now
        if not self._open[rank]:
            self._clock.at(self._clock.now, self._finished, rank)
        blocks = self._placed.schedule.blocks
        for number in sorted(self._of_rank[rank], key=lambda each: blocks[each].source):
            self._go_on(number)

    def _go_on(self, number: int) -> None:
        """Let a block leave, if it can now."""
        block = self._placed.schedule.blocks[number]
        joined = math.isfinite(self._joined_s[block.source] + self._joined_s[block.destination])
        if joined and not self._first_needs[number] and not self._in_front[number]:
            self._leave(number)

    def _leave(self, number: int) -> None:
        """The first piece of a block leaves, after it the others."""
        block = self._placed.schedule.blocks[number]
        ready_s = max(self._first_s[number], self._joined_s[block.source], self._joined_s[block.destination])
        start_s = max(self._clock.now, ready_s + self._placed.overhead_s)
        piece = _Piece(self, number, block.pieces == 1)
        self._carry(number, block.num_bytes / block.pieces, piece, start_s)

    def _carry(self, number: int, num_bytes: float, piece: _Piece, start_s: float) -> None:
        block, members = self._placed.schedule.blocks[number], self._placed.members
        ends = members[block.source], members[block.destination]
        self._transfers.carry(*ends, num_bytes, piece, start_s)

    def first_left(self, number: int, time_s: float) -> None:
        """The first piece of several has left at ``time_s``, now or later."""
        self._clock.at(time_s, self._rest, number)

    def _rest(self, number: int) -> None:
        block = self._placed.schedule.blocks[number]
        self._make_room(number, self._first_there)
        rest = block.num_bytes * (block.pieces - 1) / block.pieces
        self._carry(number, rest, _Piece(self, number, True), self._clock.now)

    def _make_room(self, number: int, call: Callable[[int], None]) -> None:
        for each in self._makes_room_for[number]:
            self._clock.at(self._clock.now + self._placed.costs[each].back_s, call, each)

    def first_arrived(self, number: int, time_s: float) -> None:
        """The first piece of a block arrives at ``time_s``."""
        if self._needed_by[number]:
            self._clock.at(time_s, self._pass_on, (number, self._first_there))

    def _pass_on(self, arrived: tuple[int, Callable[[int], None]]) -> None:
        number, call = arrived
        for each in self._needed_by[number]:
            call(each)

    def _first_there(self, number: int) -> None:
        """One more of the blocks that a block needs has its first piece there."""
        self._first_needs[number] -= 1
        self._first_s[number] = self._clock.now
        if not self._first_needs[number]:
            self._go_on(number)

    def _last_there(self, number: int) -> None:
        self._last_needs[number] -= 1
        self._last_s[number] = self._clock.now
        if not self._last_needs[number] and number in self._left:
            self._all_left(number, self._left.pop(number))

    def last_left(self, number: int, time_s: float, arrival_s: float) -> None:
        """The links have let the bytes of a block through at ``time_s``; they arrive at ``arrival_s``."""
        self._clock.at(time_s, self._bytes_left, (number, arrival_s - time_s))

    def _bytes_left(self, left: tuple[int, float]) -> None:
        number, latency_s = left
        if self._last_needs[number]:
            self._left[number] = latency_s
        else:
            self._all_left(number, latency_s)

    def _all_left(self, number: int, latency_s: float) -> None:
        """What a block needs is there to its last piece; that one still has to leave."""
        block = self._placed.schedule.blocks[number]
        if block.pieces > 1 and (block.after or block.room):
            left_s = self._last_s[number] + self._placed.overhead_s + self._placed.costs[number].piece_s
            if left_s > self._clock.now:
                self._clock.at(left_s, self._through, (number, latency_s))
                return
        self._through((number, latency_s))

    def _through(self, left: tuple[int, float]) -> None:
        """The last piece of a block has left."""
        number, latency_s = left
        block = self._placed.schedule.blocks[number]
        self._make_room(number, self._both_there if block.pieces == 1 else self._last_there)
        self._clock.at(self._clock.now + latency_s, self._arrived, number)
        self._close(block.source)
        blocks = self._placed.schedule.blocks
        for each in sorted(self._behind[number], key=lambda each: blocks[each].source != block.source):
            self._in_front[each] -= 1
            if not self._in_front[each]:
                self._go_on(each)

    def _both_there(self, number: int) -> None:
        self._last_there(number)
        self._first_there(number)

    def _arrived(self, number: int) -> None:
        block = self._placed.schedule.blocks[number]
        self._pass_on((number, self._both_there if block.pieces == 1 else self._last_there))
        self._close(block.destination)

    def _close(self, rank: int) -> None:
        self._open[rank] -= 1
        if not self._open[rank]:
            self._clock.at(self._clock.now + self._tail_s, self._finished, rank)


class _Piece:
    """The first piece of a block, or all of it that has not left before."""

    __slots__ = ("flows", "last", "left_s", "number")

    def __init__(self, flows: BlockFlows, number: int, last: bool) -> None:
        self.flows = flows
        self.number = number
        self.last = last
        self.left_s = 0.0

    def sent(self, time_s: float, peer_s: float) -> None:
        """It has left at ``time_s``, now or later."""
        self.left_s = time_s
        if not self.last:
            self.flows.first_left(self.number, time_s)

    def received(self, slot: int, value: object, source: int, time_s: float, peer_s: float) -> None:
        """It arrives at ``time_s``; what it is a piece of has left before."""
        if self.last:
            self.flows.last_left(self.number, self.left_s, time_s)
        else:
            self.flows.first_arrived(self.number, time_s)
