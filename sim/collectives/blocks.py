"""Collectives whose receives are posted ahead: blocks of bytes that wait for data, links and room alone.

A ``Schedule`` says what a rank does round by round, and its messages meet their receives one by one. Here
all receives of a collective are posted when a rank joins it, so that a block leaves as soon as its sender
has what it is made of. A block is cut into equal *pieces*; a piece is passed on as soon as it is there.

Of the pieces only the first and the last count: the times at which the pieces of a block arrive are a convex
sequence, because they are maxima of sums, so that the last piece of the next block waits for its link from
the first piece on, or for the last piece to arrive, and for nothing in between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import TopologicalSorter
from typing import NamedTuple

import numpy as np

from ..seeds import Floats, Integers
from .hierarchy import Sites, place_ranks
from .schedule import Schedule


class CollectiveBlock(NamedTuple):
    """Bytes that one rank sends to another.

    Attributes:
        source, destination: ranks.
        num_bytes: in all its pieces.
        pieces: equal pieces, one or more.
        after: blocks, by number, whose k-th piece has to be there before the k-th piece of this one can
            leave. They have as many pieces.
        room: blocks, by number, whose k-th piece has to have left (and word of it to have come back) before
            there is room for the k-th piece of this one at its destination.
        behind: blocks, by number, that have to have left altogether before this one leaves.
    """

    source: int
    destination: int
    num_bytes: int
    pieces: int = 1
    after: tuple[int, ...] = ()
    room: tuple[int, ...] = ()
    behind: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class BlockSchedule:
    """The blocks of one collective.

    Two ranks swap 100 bytes, on links that carry 100 bytes a second with half a second of latency:

    >>> swap = BlockSchedule(ranks=2, blocks=(CollectiveBlock(0, 1, 100), CollectiveBlock(1, 0, 100)))
    >>> completion_s(swap, ready_s=[0.0, 0.0], costs=[BlockCost(1.0, 0.5, 0.5)] * 2)
    [1.5, 1.5]

    Blocks that can leave at the same time do so, and share links; ``in_turn`` puts them one behind another.

    Attributes:
        ranks: how many take part.
        blocks: in an order in which no block needs a later one, or is behind a later one.
        tail: what a library adds to all this, in one-way latencies of the longest of the blocks' routes.
    """

    ranks: int
    blocks: tuple[CollectiveBlock, ...]
    tail: float = 0.0

    @cached_property
    def bytes_sent(self) -> tuple[int, ...]:
        """Bytes that each rank sends."""
        sent = [0] * self.ranks
        for block in self.blocks:
            sent[block.source] += block.num_bytes
        return tuple(sent)

    @cached_property
    def waits_for_room(self) -> bool:
        """Whether any of its blocks waits for room at its destination."""
        return any(block.room for block in self.blocks)

    @cached_property
    def any_needs(self) -> bool:
        """Whether any of its blocks waits for another one."""
        return any(block.after or block.room or block.behind for block in self.blocks)

    @cached_property
    def behind(self) -> Integers:
        """[blocks, most of one] the blocks that have to leave before, by number; -1: there is none."""
        lengths = np.array([len(block.behind) for block in self.blocks], dtype=np.int64)
        behind = np.full((len(lengths), lengths.max(initial=0)), -1)
        behind[np.arange(behind.shape[1]) < lengths[:, None]] = [
            number for block in self.blocks for number in block.behind
        ]
        return behind

    @cached_property
    def sources(self) -> Integers:
        """[blocks] the rank that sends it."""
        return np.array([block.source for block in self.blocks], dtype=np.int64)

    @cached_property
    def destinations(self) -> Integers:
        """[blocks] the rank that it is for."""
        return np.array([block.destination for block in self.blocks], dtype=np.int64)

    @cached_property
    def pieces(self) -> Floats:
        """[blocks] how many pieces."""
        return np.array([block.pieces for block in self.blocks], dtype=np.float64)

    @cached_property
    def piece_bytes(self) -> Floats:
        """[blocks] of one piece."""
        return np.array([block.num_bytes / block.pieces for block in self.blocks], dtype=np.float64)


@dataclass(frozen=True, slots=True)
class BlockCost:
    """What a block costs that has its links for itself.

    Attributes:
        piece_s: seconds that a piece keeps its links busy.
        latency_s: one way.
        back_s: latency of the way back.
    """

    piece_s: float
    latency_s: float
    back_s: float


def completion_s(
    schedule: BlockSchedule,
    ready_s: Sequence[float],
    costs: Sequence[BlockCost],
    overhead_s: float = 0.0,
) -> list[float]:
    """Seconds at which each rank has sent and received all its blocks.

    Exact where no two blocks are on a link at once.

    Args:
        schedule: any.
        ready_s: by rank, when it joins; it may be negative.
        costs: by block.
        overhead_s: of software, before the first piece of a block leaves.
    """
    done_s = list(ready_s)
    first_left_s: list[float] = []
    last_left_s: list[float] = []
    for block, cost in zip(schedule.blocks, costs, strict=True):
        source, destination = block.source, block.destination
        first_s = max(ready_s[source], ready_s[destination])
        last_s = first_s
        for number in block.after:
            there_s = costs[number].latency_s
            first_s = max(first_s, first_left_s[number] + there_s)
            last_s = max(last_s, last_left_s[number] + there_s)
        for number in block.room:
            first_s = max(first_s, first_left_s[number] + cost.back_s)
            last_s = max(last_s, last_left_s[number] + cost.back_s)
        begin_s = max([first_s + overhead_s, *(last_left_s[number] for number in block.behind)])
        left_s = max(begin_s + block.pieces * cost.piece_s, last_s + overhead_s + cost.piece_s)
        first_left_s.append(begin_s + cost.piece_s)
        last_left_s.append(left_s)
        done_s[source] = max(done_s[source], left_s)
        done_s[destination] = max(done_s[destination], left_s + cost.latency_s)
    tail_s = schedule.tail * max((cost.latency_s for cost in costs), default=0.0)
    return [each + tail_s for each in done_s]


def in_turn(blocks: Sequence[CollectiveBlock], sites: Sites) -> tuple[CollectiveBlock, ...]:
    """Blocks that leave one after another over one way, and arrive so, in their order.

    A rank has a way to the other ranks of its host, one to those of its site, and one to each other site;
    over different ways blocks leave at the same time. In a flat network a rank has one way.

    Args:
        blocks: in an order in which no block needs a later one.
        sites: where the ranks are.
    """
    site, host = place_ranks(sites)
    ends = np.array([block[:2] for block in blocks], dtype=np.int64).reshape(-1, 2)
    inside = host[ends[:, 0]] == host[ends[:, 1]]
    before = []
    for own, other in ((0, 1), (1, 0)):
        way = np.where(inside, len(sites), site[ends[:, other]])
        before.append(_before(ends[:, own] * (len(sites) + 1) + way).tolist())
    return tuple(
        CollectiveBlock(*block[:-1], tuple({*block.behind, *fronts} - {-1}))
        for block, fronts in zip(blocks, zip(*before, strict=True), strict=True)
    )


def _before(keys: Integers) -> Integers:
    """For each of some keys the position of the last one before that is equal; -1: there is none."""
    order = np.argsort(keys, kind="stable")
    before = np.full(len(keys), -1)
    equal = keys[order[1:]] == keys[order[:-1]]
    before[order[1:][equal]] = order[:-1][equal]
    return before


def side_by_side(schedules: Sequence[BlockSchedule]) -> BlockSchedule:
    """Schedules without a tail at the same time, the ranks of each behind those of the ones before."""
    blocks: list[CollectiveBlock] = []
    ranks = 0
    for schedule in schedules:
        first = len(blocks)
        for source, destination, num_bytes, pieces, *needs in schedule.blocks:
            after, room, behind = (tuple(first + number for number in each) for each in needs)
            ends = source + ranks, destination + ranks
            blocks.append(CollectiveBlock(*ends, num_bytes, pieces, after, room, behind))
        ranks += schedule.ranks
    return BlockSchedule(ranks, tuple(blocks))


def without_rendezvous(schedule: Schedule) -> BlockSchedule:
    """The messages of a table with a window of 1 as blocks, for receives that are posted ahead.

    A rank sends what is in a round when its rounds before are complete, as in the table; that its peer has
    reached the round is not waited for.
    """
    levels = _levels(schedule)
    places = sorted(
        ((rank, position) for rank, rounds in enumerate(schedule.rounds) for position in range(len(rounds))),
        key=lambda place: (levels[place], place),
    )
    counts: Counter[tuple[int, int]] = Counter()
    numbers: dict[tuple[int, int, int], int] = {}  # (source, destination, how many before) -> block
    received: list[list[int]] = [[] for _ in schedule.rounds]  # blocks, since the last round with sends
    sent: list[tuple[int, ...]] = [() for _ in schedule.rounds]  # blocks of that round
    taken: Counter[tuple[int, int]] = Counter()
    blocks: list[CollectiveBlock] = []
    for rank, position in places:
        one = schedule.rounds[rank][position]
        if position:
            for source, _ in schedule.rounds[rank][position - 1].receives:
                received[rank].append(numbers[source, rank, taken[source, rank]])
                taken[source, rank] += 1
        if not one.sends:
            continue
        after, behind = tuple(received[rank]), sent[rank]
        received[rank], sent[rank] = [], tuple(range(len(blocks), len(blocks) + len(one.sends)))
        for destination, num_bytes in one.sends:
            numbers[rank, destination, counts[rank, destination]] = len(blocks)
            counts[rank, destination] += 1
            blocks.append(CollectiveBlock(rank, destination, num_bytes, after=after, behind=behind))
    return BlockSchedule(len(schedule.rounds), tuple(blocks))


def _levels(schedule: Schedule) -> dict[tuple[int, int], int]:
    """By (rank, round), how many rounds are needed one after another before it."""
    sent_in: dict[tuple[int, int], list[int]] = {}
    for rank, rounds in enumerate(schedule.rounds):
        for position, one in enumerate(rounds):
            for destination, _ in one.sends:
                sent_in.setdefault((rank, destination), []).append(position)
    needs: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for rank, rounds in enumerate(schedule.rounds):
        taken: Counter[int] = Counter()
        for position, one in enumerate(rounds):
            needs.setdefault((rank, position), []).extend([(rank, position - 1)] if position else [])
            for source, _ in one.receives:
                needs.setdefault((rank, position + 1), []).append(
                    (source, sent_in[source, rank][taken[source]])
                )
                taken[source] += 1
    levels: dict[tuple[int, int], int] = {}
    for place in TopologicalSorter(needs).static_order():
        levels[place] = 1 + max((levels[each] for each in needs.get(place, ())), default=-1)
    return levels
