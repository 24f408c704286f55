"""Time models as users write them: right ones, and wrong ones."""

from __future__ import annotations

import math

import networkx as nx
import numpy as np

from paceline import Link, Network, Round, Schedule


def soon(worker: int, index: int, random: np.random.Generator) -> float:
    return worker + index / 16 + float(random.random() < 0.5)


def about_one(worker: int, index: int, random: np.random.Generator) -> float:
    """0.5 and 1.5 in turn, so that the mean of any even number is 1."""
    return 0.5 + (index + worker) % 2


def never(worker: int, index: int, random: np.random.Generator) -> float:
    return math.inf


def three(workers: int) -> Network:
    return near(3)


def near(workers: int) -> Network:
    return Network(("all",), (0,) * workers, (), ((0.25,),), ((math.inf,),))


def a_list(workers: int) -> list[int]:
    return [workers]


def path(workers: int) -> nx.Graph[int]:
    """A topology: everybody in a row."""
    graph: nx.Graph[int] = nx.path_graph(workers)
    return graph


def star(workers: int, num_bytes: int) -> Schedule:
    """Everybody sends to worker 0, which sends the sum back."""
    others = range(1, workers)
    centre = (
        Round(tuple((rank, num_bytes) for rank in others), ()),
        Round((), tuple((rank, num_bytes) for rank in others)),
    )
    rim = (Round((), ((0, num_bytes),)), Round(((0, num_bytes),), ()))
    return Schedule((centre, *(rim for _ in others)), 1)


def forgetful(workers: int, num_bytes: int) -> Schedule:
    rounds = ((Round((), ((1, num_bytes),)),), *(() for _ in range(1, workers)))
    return Schedule(rounds, 1)


def circle(workers: int, num_bytes: int) -> Schedule:
    """Everybody receives before sending."""
    n = workers
    return Schedule(
        tuple(
            (Round((((r - 1) % n, num_bytes),), ()), Round((), (((r + 1) % n, num_bytes),))) for r in range(n)
        ),
        1,
    )


def all_to_all(workers: int, num_bytes: int) -> Schedule:
    """Everybody sends its part to all others, the next one first, and gets theirs."""
    size = num_bytes // workers
    table = []
    for rank in range(workers):
        others = tuple(((rank + k) % workers, size) for k in range(1, workers))
        table.append((Round(others, others), Round(others, others)))
    return Schedule(tuple(table), 1)


def elsewhere(workers: int) -> Network:
    links = (Link("card", 1e9),)
    return Network(("all",), (0,) * workers, links, ((0.25,),), ((math.inf,),), up={99: 0})
