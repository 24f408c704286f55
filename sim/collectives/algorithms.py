"""Collectives as tables of messages: pure data for the event driver, for pricing and for the documentation.

torch's ``ProcessGroupGloo`` (read in PyTorch's ProcessGroupGloo.cpp and in gloo at 70dc360, 2026-04) and the
corresponding function here:

==============  =========================================================  =========================
``all_reduce``  gloo's default: ring over segments, two in flight          ``gloo_ring_all_reduce``
``broadcast``   binomial tree; a rank posts all its sends at once          ``gloo_broadcast``
``all_gather``  ring over half blocks, two in flight                       ``gloo_all_gather``
``barrier``     dissemination, empty messages, after all earlier work      ``dissemination_barrier``
==============  =========================================================  =========================

Conventions: n ranks; sizes in bytes, whole numbers that add up to the payload. The k-th send from a to b
meets the k-th receive that b posts for a. Where a payload is cut into more pieces than it has bytes, an
empty piece is not sent. Every constructor is cached.

A hierarchical all-reduce follows a cluster: GPUs in hosts, hosts in sites. It reduce-scatters from the inside
out, and all-gathers the same way back.

References:
    Thakur, Rabenseifner, Gropp, Optimization of collective communication operations in MPICH, IJHPCA 2005.
    Patarasuk, Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, JPDC 2009 (ring).
    Cho et al., BlueConnect, IBM J. Res. Dev. 63(6), 2019 (hierarchy).
    Hensgen, Finkel, Manber, Two algorithms for barrier synchronization, IJPP 1988 (dissemination).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise, permutations
from typing import Final, NamedTuple

import numpy as np

from ..seeds import Integers
from .collective import Round, Schedule, refuse_many, split_evenly

_GLOO_SEGMENT_BYTES = 1024 * 1024
_GLOO_ELEMENT_BYTES = 4
"""gloo's default for one segment, and the element that its segments are rounded up to (float32)."""

_IDLE = Round((), ())


# --- all-reduce ---------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def ring_all_reduce(n: int, num_bytes: int) -> Schedule:
    """Stop-and-wait ring all-reduce of n chunks, received from the next rank. On n equal hosts: 2 (n - 1)
    (latency + num_bytes / (n bandwidth)) for a size divisible by n.
    """
    return _ring(n, num_bytes, slice(0, 2))


@lru_cache(maxsize=64)
def gloo_ring_all_reduce(n: int, num_bytes: int) -> Schedule:
    """gloo's all-reduce: the ring over segments of chunks, two segments in flight.

    Segments: ``num_bytes`` / 1 MiB or 2 n, whichever is more, rounded up to a multiple of n, of whole float32
    elements each; the last is shorter, and small payloads leave the last chunks empty. In each phase, receive
    i and send i are posted, in this order, when those up to i - 2 are complete. An idle round separates the
    phases.
    """
    segments = max(-(-num_bytes // _GLOO_SEGMENT_BYTES), 2 * n)
    segments += -segments % n
    length = -(-num_bytes // segments)
    length += -length % _GLOO_ELEMENT_BYTES
    lengths = [max(0, min(length, num_bytes - k * length)) for k in range(segments)]
    return _ring_of_pieces(n, lengths, window=2)


@lru_cache(maxsize=64)
def ring_reduce_scatter(n: int, num_bytes: int) -> Schedule:
    """The first half of ``ring_all_reduce``: rank r ends with chunk r of the sum, after n - 1 rounds."""
    return _ring(n, num_bytes, slice(0, 1))


@lru_cache(maxsize=64)
def direct_reduce_scatter(n: int, num_bytes: int) -> Schedule:
    """Direct exchange: all chunks r go to rank r at once, for chunks that cannot be summed in transit."""
    refuse_many("an exchange of all with all", n, n * (n - 1))
    chunks = split_evenly(num_bytes, n)
    table = []
    for rank in range(n):
        others = [(rank + i) % n for i in range(1, n)]
        receives = [message for peer in others for message in _message(peer, chunks[rank])]
        sends = [message for peer in others for message in _message(peer, chunks[peer])]
        table.append((Round(tuple(receives), tuple(sends)),) if n > 1 else ())
    return Schedule(tuple(table), 1)


@lru_cache(maxsize=64)
def ring_gather_chunks(n: int, num_bytes: int) -> Schedule:
    """The second half of ``ring_all_reduce``: rank r begins with chunk r, all end with all chunks."""
    return _ring(n, num_bytes, slice(1, 2))


def _ring(n: int, num_bytes: int, phases: slice) -> Schedule:
    return _ring_of_pieces(n, split_evenly(num_bytes, n), window=1, phases=phases)


def _ring_of_pieces(n: int, lengths: Sequence[int], window: int, phases: slice = slice(0, 2)) -> Schedule:
    """Ring all-reduce over ``lengths``; each of n chunks has equally many in a row."""
    refuse_many("a ring", n, n * (n - 1) * (len(lengths) // n) * len(range(2)[phases]))
    table = []
    for rank in range(n):
        source, destination = (rank + 1) % n, (rank - 1) % n
        known: dict[tuple[int, int], Round] = {}  # few different rounds, many repeats
        rounds: list[Round] = []
        for phase in _ring_phases(n, len(lengths) // n, rank)[phases]:
            if rounds:
                rounds += [_IDLE] * (window - 1)
            for received, sent in phase:
                key = lengths[received], lengths[sent]
                if key not in known:
                    known[key] = Round(_message(source, key[0]), _message(destination, key[1]))
                rounds.append(known[key])
        table.append(tuple(rounds))
    return Schedule(tuple(table), window)


def _ring_phases(n: int, per_chunk: int, rank: int) -> list[list[tuple[int, int]]]:
    """(received piece, sent piece) in order, for the reduce-scatter and for the all-gather.

    Chunk c is the pieces from c * per_chunk on; after the first phase, rank r has the sum of chunk r.
    """
    pieces = n * per_chunk
    return [
        [((first + per_chunk + i) % pieces, (first + i) % pieces) for i in range(pieces - per_chunk)]
        for first in ((rank + 1) * per_chunk, rank * per_chunk)
    ]


@lru_cache(maxsize=64)
def halving_doubling_all_reduce(n: int, num_bytes: int) -> Schedule:
    """Recursive vector halving with distance doubling, then the same way back (Rabenseifner).

    With p the largest power of two up to n: first the extra ranks p, p + 1, ... fold their whole payload
    into ranks 0, 1, ...; ranks below p then exchange halves, quarters, ... with rank xor 1, 2, 4, ..., gather
    them back in reverse order, and send the result to the extra ranks. On n = p equal hosts with a size
    divisible by n it takes 2 log2(n) latency + 2 (n - 1) / n num_bytes / bandwidth.
    """
    core = 1 << (n.bit_length() - 1)
    offset = [k * num_bytes // core for k in range(core + 1)]

    def exchanges(rank: int) -> tuple[Round, ...]:
        return tuple(
            Round(
                _message(peer, offset[received.stop] - offset[received.start]),
                _message(peer, offset[sent.stop] - offset[sent.start]),
            )
            for peer, received, sent in _halving_exchanges(core, rank)
        )

    return _fold_extra_ranks(n, num_bytes, exchanges)


@lru_cache(maxsize=64)
def recursive_doubling_all_reduce(n: int, num_bytes: int) -> Schedule:
    """Exchange all bytes with rank xor 1, 2, 4, ...: the fewest rounds, each with the whole payload.

    Ranks beyond the largest power of two fold into others first, as in ``halving_doubling_all_reduce``. On a
    power of two of equal hosts it takes log2(n) (latency + num_bytes / bandwidth). Thakur et al. recommend it
    for short vectors; torch's TCP back end up to 1.x used it for all of them.
    """
    core = 1 << (n.bit_length() - 1)

    def exchanges(rank: int) -> tuple[Round, ...]:
        peers = (rank ^ (1 << k) for k in range(core.bit_length() - 1))
        return tuple(Round(_message(peer, num_bytes), _message(peer, num_bytes)) for peer in peers)

    return _fold_extra_ranks(n, num_bytes, exchanges)


def _fold_extra_ranks(n: int, num_bytes: int, exchanges: Callable[[int], tuple[Round, ...]]) -> Schedule:
    """``exchanges`` among the first 2^k <= n ranks; the others give first and take the result."""
    core = 1 << (n.bit_length() - 1)
    table: list[tuple[Round, ...]] = []
    for rank in range(n):
        partner = rank + core if rank < core else rank - core
        give = Round((), _message(partner, num_bytes))
        take = Round(_message(partner, num_bytes), ())
        if rank >= core:
            table.append((give, take))
        else:
            table.append((take, *exchanges(rank), give) if partner < n else exchanges(rank))
    return Schedule(tuple(table), 1)


def _halving_exchanges(core: int, rank: int) -> list[tuple[int, range, range]]:
    """(peer, received chunks, sent chunks) of a rank in order; there are ``core`` chunks, a power of two."""
    scatter = []
    mine = range(core)
    for k in range(core.bit_length() - 1):
        half = len(mine) // 2
        kept, sent = mine[:half], mine[half:]
        if rank >> k & 1:
            kept, sent = sent, kept
        scatter.append((rank ^ (1 << k), kept, sent))
        mine = kept
    return scatter + [(peer, sent, kept) for peer, kept, sent in reversed(scatter)]


# --- the others ---------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def binomial_broadcast(n: int, num_bytes: int, root: int) -> Schedule:
    """Binomial tree, sends in sequence: rank r (from the root) sends to r + 2^i for each 2^i > r, ascending.
    Takes at most ceil(log2 n) (latency + num_bytes / bandwidth) on equal hosts.
    """
    return _broadcast(n, num_bytes, root, at_once=False)


@lru_cache(maxsize=64)
def gloo_broadcast(n: int, num_bytes: int, root: int) -> Schedule:
    """gloo's broadcast: a binomial tree with all sends of a rank at once, which share its access link."""
    return _broadcast(n, num_bytes, root, at_once=True)


def _broadcast(n: int, num_bytes: int, root: int, at_once: bool) -> Schedule:
    table = []
    for rank in range(n):
        place = (rank - root) % n
        depth = place.bit_length()
        rounds = []
        if place:
            parent = (root + place - (1 << (depth - 1))) % n
            rounds.append(Round(((parent, num_bytes),), ()))
        children = [
            (root + place + (1 << i)) % n for i in range(depth, n.bit_length()) if place + (1 << i) < n
        ]
        sends = tuple((child, num_bytes) for child in children)
        if at_once:
            rounds += [Round((), sends)] if sends else []
        else:
            rounds += [Round((), (send,)) for send in sends]
        table.append(tuple(rounds))
    return Schedule(tuple(table), 1)


@lru_cache(maxsize=64)
def gloo_all_gather(n: int, num_bytes: int) -> Schedule:
    """gloo's all-gather: the ring with each block of ``num_bytes`` cut in two, two halves in flight.

    The first half of an odd block is the smaller one; it is sent even if it is empty.
    """
    halves = num_bytes // 2, num_bytes - num_bytes // 2
    hops = n - 1 if num_bytes else 0
    refuse_many("a ring", n, 2 * n * hops)
    return Schedule(
        tuple(
            tuple(Round((((rank - 1) % n, half),), (((rank + 1) % n, half),)) for half in halves) * hops
            for rank in range(n)
        ),
        window=2,
    )


@lru_cache(maxsize=64)
def dissemination_barrier(n: int) -> Schedule:
    """gloo's barrier: ceil(log2 n) rounds of empty messages, to rank + 2^i and from rank - 2^i."""
    distances = [1 << i for i in range((n - 1).bit_length())]
    return Schedule(
        tuple(
            tuple(Round((((rank - d) % n, 0),), (((rank + d) % n, 0),)) for d in distances)
            for rank in range(n)
        ),
        1,
    )


def _message(peer: int, num_bytes: int) -> tuple[tuple[int, int], ...]:
    return ((peer, num_bytes),) if num_bytes else ()


# --- hierarchy ----------------------------------------------------------------------------------

MAX_COLUMNS: Final = 16
"""Most owners in a site of single hosts: messages grow with them, and this many fill any pipe."""

Site = int | tuple[int, ...]
"""The ranks of a site: their number, or the number in each of its hosts."""

Sites = tuple[Site, ...]
"""Ranks of each site, or of its hosts, in order."""

_Part = tuple[int, int]
"""Begin and end of a part of the payload."""


def count_ranks(sites: Sites) -> int:
    """Number of ranks of all sites: ((8, 8), (8, 8), 3) has 35."""
    return sum(site if isinstance(site, int) else sum(site) for site in sites)


def host_sizes(sites: Sites) -> tuple[int, ...]:
    """Ranks per host, in the order of the ranks: (8, 8, 1, 1, 1) of ((8, 8), 3)."""
    return tuple(gpus for site in sites for gpus in ((1,) * site if isinstance(site, int) else site))


def place_ranks(sites: Sites) -> tuple[Integers, Integers]:
    """The site and the host of each rank, as numbers [ranks]."""
    sizes, hosts = np.array([count_ranks((site,)) for site in sites]), np.array(host_sizes(sites))
    return np.repeat(np.arange(len(sizes)), sizes), np.repeat(np.arange(len(hosts)), hosts)


def tiers(sites: Sites) -> tuple[tuple[int, ...], ...]:
    """Sizes of all groups from the inside out; a group is represented by one of its members further out.

    >>> tiers(((8, 8), (8, 8, 8)))
    ((8, 8, 8, 8, 8), (2, 3))
    >>> tiers((4, 4))
    ((4, 4),)
    """
    inside = host_sizes(sites)
    outside = tuple(site if isinstance(site, int) else len(site) for site in sites)
    return (outside,) if max(inside, default=1) == 1 else (inside, outside)


def crosses(sites: Sites) -> bool:
    """Whether there are groups to go between: several sites, or hosts with several GPUs."""
    return len(sites) > 1 or len(tiers(sites)[0]) > 1


class PayloadPart(NamedTuple):
    """A part of the payload in one message: who sends or gets it, and where it begins and ends."""

    peer: int
    start: int
    stop: int


@dataclass(frozen=True)
class PieceRound:
    """One round of a rank: all its receives are posted, then all its sends.

    Attributes:
        receives, sends: of parts of the payload.
        adds: whether received parts are added to the present ones; else they replace them.
    """

    receives: tuple[PayloadPart, ...]
    sends: tuple[PayloadPart, ...]
    adds: bool


@lru_cache(maxsize=64)
def hierarchical_pieces(sites: Sites, length: int) -> tuple[tuple[PieceRound, ...], ...]:
    """A hierarchical all-reduce of a payload [length], by rank and round: reduce from inside, gather back.

    In a group (a host, then the hosts of a site) the payload is cut into as many columns as the smallest
    group has members, and so many members of each own one. (1) Everybody sends each column to its owner in
    the group. (2) The owners of a column in different groups are members of the groups further out, where the
    same is done with the column; the owners in different sites cut it into one part per site, send each part
    to the site's owner, who sends the sum back. (3) Owners send their column to everybody in their group.
    Where every host is one GPU, a site has ``MAX_COLUMNS`` columns at most. ``length`` is in bytes or
    elements.
    """
    sizes = tiers(sites)
    n, last = count_ranks(sites), 2 * len(sizes) + 1
    most = _columns(sizes)
    refuse_many("a hierarchical all-reduce", n, 2 * n * (sum(most) + len(sites)))
    receives: list[list[list[PayloadPart]]] = [[[] for _ in range(last + 1)] for _ in range(n)]
    sends: list[list[list[PayloadPart]]] = [[[] for _ in range(last + 1)] for _ in range(n)]

    for phase, source, destination, (start, stop) in _up_and_down(range(n), 0, (0, length), sizes, most):
        if stop > start:
            sends[source][phase].append(PayloadPart(destination, start, stop))
            receives[destination][phase].append(PayloadPart(source, start, stop))
    return tuple(
        tuple(
            PieceRound(tuple(receives[rank][k]), tuple(sends[rank][k]), adds=k <= len(sizes))
            for k in range(last + 1)
        )
        for rank in range(n)
    )


def _columns(sizes: Sequence[Sequence[int]]) -> list[int]:
    return [min(groups) if len(sizes) > 1 else min(*groups, MAX_COLUMNS) for groups in sizes]


def even_length(sites: Sites) -> int:
    """Length of the shortest payload of which all parts are equal in ``hierarchical_pieces``."""
    return math.prod(_columns(tiers(sites))) * len(sites)


def _up_and_down(
    ranks: Sequence[int], phase: int, part: _Part, sizes: Sequence[Sequence[int]], most: Sequence[int]
) -> Iterator[tuple[int, int, int, _Part]]:
    """(phase, source, destination, part) of each message from one tier on outwards, and back to it."""
    if phase == len(sizes):  # between sites
        parts = _cut(part, len(ranks))
        for (position, owner), (other, peer) in permutations(enumerate(ranks), 2):
            yield phase, owner, peer, parts[other]
            yield phase + 1, owner, peer, parts[position]
        return
    groups = sizes[phase]
    firsts = list(accumulate(groups[:-1], initial=0))
    for column, piece in enumerate(_cut(part, most[phase])):
        owners = [ranks[first + column] for first in firsts]
        for owner, first, members in zip(owners, firsts, groups, strict=True):
            for rank in ranks[first : first + members]:
                if rank != owner:
                    yield phase, rank, owner, piece
                    yield 2 * len(sizes) + 1 - phase, owner, rank, piece
        yield from _up_and_down(owners, phase + 1, piece, sizes, most)


def _cut(part: _Part, number: int) -> list[_Part]:
    """So many parts of a part, as equal as can be."""
    ends = accumulate(split_evenly(part[1] - part[0], number), initial=part[0])
    return list(pairwise(ends))


@lru_cache(maxsize=64)
def hierarchical_all_reduce(sites: Sites, num_bytes: int) -> Schedule:
    """The messages of ``hierarchical_pieces``, all of a round at once: two latencies of each tier."""

    def messages(pieces: Sequence[PayloadPart]) -> tuple[tuple[int, int], ...]:
        return tuple((piece.peer, piece.stop - piece.start) for piece in pieces)

    return Schedule(
        tuple(
            tuple(Round(messages(each.receives), messages(each.sends)) for each in rounds)
            for rounds in hierarchical_pieces(sites, num_bytes)
        ),
        1,
    )
