"""The blocks of a collective one by one, for tests that follow them."""

from __future__ import annotations

import numpy as np

from paceline.sim.collectives import pipelines
from paceline.sim.collectives.algorithm_registry import ALGORITHMS, Builder
from paceline.sim.collectives.collective import Collective, CollectiveBlock
from paceline.sim.collectives.pricing import BlockCosts, completion_s, lay_out


def blocks_of(collective: Collective) -> list[CollectiveBlock]:
    """Its blocks, by number."""
    c = collective
    columns = (c.source, c.destination, c.num_bytes.astype(int), c.pieces.astype(int))
    lists = (map(tuple, each.tolist()) for each in (c.after, c.behind))
    rows = zip(*(column.tolist() for column in columns), *lists, strict=True)
    return [CollectiveBlock(*row) for row in rows]


def ends_s(
    collective: Collective, ready_s: list[float], rate: float, latency_s: float, overhead_s: float = 0.0
) -> list[float]:
    """When each rank is through on equal links of its own."""
    latencies_s = np.full(collective.messages, latency_s)
    piece_s = collective.num_bytes / collective.pieces / rate
    costs = BlockCosts(piece_s, latencies_s, latencies_s, overhead_s)
    done_s: list[float] = completion_s(lay_out(collective), np.array(ready_s), costs)[0].tolist()
    return done_s


PIPELINES: dict[str, Builder] = {
    each.name: each.build
    for each in ALGORITHMS
    if each.operation == "all_reduce" and each.build.__module__ == pipelines.__name__
}
"""All-reduces whose receives are posted ahead, by name."""
