"""A collective as blocks and posts, in arrays; schedules, of which one is made; and bytes between hosts.

A *block* is bytes from one rank to another, in equal pieces. A *post* is a point in the program of one rank:
it happens after the post before it, when some of the rank's blocks have ended (sent, for the sender; arrived,
for the receiver). The first post of a rank is its joining. A block can leave when its sender has offered it
and its receiver has posted it: a round of a table is one post; receives posted ahead belong to the joining.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..config.limits import MAX_MESSAGES
from ..config.units import format_bytes
from ..devices import free_bytes
from ..errors import RunError
from ..seeds import Floats, Integers

_MESSAGE_BYTES: Final = 600
"""Approximate memory of one message while a collective is laid out."""
_FEW_MESSAGES: Final = 100_000
"""Collectives of up to this many messages always fit."""


@dataclass(frozen=True, eq=False)
class Lists:
    """A ragged array: row i is ``flat[start[i] : start[i + 1]]``; ``start`` is [rows + 1].

    >>> lists = Lists.of_rows([(4, 5), (), (6,)])
    >>> lists.start.tolist(), lists.flat.tolist(), lists.owner.tolist()
    ([0, 2, 2, 3], [4, 5, 6], [0, 0, 2])
    """

    start: Integers
    flat: Integers

    @classmethod
    def of_rows(cls, rows: Sequence[Sequence[int]]) -> Lists:
        """Build from one sequence per row."""
        start = np.cumsum([0, *map(len, rows)])
        return cls(start, np.array([number for row in rows for number in row], dtype=np.int64))

    @classmethod
    def grouped(cls, owner: Integers, numbers: Integers, rows: int) -> Lists:
        """Group ``numbers`` by their row ``owner``, keeping their order."""
        start = np.concatenate(([0], np.cumsum(np.bincount(owner, minlength=rows))))
        return cls(start, numbers[np.argsort(owner, kind="stable")])

    @classmethod
    def empty(cls, rows: int) -> Lists:
        """``rows`` empty rows."""
        return cls(np.zeros(rows + 1, np.int64), np.empty(0, np.int64))

    @cached_property
    def owner(self) -> Integers:
        """The row of each number."""
        return np.repeat(np.arange(len(self.start) - 1), np.diff(self.start))

    def of(self, rows: Integers) -> tuple[Integers, Integers]:
        """The numbers of some rows, side by side, and the length of each row."""
        lengths = self.start[rows + 1] - self.start[rows]
        index = np.arange(lengths.sum()) + np.repeat(self.start[rows] - np.cumsum(lengths) + lengths, lengths)
        return self.flat[index], lengths

    def inverse(self, rows: int) -> Lists:
        """The rows that contain each number below ``rows``."""
        return Lists.grouped(self.flat, self.owner, rows)

    def tolist(self) -> list[list[int]]:
        """The rows as Python lists."""
        flat, start = self.flat.tolist(), self.start.tolist()
        return [flat[begin:end] for begin, end in pairwise(start)]


def sort_in_steps(needing: Integers, needed: Integers, rows: int) -> tuple[list[Integers], NDArray[np.bool_]]:
    """Steps of a topological order, and rows in circles [rows], where ``needing[i]`` needs ``needed[i]``."""
    missing = np.bincount(needing, minlength=rows)
    then = Lists.grouped(needed, needing, rows)
    steps, ready = [], np.flatnonzero(missing == 0)
    while len(ready):
        steps.append(ready)
        freed, _ = then.of(ready)
        np.subtract.at(missing, freed, 1)
        freed = np.sort(freed[missing[freed] == 0])
        ready = freed[np.diff(freed, prepend=-1) > 0]
    return steps, missing > 0


class CollectiveBlock(NamedTuple):
    """Bytes that one rank sends to another.

    Attributes:
        source, destination: ranks.
        num_bytes: of all pieces.
        pieces: equal pieces, one or more.
        after: blocks, by number, whose k-th piece must have arrived before the k-th piece of this one leaves.
            They have as many pieces.
        behind: blocks, by number, that must have left completely before this one leaves.
    """

    source: int
    destination: int
    num_bytes: int
    pieces: int = 1
    after: tuple[int, ...] = ()
    behind: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Collective:
    """B blocks and P posts; the first ``ranks`` posts are the joinings.

    Attributes:
        source, destination: [B] ranks.
        num_bytes: [B] bytes; parts of a payload may be fractions.
        pieces: [B] whole numbers.
        offered, posted: [B] the post of its source, and of its destination, after which it can leave.
        post_rank: [P] rank of the post.
        post_before: [P] the previous post of the same rank; -1 for a joining.
        ends: [P] blocks that must end for the post's rank before it happens.
        after, behind: [B] as in ``CollectiveBlock``.
        receives, sends: [P] blocks in the order in which they are posted and offered.
        rendezvous: the sender hears of each receive.
        tail: extra time of a library, in one-way latencies of the longest route.
    """

    ranks: int
    source: Integers
    destination: Integers
    num_bytes: Floats
    pieces: Floats
    offered: Integers
    posted: Integers
    post_rank: Integers
    post_before: Integers
    ends: Lists
    after: Lists
    behind: Lists
    receives: Lists
    sends: Lists
    rendezvous: bool
    tail: float = 0.0

    @property
    def messages(self) -> int:
        """The number of blocks."""
        return len(self.source)

    @cached_property
    def pairs(self) -> tuple[Integers, Integers]:
        """Ordered pairs of ranks with blocks [m], as source * ranks + destination; [B] each block's pair."""
        keys, pair = np.unique(self.source * self.ranks + self.destination, return_inverse=True)
        return keys, pair

    @cached_property
    def sent(self) -> tuple[Integers, Integers, Integers]:
        """Source, destination and whole bytes of each of ``pairs`` [m]."""
        source, destination = np.divmod(self.pairs[0], self.ranks)
        until = np.cumsum(np.bincount(self.pairs[1], weights=self.num_bytes, minlength=len(source)))
        until = np.concatenate(([0.0], until))
        base = until[np.searchsorted(source, source)]  # of its rank: rounded, a rank's bytes add up
        num_bytes = np.rint(until[1:] - base) - np.rint(until[:-1] - base)
        return source, destination, num_bytes.astype(np.int64)

    @cached_property
    def bytes_sent(self) -> tuple[int, ...]:
        """Bytes that each rank sends."""
        sent = np.bincount(self.source, weights=self.num_bytes, minlength=self.ranks)
        return tuple(round(each) for each in sent.tolist())

    @cached_property
    def streams(self) -> Lists:
        """[B] the previous block of the same stream, one per ordered pair of ranks."""
        return Lists.grouped(*fronts(self.source * self.ranks + self.destination), self.messages)


def fronts(keys: Integers) -> tuple[Integers, Integers]:
    """Places whose key has occurred before, and for each the last earlier place with that key."""
    order = np.argsort(keys, kind="stable")
    equal = keys[order[1:]] == keys[order[:-1]]
    return order[1:][equal], order[:-1][equal]


def of_blocks(ranks: int, blocks: Sequence[CollectiveBlock], tail: float = 0.0) -> Collective:
    """A collective of blocks whose receives are posted ahead, when their rank joins.

    Blocks are ordered so that none needs, or is behind, a later one. ``tail``: see ``Collective``.
    """
    source, destination, num_bytes, pieces = (
        np.array([block[column] for block in blocks], dtype=np.int64) for column in range(4)
    )
    return replace(
        posted_ahead(ranks, source, destination, num_bytes),
        pieces=pieces.astype(np.float64),
        after=Lists.of_rows([block.after for block in blocks]),
        behind=Lists.of_rows([block.behind for block in blocks]),
        tail=tail,
    )


def posted_ahead(
    ranks: int, source: Integers, destination: Integers, num_bytes: Integers | Floats
) -> Collective:
    """A collective of blocks [B] of one piece that need only their two ranks."""
    numbers, none = np.arange(len(source)), Lists.empty(len(source))
    return Collective(
        ranks=ranks,
        source=source,
        destination=destination,
        num_bytes=num_bytes.astype(np.float64),
        pieces=np.ones(len(source)),
        offered=source,
        posted=destination,
        post_rank=np.arange(ranks),
        post_before=np.full(ranks, -1),
        ends=Lists.empty(ranks),
        after=none,
        behind=none,
        receives=Lists.grouped(destination, numbers, ranks),
        sends=Lists.grouped(source, numbers, ranks),
        rendezvous=False,
    )


# --- schedules: the messages of a collective, round by round ------------------------------------


@dataclass(frozen=True, slots=True)
class Round:
    """One round of a rank: all its receives are posted, then all its sends.

    It is complete when each message has arrived or left.

    Attributes:
        receives: (source, bytes) of each message.
        sends: (destination, bytes) of each message.
    """

    receives: tuple[tuple[int, int], ...]
    sends: tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False)
class Schedule:
    """The messages of one collective.

    Two workers swap 100 bytes:

    >>> swap = Schedule(
    ...     rounds=(
    ...         (Round(receives=((1, 100),), sends=((1, 100),)),),
    ...         (Round(receives=((0, 100),), sends=((0, 100),)),),
    ...     ),
    ...     window=1,
    ... )
    >>> [sum(size for one in rounds for _, size in one.sends) for rounds in swap.rounds]
    [100, 100]

    Attributes:
        rounds: ``rounds[rank]`` in order; ranks may have different numbers of them.
        window: how many rounds of one rank are in flight. Its round i begins when its rounds up to i - window
            are complete: 1 is strictly in order.
    """

    rounds: tuple[tuple[Round, ...], ...]
    window: int


def split_evenly(num_bytes: int, pieces: int) -> list[int]:
    """Split ``num_bytes`` into integer sizes that differ by at most one."""
    return [(k + 1) * num_bytes // pieces - k * num_bytes // pieces for k in range(pieces)]


def refuse_many(name: str, ranks: int, messages: int) -> None:
    """Raise ``RunError``, before allocation, for more than ``MAX_MESSAGES`` or than fit into free memory."""
    if messages <= _FEW_MESSAGES:
        return
    needed, free = float(messages * _MESSAGE_BYTES), free_bytes()
    if messages <= MAX_MESSAGES and needed <= free:
        return
    why = (
        f"at most {MAX_MESSAGES:,} are followed"
        if messages > MAX_MESSAGES
        else f"they need about {format_bytes(needed)} of memory, and {format_bytes(free)} are free"
    )
    raise RunError(
        f"{name} among {ranks:,} workers has {messages:,} messages; {why}: use smaller groups, or for "
        "all-reduces another algorithm (collectives.all_reduce, auto on transport ideal)"
    )


@lru_cache(maxsize=64)
def of_rounds(schedule: Schedule) -> Collective:
    """A collective from a schedule: a round is a post that waits for the one leaving the window to end."""
    n, window = len(schedule.rounds), schedule.window
    counts = np.array([len(rounds) for rounds in schedule.rounds], dtype=np.int64)
    first = n + np.cumsum(counts) - counts
    num_posts = n + int(counts.sum())
    post_rank = np.concatenate((np.arange(n), np.repeat(np.arange(n), counts)))
    post_before = np.concatenate((np.full(n, -1), np.arange(n, num_posts) - 1))
    post_before[first[counts > 0]] = np.flatnonzero(counts)
    sends = _list_messages(schedule, first, "sends")
    receives = _list_messages(schedule, first, "receives")[:, [1, 0, 2, 3]]
    # The k-th send from a to b meets the k-th receive: blocks are numbered by source, destination and k.
    pairs = [each[:, 0] * n + each[:, 1] for each in (sends, receives)]
    orders = [np.argsort(each, kind="stable") for each in pairs]
    numbers = [np.argsort(each) for each in orders]
    in_posts = [
        Lists.grouped(each[:, 3], number, num_posts)
        for each, number in zip((sends, receives), numbers, strict=True)
    ]
    sends, receives = sends[orders[0]], receives[orders[1]]
    number = np.arange(len(sends))
    at = np.concatenate((sends[:, 3], receives[:, 3]))
    waits = at + window < (first + counts)[post_rank[at]]
    return replace(
        posted_ahead(n, *sends[:, :3].T.copy()),
        offered=sends[:, 3].copy(),
        posted=receives[:, 3].copy(),
        post_rank=post_rank,
        post_before=post_before,
        ends=Lists.grouped((at + window)[waits], np.concatenate((number, number))[waits], num_posts),
        receives=in_posts[1],
        sends=in_posts[0],
        rendezvous=True,
    )


def _list_messages(schedule: Schedule, first: Integers, what: str) -> Integers:
    """Rank, peer, bytes and post of each message [messages, 4], in the order of posting."""
    tables = [np.empty((0, 4), dtype=np.int64)]
    for rank, rounds in enumerate(schedule.rounds):
        distinct: dict[int, Round] = {id(one): one for one in rounds}  # few, often repeated
        places = {key: place for place, key in enumerate(distinct)}
        which = np.fromiter((places[id(one)] for one in rounds), dtype=np.int64, count=len(rounds))
        messages = Lists.of_rows([[v for m in getattr(one, what) for v in m] for one in distinct.values()])
        flat, lengths = messages.of(which)
        table = np.empty((len(flat) // 2, 4), dtype=np.int64)
        table[:, 0], table[:, 1:3] = rank, flat.reshape(-1, 2)
        table[:, 3] = first[rank] + np.repeat(np.arange(len(rounds)), lengths // 2)
        tables.append(table)
    return np.concatenate(tables)


# --- bytes that hosts send to each other --------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Sends:
    """Messages, or sums of messages: source, destination and bytes of each [m]."""

    source: Integers
    destination: Integers
    num_bytes: Integers

    @cached_property
    def of_hosts(self) -> dict[int, list[tuple[int, int]]]:
        """Source -> destination and bytes of each message that is not empty."""
        hosts = dict[int, list[tuple[int, int]]]()
        columns = self.source.tolist(), self.destination.tolist(), self.num_bytes.tolist()
        for source, destination, num_bytes in zip(*columns, strict=True):
            if num_bytes:
                hosts.setdefault(source, []).append((destination, num_bytes))
        return hosts


@lru_cache(maxsize=64)
def sends_of(collectives: tuple[tuple[Collective, tuple[int, ...]], ...]) -> Sends:
    """Sends of simultaneous collectives, each with the hosts of its ranks."""
    columns = []
    for collective, members in collectives:
        source, destination, num_bytes = collective.sent
        hosts = np.array(members)
        columns.append((hosts[source], hosts[destination], num_bytes))
    return Sends(*map(np.concatenate, zip(*columns, strict=True)))


def add_up(times: Mapping[Sends, int | Integers], hosts: int) -> Sends:
    """Sums by source and destination of sends that happened this many times: one number, or one per host."""
    keys, sizes = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for sends, number in times.items():
        keys.append(sends.source * hosts + sends.destination)
        sizes.append(sends.num_bytes * (number if isinstance(number, int) else number[sends.source]))
    pairs, place = np.unique(np.concatenate(keys), return_inverse=True)
    sums = np.zeros(len(pairs), np.int64)
    np.add.at(sums, place, np.concatenate(sizes))
    return Sends(*np.divmod(pairs, hosts), sums)
