"""All-reduces limited only by data dependences, latency and bandwidth; and NCCL's collectives.

Every builder takes the sizes of the members' sites, or of their hosts, in the order of the ranks (one size
where there are no sites), and the bytes of the payload. Builders are cached.

References:
    Patarasuk, Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, JPDC 2009 (ring).
    Sanders, Speck, Träff, Two-tree algorithms for full bandwidth broadcast, reduction and scan, Parallel
    Computing 2009 (double tree).
    Thakur, Rabenseifner, Gropp, Optimization of collective communication operations in MPICH, IJHPCA 2005
    (halving-doubling).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from ..seeds import Integers
from .algorithms import (
    Sites,
    count_ranks,
    crosses,
    dissemination_barrier,
    even_length,
    gloo_broadcast,
    halving_doubling_all_reduce,
    hierarchical_all_reduce,
    host_sizes,
    place_ranks,
    recursive_doubling_all_reduce,
)  # fmt: skip
from .collective import (
    Collective,
    CollectiveBlock,
    Lists,
    Schedule,
    fronts,
    of_blocks,
    of_rounds,
    posted_ahead,
    refuse_many,
    sort_in_steps,
    split_evenly,
)

RING_PIECES: Final = 64
"""Pieces of a chunk in the ideal ring: only the first piece pays the latency."""
TREE_SEGMENTS: Final = 16
TREE_SEGMENT_BYTES: Final = 64 * 1024
"""A tree's half of the payload goes in ``TREE_SEGMENTS`` segments, or in fewer of at least this size."""


@lru_cache(maxsize=64)
def ring(sites: Sites, num_bytes: int) -> Collective:
    """Pipelined ring: reduce-scatter, then all-gather, of one chunk per rank. S bytes on n equal hosts with
    latency L, m pieces per chunk, c = S / (n bandwidth): (2 n - 3) max(c, c/m + L) + c + L.
    """
    n = count_ranks(sites)
    return _around(n, [split_evenly(num_bytes, n)], range(2 * (n - 1)), RING_PIECES)


def _around(n: int, loops: list[list[int]], steps: range, pieces: int, tail: float = 0.0) -> Collective:
    """Ring steps, loop after loop: in step k rank r passes its loop's chunk r - k on to rank r + 1."""
    refuse_many("a ring", n, n * len(steps) * len(loops))
    blocks: list[CollectiveBlock] = []
    for chunks in loops:
        numbers: dict[tuple[int, int], int] = {}
        for step in steps:
            for rank in range(n):
                size = chunks[(rank - step) % n]
                if size:
                    before = numbers.get((step - 1, (rank - 1) % n))
                    numbers[step, rank] = len(blocks)
                    after = () if before is None else (before,)
                    blocks.append(CollectiveBlock(rank, (rank + 1) % n, size, min(pieces, size), after))
    return in_turn(of_blocks(n, blocks, tail), (n,))


@lru_cache(maxsize=64)
def recursive_doubling(sites: Sites, num_bytes: int) -> Collective:
    """Recursive doubling of all bytes; an exchange begins once its sender has the exchange before."""
    return _in_rounds(recursive_doubling_all_reduce(count_ranks(sites), num_bytes), sites)


@lru_cache(maxsize=64)
def halving_doubling(sites: Sites, num_bytes: int) -> Collective:
    """Recursive halving and doubling; an exchange begins once its sender has the exchange before."""
    return _in_rounds(halving_doubling_all_reduce(count_ranks(sites), num_bytes), sites)


def _in_rounds(schedule: Schedule, sites: Sites) -> Collective:
    return _in_turn_if_flat(without_rendezvous(schedule), sites)


def _in_turn_if_flat(collective: Collective, sites: Sites) -> Collective:
    """In a flat network, order blocks one after another: equally fast, and no two blocks share a link."""
    return collective if crosses(sites) else in_turn(collective, sites)


@lru_cache(maxsize=64)
def double_tree(sites: Sites, num_bytes: int) -> Collective:
    """Half of the payload over each of two binary trees, to the root in segments and back; leaves of one are
    inner nodes of the other. Sends on a link (as a leaf, up, down) are ordered: no tree waits for the other.
    """
    n = count_ranks(sites)
    return _over_trees((_tree(n, 0), _tree(n, 1 % n)), sites, num_bytes, TREE_SEGMENTS)


def _over_trees(trees: Sequence[list[int]], sites: Sites, num_bytes: int, segments: int) -> Collective:
    n = len(trees[0])
    planned: list[tuple[bool, int, int, int, int, int]] = []  # (down, level, segment, tree, child, bytes)
    for tree, (parents, part) in enumerate(zip(trees, split_evenly(num_bytes, len(trees)), strict=True)):
        height, depth = _heights_and_depths(parents)
        count = max(1, min(segments, -(-part // TREE_SEGMENT_BYTES)))
        refuse_many("a double tree", n, 2 * len(trees) * count * (n - 1))
        for segment, size in enumerate(split_evenly(part, count)):
            for child, parent in enumerate(parents):
                if parent >= 0 and size:
                    planned.append((False, height[child], segment, tree, child, size))
                    planned.append((True, depth[child], segment, tree, child, size))
    children = [_children(parents) for parents in trees]
    blocks: list[CollectiveBlock] = []
    numbers: dict[tuple[bool, int, int, int], int] = {}
    for down, _, segment, tree, child, size in sorted(planned):
        parent = trees[tree][child]
        source, destination = (parent, child) if down else (child, parent)
        if down and trees[tree][parent] >= 0:
            needs = [(True, tree, segment, parent)]
        else:
            needs = [(False, tree, segment, each) for each in children[tree][source]]
        numbers[down, tree, segment, child] = len(blocks)
        after = tuple(numbers[need] for need in needs)
        blocks.append(CollectiveBlock(source, destination, size, after=after))
    return in_turn(of_blocks(n, blocks), sites)


def _tree(n: int, shift: int) -> list[int]:
    """Parents in a binary tree over the ranks in order; -1 for the root.

    Counted from 1, a rank's height is the number of trailing zeros of its binary form.
    """
    parents = [-1] * n
    for place in range(1, n + 1):
        parent = place
        while True:
            low = parent & -parent
            parent = (parent ^ low) | (low << 1)
            if parent <= n or parent & (parent - 1) == 0:
                break
        if parent <= n:
            parents[(place - 1 + shift) % n] = (parent - 1 + shift) % n
    return parents


def _children(parents: list[int]) -> list[list[int]]:
    children: list[list[int]] = [[] for _ in parents]
    for child, parent in enumerate(parents):
        if parent >= 0:
            children[parent].append(child)
    return children


def _heights_and_depths(parents: list[int]) -> tuple[list[int], list[int]]:
    height, depth = [0] * len(parents), [0] * len(parents)
    for rank in range(len(parents)):
        above = rank
        while parents[above] >= 0:
            above = parents[above]
            depth[rank] += 1
            height[above] = max(height[above], depth[rank])
    return height, depth


@lru_cache(maxsize=64)
def hierarchical(sites: Sites, num_bytes: int) -> Collective:
    """Inside hosts and sites, then between sites, then back; a rank's sends of one phase share its links.

    Parts of a payload are equal, in fractions of a byte where it does not divide.
    """
    if not num_bytes:
        return of_blocks(count_ranks(sites), ())
    even = without_rendezvous(hierarchical_all_reduce(sites, even_length(sites)))
    return replace(even, num_bytes=num_bytes / (even_length(sites) / even.num_bytes))


@lru_cache(maxsize=64)
def ring_share(sites: Sites, num_bytes: int) -> Collective:
    """Half of the pipelined ring: a reduce-scatter, or an all-gather of ``num_bytes`` in all."""
    n = count_ranks(sites)
    return _around(n, [split_evenly(num_bytes, n)], range(n - 1), RING_PIECES)


@lru_cache(maxsize=64)
def exchange(sites: Sites, num_bytes: int) -> Collective:
    """Reduce-scatter or all-gather by direct exchange: every rank sends a share to every other rank.

    On n equal hosts it takes (n - 1) / n num_bytes / bandwidth and one latency. There a rank sends to the
    next rank first, then to the one after it; between hosts of several GPUs or sites it sends to all at once,
    so that every pipe is always in use.
    """
    n = count_ranks(sites)
    refuse_many("an exchange of all with all", n, n * (n - 1))
    shares, ranks = np.array(split_evenly(num_bytes, n)), np.arange(n)
    source = np.tile(ranks, n - 1)
    destination = (source + np.repeat(np.arange(1, n), n)) % n
    sent = shares[destination] > 0
    source, destination = source[sent], destination[sent]
    return _in_turn_if_flat(posted_ahead(n, source, destination, shares[destination]), sites)


@lru_cache(maxsize=64)
def chain_broadcast(sites: Sites, num_bytes: int) -> Collective:
    """Broadcast from rank 0 along all ranks, in pieces that are passed on as they arrive."""
    return _chain(count_ranks(sites), num_bytes, min(RING_PIECES, max(1, num_bytes)))


@lru_cache(maxsize=64)
def tree_broadcast(sites: Sites, num_bytes: int) -> Collective:
    """Broadcast over a binomial tree from rank 0; over one way a rank sends to one child after another."""
    return in_turn(without_rendezvous(gloo_broadcast(count_ranks(sites), num_bytes, 0)), sites)


def _chain(n: int, num_bytes: int, pieces: int) -> Collective:
    links = range(n - 1) if num_bytes else ()
    blocks = [
        CollectiveBlock(rank, rank + 1, num_bytes, pieces, (rank - 1,) if rank else ()) for rank in links
    ]
    return of_blocks(n, blocks)


@lru_cache(maxsize=64)
def barrier(n: int) -> Collective:
    """Barrier of empty messages, by dissemination."""
    return _in_rounds(dissemination_barrier(n), (n,))


# --- NCCL ---------------------------------------------------------------------------------------

NCCL_CHUNK_BYTES: Final = 4 * 2**20
"""Bytes of one send: half a buffer of 4 MiB in each of two channels, which share links."""
NCCL_SLICES: Final = 2
"""Slices of a chunk; a slice is passed on as soon as it arrives."""
NCCL_MAX_LOOPS: Final = 8
"""Most loops; a longer payload merges several loops into one with as many more slices."""
NCCL_TAIL: Final = 5.0
"""One-way latencies of a collective over sockets beyond its pipeline, with 4 and 8 ranks alike (read off the
measurements in BinhangYuan/tc_cluster_setting; the pipeline itself ends one latency after its last byte has
left). A payload below one chunk gets a proportional share, which is not measured."""

NCCL_CHAIN_SEGMENTS: Final = 8
"""More segments of a tree's half for each GPU behind the first of a host, so that the chain fills quickly."""

NCCL_STEP_S: Final = 14e-6
NCCL_RING_HOP_S: Final = 3.4e-6
NCCL_CHAIN_HOP_S: Final = 4.0e-6
NCCL_BYTES_PER_S: Final = 1.25e9
NCCL_TREE_SHARE: Final = 0.92
NCCL_TWO_HOSTS: Final = 2.0
"""Assumptions of NCCL's choice: a network step, NVLink steps inside a host for a ring and for a tree, the
speed of an unknown card, a tree's share of it, and by how much more that is between two hosts."""

NCCL_PCIE_BYTES_PER_S: Final = 64e9
"""Links inside a host of up to this rate are PCI Express (5.0 with 16 lanes), faster ones NVLink."""
NCCL_PCIE_SHARE: Final = 0.75
NCCL_PCIE_EXTRA: Final = 1.2
"""What NCCL counts of such a link, and how much more than its bytes traffic of two GPUs takes of it."""
NCCL_PCIE_TREE: Final = (*(0.9,) * 7, 0.8, 0.7, 0.6, 0.6, *(0.5,) * 4, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9)
"""What a tree gets of its share for payloads from 64 B on, each twice the one before; from 512 MiB on all."""


class NcclHosts(NamedTuple):
    """What decides between NCCL's ring and tree.

    Attributes:
        version: of NCCL. Trees came with 2.4; 2.6 was the first to ask a card for its rate.
        card_bytes_per_s: of a host's cards together.
        inside_bytes_per_s: of a GPU's link to the others of its host.
    """

    version: tuple[int, ...] = (2, 6)
    card_bytes_per_s: float = NCCL_BYTES_PER_S
    inside_bytes_per_s: float = math.inf

    @property
    def pcie(self) -> bool:
        """Whether GPUs share their links inside a host with its cards."""
        return self.inside_bytes_per_s <= NCCL_PCIE_BYTES_PER_S

    @property
    def era(self) -> str:
        """The rule's version and links, in words."""
        until = next((f"before {a}.{b}" for a, b in ((2, 4), (2, 6)) if self.version < (a, b)), "from 2.6 on")
        return f"{until} with {'PCI Express' if self.pcie else 'NVLink'}"

    def tree_share(self, two_hosts: bool, num_bytes: int) -> float:
        """A tree's rate where hosts have several GPUs, as a share of a ring's."""
        raised = NCCL_TWO_HOSTS if two_hosts else 1.0
        if not self.pcie:
            return NCCL_TREE_SHARE * raised
        counted = NCCL_PCIE_SHARE * self.inside_bytes_per_s / self.card_bytes_per_s
        spare = (counted - 1) / NCCL_PCIE_EXTRA
        raised = min(raised, max(1.0, spare)) if self.version >= (2, 6) else 1.0
        k = (num_bytes >> 6).bit_length() - 1
        return NCCL_TREE_SHARE * raised * (NCCL_PCIE_TREE[k] if 0 <= k < len(NCCL_PCIE_TREE) else 1.0)


NEWEST_NCCL: Final = NcclHosts()
"""With NVLink, and cards of an unknown rate."""


@lru_cache(maxsize=64)
def nccl_ring(sites: Sites, num_bytes: int) -> Collective:
    """NCCL's all-reduce around a ring: loops over chunks, in slices.

    Over sockets a send is complete once the kernel has the bytes, so that no round trip limits what is in
    flight but that of TCP itself (``tcp``). Over RDMA a receiver grants eight slots, two chunks, at a time,
    which counts where a chunk takes less than a round trip; that is not modelled.

    Source: NVIDIA/nccl at 5067397: src/transport/net.cc, ``sendProxyProgress``; src/transport/net_socket.cc.
    """
    n = count_ranks(sites)
    return _nccl_loops(n, num_bytes, range(2 * (n - 1)))


@lru_cache(maxsize=64)
def nccl_share(sites: Sites, num_bytes: int) -> Collective:
    """NCCL's reduce-scatter, or its all-gather of ``num_bytes`` in all: half of its ring all-reduce."""
    n = count_ranks(sites)
    return _nccl_loops(n, num_bytes, range(n - 1))


def _nccl_loops(n: int, num_bytes: int, steps: range) -> Collective:
    loops = max(1, -(-num_bytes // (n * NCCL_CHUNK_BYTES)))
    together = -(-loops // NCCL_MAX_LOOPS)
    chunks = [split_evenly(each, n) for each in split_evenly(num_bytes, -(-loops // together))]
    return _around(n, chunks, steps, NCCL_SLICES * together, _nccl_tail(n, num_bytes))


def _nccl_tail(n: int, num_bytes: int) -> float:
    return NCCL_TAIL * min(1.0, num_bytes / NCCL_CHUNK_BYTES) if n > 1 else 0.0


@lru_cache(maxsize=64)
def nccl_tree(sites: Sites, num_bytes: int) -> Collective:
    """NCCL's all-reduce over a double binary tree of hosts, each a chain of its GPUs.

    The first GPU of a host talks to other hosts, in both trees; sites are unknown to NCCL. The payload is cut
    into more segments for longer chains; NCCL's own are 512 KiB each. One card serves all children of a node,
    where NCCL's pattern may choose other GPUs.

    Source:
        NVIDIA/nccl at 5067397 (2026-06): src/graph/connect.cc, ``ncclTopoPreset`` (in a node ``tree.up`` is
        the
        rank before, ``tree.down`` the next) and ``connectTrees`` (``ncclGetDtree`` over nodes, "depth =
        nRanks/nNodes - 1 + log2i(nNodes)"); src/enqueue.cc, ``stepSize``.
    """
    sizes = host_sizes(sites)
    firsts = [sum(sizes[:host]) for host in range(len(sizes))]
    trees = []
    for shift in (0, 1 % len(sizes)):
        parents = [rank - 1 for rank in range(count_ranks(sites))]
        for first, above in zip(firsts, _tree(len(sizes), shift), strict=True):
            parents[first] = firsts[above] if above >= 0 else -1
        trees.append(parents)
    segments = TREE_SEGMENTS + NCCL_CHAIN_SEGMENTS * (max(sizes) - 1)
    return replace(
        _over_trees(trees, sites, num_bytes, segments), tail=_nccl_tail(count_ranks(sites), num_bytes)
    )


@lru_cache(maxsize=64)
def nccl_broadcast(sites: Sites, num_bytes: int) -> Collective:
    """NCCL's broadcast: along the ring from rank 0, a quarter of a chunk at a time."""
    n = count_ranks(sites)
    pieces = max(1, -(-num_bytes // (NCCL_CHUNK_BYTES // 4)))
    return replace(_chain(n, num_bytes, pieces), tail=_nccl_tail(n, num_bytes))


def nccl_choice(sites: Sites, num_bytes: int, known: NcclHosts = NEWEST_NCCL) -> str:
    """Ring or tree, by NCCL's own estimate, which ignores the network's latency and its bandwidth.

    On one or two hosts NCCL reckons with the rate *inside* a host. For a ring that is the card's; for a tree
    between two hosts of several GPUs its search raises it up to twice that, as far as links inside have it.
    NVLink has: the tree is chosen at every size (measured: issue 946 of NVIDIA/nccl; issues 22 and 196 of
    NVIDIA/nccl-tests, 1 GB among 16 GPUs in 268 ms by ring and 134 by its own choice). PCI Express carries
    the card's traffic beside: fast cards leave nothing to raise, and the ring is chosen, as always up to 2.5,
    which took every card for one of 100 Gbit/s; without NVLink a tree has no LL128 either, and gets part of
    its rate at middle sizes. From three hosts on both have the card's rate. Two single GPUs take the ring.

    Source: NVIDIA/nccl at 5067397: src/graph/tuning.cc, ``latencies`` of ring and tree, ``busBw`` of a tree,
    "nNodes <= 2", ``treeCorrectionFactor``; src/graph/search.cc, ``ncclTopoCompute``, pass 2, ``followPath``;
    v2.4.8-1, src/init.cc, ``ncclTreeThreshold``; v2.5.6-1, src/graph/topo.cc, ``NET_WIDTH``.
    """
    if known.version < (2, 4):
        return "nccl_ring"
    n, hosts = count_ranks(sites), len(host_sizes(sites))
    within = n - hosts
    ring_s = 2 * (within * NCCL_RING_HOP_S + (hosts - 1) * NCCL_STEP_S)
    tree_s = 2 * ((n // hosts - 1) * NCCL_CHAIN_HOP_S + (hosts.bit_length() - 1) * NCCL_STEP_S)
    ring_s += 2 * (n - 1) / n * num_bytes / NCCL_BYTES_PER_S
    share = known.tree_share(hosts == 2, num_bytes) if within else NCCL_TREE_SHARE
    tree_s += 2 * num_bytes / (share * NCCL_BYTES_PER_S)
    return "nccl_ring" if ring_s <= tree_s else "nccl_tree"


MAX_RING_RANKS: Final = 256
"""Largest ring considered in a choice by price: a ring has 2 (n - 1) n blocks."""


def least_latencies(name: str, sites: Sites) -> float:
    """Least number of sequential latencies of a collective; infinite if it is not to be priced."""
    n = count_ranks(sites)
    if name == "ring":
        return 2.0 * (n - 1) if n <= MAX_RING_RANKS else math.inf
    if name == "ring_share":
        return n - 1.0
    return math.inf if name == "hierarchical" and not crosses(sites) else 0.0


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


@lru_cache(maxsize=8)
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
