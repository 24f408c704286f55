"""Sequences of graphs that change from step to step; builders as in ``graphs.static``."""

from __future__ import annotations

import math
from typing import Final

from pydantic import Field

from ... import seeds
from ...config.settings import Settings
from ...errors import InputError
from ..entry import Graphs, NoOptions, Topology
from ..matrix import Matrix, circulant, exponential_offsets, undirected


def one_peer_exponential(workers: int, options: NoOptions, seed: int) -> Graphs:
    """At step k worker i sends to i + 2^(k mod ceil(log2 n)) alone. For n a power of two, ceil(log2 n) steps
    average exactly. Source: Ying et al., NeurIPS 2021.
    """
    offsets = exponential_offsets(workers)
    return Graphs(lambda step: circulant(workers, [offsets[step % len(offsets)]]), len(offsets))


class NumPeers(Settings):
    """Options of ``p_peer_exponential``."""

    peers: int = Field(default=2, ge=1, description="peers p of every worker in a step")


def p_peer_exponential(workers: int, options: NumPeers, seed: int) -> Graphs:
    """At step k worker i sends to i + j (p + 1)^(k mod ceil(log_(p+1) n)), j = 1 ... p.

    For n a power of p + 1 one period averages exactly. Source: Ying et al., NeurIPS 2021 (p = 1), and
    its direct extension.

    Raises: ``InputError`` where there are not that many others.
    """
    base = options.peers + 1
    if base > workers:
        raise InputError(
            f"p_peer_exponential with {options.peers} peers needs more than {workers} workers; "
            f"use peers {workers - 1}"
        )
    strides = [1]
    while strides[-1] * base < workers:
        strides.append(strides[-1] * base)

    def at(step: int) -> Matrix:
        stride = strides[step % len(strides)]
        return circulant(workers, [j * stride for j in range(1, base) if j * stride < workers])

    return Graphs(at, len(strides))


def random_matching(workers: int, options: NoOptions, seed: int) -> Graphs:
    """Pairs drawn anew at every step; with an odd n one worker stays alone.

    Source: Boyd et al., IEEE Trans. Inf. Theory 2006 (randomised gossip), in matchings.
    """

    def at(step: int) -> Matrix:
        order = seeds.generator(seed, seeds.SHARED, "topology random_matching", step).permutation(workers)
        pairs = order[: workers // 2 * 2].reshape(-1, 2)
        return undirected(workers, pairs)

    # Two given workers are matched with probability 1 / (n - 1), or 1 / n where one stays alone, and W'W = W.
    return Graphs(at, None, rate=math.sqrt(1.0 - 0.5 * workers / (workers - 1 + workers % 2)))


ONE_PEER_EXPONENTIAL: Final = Topology(
    "one_peer_exponential", one_peer_exponential, NoOptions, "any", "1", directed=True
)
P_PEER_EXPONENTIAL: Final = Topology(
    "p_peer_exponential", p_peer_exponential, NumPeers, "more than `peers`", "up to `peers`", directed=True
)
RANDOM_MATCHING: Final = Topology(
    "random_matching", random_matching, NoOptions, "any", "1 (or 0)", drawn=True
)
