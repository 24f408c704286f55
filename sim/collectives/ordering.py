"""The order in which the blocks of a collective leave."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..seeds import Integers
from .collective import Collective, Lists, fronts, of_rounds, posted_ahead, sort_in_steps
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
    c = of_rounds(schedule)
    rounds = np.unique(c.offered)  # posts with sends, rank by rank
    order, _ = c.sends.of(rounds[np.argsort(_levels(c)[rounds], kind="stable")])
    number = np.empty(c.messages, np.int64)
    number[order] = np.arange(c.messages)
    of_round = np.searchsorted(rounds, c.offered[order])

    def next_round(posts: Integers, blocks: Integers) -> Lists:
        """For each block in the new order the ``blocks`` whose rank's next round with sends is its own."""
        then = np.searchsorted(rounds, posts, side="right")
        known = then < len(rounds)
        known[known] = c.post_rank[rounds[then[known]]] == c.post_rank[posts[known]]
        flat, lengths = Lists.grouped(then[known], blocks[known], len(rounds)).of(of_round)
        return Lists(np.concatenate(([0], np.cumsum(lengths))), flat)

    return replace(
        posted_ahead(c.ranks, c.source[order], c.destination[order], c.num_bytes[order]),
        after=next_round(c.receives.owner, number[c.receives.flat]),
        behind=next_round(c.offered[order], np.arange(c.messages)),
    )


def _levels(c: Collective) -> Integers:
    """Depth of each post: the number of posts that precede it on its longest chain of needs."""
    later = np.flatnonzero(c.post_before >= 0)
    following = np.full(len(c.post_rank), -1)
    following[c.post_before[later]] = later
    then = following[c.posted]
    some = then >= 0
    needing = np.concatenate((later, then[some]))
    needed = np.concatenate((c.post_before[later], c.offered[some]))
    depth = np.empty(len(c.post_rank), np.int64)
    for number, step in enumerate(sort_in_steps(needing, needed, len(c.post_rank))[0]):
        depth[step] = number
    return depth
