"""The order in which the blocks of a collective leave."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from graphlib import TopologicalSorter

import numpy as np

from .collective import Collective, CollectiveBlock, Lists, fronts, of_blocks
from .hierarchy import Sites, place_ranks
from .schedule import Schedule


def in_turn(collective: Collective, sites: Sites) -> Collective:
    """Send blocks one after another over each way, in their order; they arrive in that order.

    A rank has a way to the other ranks of its host, one to those of its site, and one to each other site;
    over different ways blocks leave at the same time. In a flat network a rank has one way.
    """
    c, (site, host) = collective, place_ranks(sites)
    inside, ways = host[c.source] == host[c.destination], len(sites) + 1
    pairs = [c.behind.owner * c.messages + c.behind.flat]
    for own, other in ((c.source, c.destination), (c.destination, c.source)):
        later, before = fronts(own * ways + np.where(inside, len(sites), site[other]))
        pairs.append(later * c.messages + before)
    owner, front = np.divmod(np.unique(np.concatenate(pairs)), max(c.messages, 1))
    return replace(c, behind=Lists.grouped(owner, front, c.messages))


def without_rendezvous(schedule: Schedule) -> Collective:
    """Turn a schedule with a window of 1 into blocks whose receives are posted ahead.

    As in the schedule, a rank sends a round's messages when its earlier rounds are complete; unlike there, it
    does not wait for its peer to reach the round.
    """
    levels = _levels(schedule)
    places = sorted(
        ((rank, position) for rank, rounds in enumerate(schedule.rounds) for position in range(len(rounds))),
        key=lambda place: (levels[place], place),
    )
    counts: Counter[tuple[int, int]] = Counter()
    numbers: dict[tuple[int, int, int], int] = {}  # (source, destination, index) -> block
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
    return of_blocks(len(schedule.rounds), blocks)


def _levels(schedule: Schedule) -> dict[tuple[int, int], int]:
    """Depth of each (rank, round): the number of rounds that precede it on its longest chain of needs."""
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
