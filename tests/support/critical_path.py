"""Times of schedules on equal hosts behind one non-blocking switch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from paceline.sim.collectives.collective import Lists, Schedule, of_rounds
from paceline.sim.collectives.pricing import BlockCosts, completion_s, lay_out
from paceline.sim.seeds import Integers


def critical_path_s(schedule: Schedule, latency_s: float, bandwidth_bytes_per_s: float) -> float:
    """Seconds that a schedule takes on equal hosts behind one non-blocking switch, if all begin together.

    A transfer's bytes start when both sides have reached its round (rendezvous; the announcement takes no
    time). It has left after bytes / bandwidth and has arrived ``latency_s`` later. Each host's access link is
    full duplex.

    Exact where no access link has two transfers at once in one direction, as with a window of 1 and rounds of
    one message each way. Elsewhere the transfers of one direction are taken one after another, in the order
    of the rounds; sharing the link fairly (as the event driver does) can take longer or shorter.

    Args:
        schedule: any table whose sends and receives match.
        latency_s: one way, end to end.
        bandwidth_bytes_per_s: of every access link, each way.

    Raises:
        Deadlock: some rounds can never be reached.
    """
    table = of_rounds(schedule)
    pairs = [_in_turn(lists, table.post_rank) for lists in (table.sends, table.receives)]
    later, before = (np.concatenate(each) for each in zip(*pairs, strict=True))
    c = replace(table, behind=Lists.grouped(later, before, table.messages))
    latency_s_of = np.full(c.messages, latency_s)
    costs = BlockCosts(c.num_bytes / bandwidth_bytes_per_s, latency_s_of, latency_s_of)
    return float(completion_s(lay_out(c), np.zeros(c.ranks), costs)[0].max())


def _in_turn(lists: Lists, rank: Integers) -> tuple[Integers, Integers]:
    """Blocks and the block before each, in the order in which each rank posts them."""
    owner = rank[lists.owner]
    met = owner[1:] == owner[:-1]
    return lists.flat[1:][met], lists.flat[:-1][met]
