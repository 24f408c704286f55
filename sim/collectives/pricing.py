"""When the members of a table of rounds are through that have their links for themselves: all ranks at once.

Messages are sorted into *waves*: whoever is in a wave needs only what earlier waves have brought, so that a
wave is a few operations on arrays over all ranks. The times are those of the messages one by one, each of
which starts when both sides are there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from ..errors import Deadlock
from ..seeds import Floats, Integers
from .schedule import Round, Schedule

_NEVER_BEFORE: Final = 1e-12
"""Relative difference within which a message that ends when another is handed over has not ended before."""


@dataclass(frozen=True, eq=False)
class TableWave:
    """Rounds that are posted, and then messages that pass.

    Attributes:
        posts: places of rounds; each array's after those of the array before.
        messages: slices of ``TableWaves``' messages; in each of them no rank sends two.
    """

    posts: tuple[Integers, ...]
    messages: tuple[slice, ...]


@dataclass(frozen=True, eq=False)
class TableWaves:
    """The messages of a table of rounds, wave by wave.

    A rank's rounds have consecutive places, behind as many empty ones as the window has.

    Attributes:
        ranks: how many take part.
        window: of the schedule.
        lengths: [ranks] places of each rank.
        waves: in order.
        sender_round, receiver_round: [messages] places of the rounds in which it is sent and received.
        source, destination: [messages] ranks.
        num_bytes: [messages].
        number: [messages] counts all messages by source, then by destination, then in order.
        one_each: no round has two receives.
    """

    ranks: int
    window: int
    lengths: Integers
    waves: tuple[TableWave, ...]
    sender_round: Integers
    receiver_round: Integers
    source: Integers
    destination: Integers
    num_bytes: Floats
    number: Integers
    one_each: bool


@lru_cache(maxsize=32)
def lay_out(schedule: Schedule) -> TableWaves:
    """Sort the messages of a table into waves.

    Raises:
        ValueError: sends and receives do not match.
        Deadlock: some rounds can never be reached.
    """
    n, window = len(schedule.rounds), schedule.window
    counts = np.array([len(rounds) for rounds in schedule.rounds], dtype=np.int64)
    lengths = counts + window
    first = np.cumsum(lengths) - counts  # the place of each rank's first round
    sends = _list_messages(schedule, first, lambda one: one.sends)
    receives = _list_messages(schedule, first, lambda one: one.receives)
    sends = sends[np.argsort(sends[:, 0] * n + sends[:, 1], kind="stable")]
    receives = receives[np.argsort(receives[:, 1] * n + receives[:, 0], kind="stable")]
    if len(sends) != len(receives) or np.any(sends[:, :3] != receives[:, [1, 0, 2]]):
        raise ValueError("what is sent in this table is not what is received")
    waves, order = _waves_of_table(counts, first, window, sends[:, 3], receives[:, 3], sends[:, 0])
    return TableWaves(
        ranks=n,
        window=window,
        lengths=lengths,
        waves=waves,
        sender_round=sends[order, 3],
        receiver_round=receives[order, 3],
        source=sends[order, 0],
        destination=sends[order, 1],
        num_bytes=sends[order, 2].astype(np.float64),
        number=order,
        one_each=len(np.unique(receives[:, 3])) == len(receives),
    )


def _list_messages(
    schedule: Schedule, first: Integers, of: Callable[[Round], tuple[tuple[int, int], ...]]
) -> Integers:
    """Rank, peer, bytes and place of the round of each message [messages, 4], in the order of posting."""
    tables = [np.empty((0, 4), dtype=np.int64)]
    for rank, rounds in enumerate(schedule.rounds):
        distinct = {id(one): one for one in rounds}  # few, often repeated
        numbers = {key: number for number, key in enumerate(distinct)}
        which = np.fromiter(map(numbers.__getitem__, map(id, rounds)), dtype=np.int64, count=len(rounds))
        messages = [of(one) for one in distinct.values()]
        sizes = np.array([len(each) for each in messages], dtype=np.int64)
        flat = np.array([message for each in messages for message in each], dtype=np.int64).reshape(-1, 2)
        index, position = _ragged((np.cumsum(sizes) - sizes)[which], sizes[which])
        table = np.empty((len(index), 4), dtype=np.int64)
        table[:, 0], table[:, 1:3], table[:, 3] = rank, flat[index], first[rank] + position
        tables.append(table)
    return np.concatenate(tables)


def _ragged(starts: Integers, lengths: Integers) -> tuple[Integers, Integers]:
    """The indices start, start + 1, ... of each row, row after row, and the row of each."""
    owner = np.repeat(np.arange(len(lengths)), lengths)
    within = np.arange(len(owner)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return starts[owner] + within, owner


def _waves_of_table(
    counts: Integers, first: Integers, window: int, sent_in: Integers, received_in: Integers, source: Integers
) -> tuple[tuple[TableWave, ...], Integers]:
    """Let each message pass as soon as both its rounds are posted: the waves, and the messages in order."""
    places = int((counts + window).sum())
    number = np.arange(len(sent_in))
    ends = np.concatenate((sent_in, received_in))
    by_place = np.argsort(ends, kind="stable")
    messages_at = np.concatenate((number, number))[by_place]
    open_at = np.bincount(ends, minlength=places)
    first_at = np.cumsum(open_at) - open_at
    sides = np.zeros(len(sent_in), dtype=np.int8)
    begun, complete = np.zeros_like(counts), np.zeros_like(counts)
    waves: list[TableWave] = []
    order: list[Integers] = []
    num_passed = 0
    active = np.arange(len(counts))
    while True:
        posts: list[Integers] = []
        while True:
            moving = active
            while moving.size:
                moving = moving[complete[moving] < begun[moving]]
                moving = moving[open_at[first[moving] + complete[moving]] == 0]
                complete[moving] += 1
            can = (begun[active] < counts[active]) & (begun[active] < complete[active] + window)
            ranks = active[can]
            if not ranks.size:
                break
            posts.append(first[ranks] + begun[ranks])
            begun[ranks] += 1
        if not posts:
            break
        posted = np.concatenate(posts)
        index, _ = _ragged(first_at[posted], open_at[posted])
        touched = messages_at[index]
        np.add.at(sides, touched, 1)
        ready = np.sort(touched[sides[touched] == 2])
        ready = ready[np.diff(ready, prepend=-1) > 0]  # both sides may have been posted just now
        np.subtract.at(open_at, sent_in[ready], 1)
        np.subtract.at(open_at, received_in[ready], 1)
        slices, ready = _at_most_one_each(ready, source[ready], num_passed)
        waves.append(TableWave(tuple(posts), slices))
        order.append(ready)
        num_passed += len(ready)
        active = np.flatnonzero(complete < counts)
    stuck = np.flatnonzero(complete < counts)
    if stuck.size:
        raise Deadlock(tuple(f"worker {rank} in round {complete[rank]} of {counts[rank]}" for rank in stuck))
    return tuple(waves), np.concatenate([np.empty(0, dtype=np.int64), *order])


def _at_most_one_each(ready: Integers, source: Integers, first: int) -> tuple[tuple[slice, ...], Integers]:
    """Cut messages, sorted by source, into slices in which no source stands twice, and reorder them so."""
    occurrence = np.arange(len(ready)) - np.searchsorted(source, source)
    sizes = np.bincount(occurrence)
    stops = (first + np.cumsum(sizes)).tolist()
    slices = tuple(slice(stop - size, stop) for stop, size in zip(stops, sizes.tolist(), strict=True))
    return slices, ready[np.argsort(occurrence, kind="stable")]


@dataclass(frozen=True)
class StreamCosts:
    """What a stream of bytes per pair of ranks adds; see ``paceline.sim.traffic.streams``.

    Attributes:
        buffer_bytes: what the sender's socket takes off its hands.
        copy_s_per_byte: what handing bytes to the socket takes.
        device_copy_s_per_byte: what copying takes at each end.
    """

    buffer_bytes: float
    copy_s_per_byte: float
    device_copy_s_per_byte: float


@dataclass(frozen=True, eq=False)
class MessageCosts:
    """What the messages of a table cost that have their links for themselves, in the order of ``TableWaves``.

    Attributes:
        busy_s: [messages] from the first byte that leaves to the last.
        latency_s: [messages] one way.
        announce_s: [messages] until the sender knows of a receive.
        overhead_s: software, before the first byte leaves.
        stream: None: a message is sent when its last byte has left; else all that a rank sends goes over one
            stream, first come first served.
    """

    busy_s: Floats
    latency_s: Floats
    announce_s: Floats
    overhead_s: float
    stream: StreamCosts | None = None


def table_completion_s(table: TableWaves, ready_s: Floats, costs: MessageCosts) -> tuple[Floats, Floats]:
    """When each rank is through all its rounds, and from when on nothing of it is on its links.

    Exact where no link ever has two messages at once.

    >>> swap = Schedule(
    ...     rounds=(
    ...         (Round(receives=((1, 100),), sends=((1, 100),)),),
    ...         (Round(receives=((0, 100),), sends=((0, 100),)),),
    ...     ),
    ...     window=1,
    ... )
    >>> each = np.ones(2)
    >>> costs = MessageCosts(busy_s=each, latency_s=each / 2, announce_s=each * 0, overhead_s=0.0)
    >>> table_completion_s(lay_out(swap), np.array([0.0, 2.0]), costs)[0].tolist()
    [3.5, 3.5]

    Args:
        table: from ``lay_out``.
        ready_s: [ranks] when each joins; it may be negative.
        costs: of the messages.

    Returns:
        Two arrays [ranks]. With streams a rank can be through before its last bytes have left.
    """
    posted_s = np.repeat(ready_s, table.lengths)
    ended_s = posted_s.copy()  # of a round: the latest of its messages so far
    streams = None if costs.stream is None else _StreamsOfRanks(table, costs.busy_s, costs.stream, ready_s)
    for wave in table.waves:
        for places in wave.posts:
            at_s = np.maximum(posted_s[places - 1], ended_s[places - table.window])
            posted_s[places] = at_s
            ended_s[places] = at_s
        for part in wave.messages:
            sent_in, received_in = table.sender_round[part], table.receiver_round[part]
            start_s = np.maximum(posted_s[sent_in], posted_s[received_in] + costs.announce_s[part])
            start_s += costs.overhead_s
            if streams is None:
                sent_s = through_s = start_s + costs.busy_s[part]
                arrived_s = through_s + costs.latency_s[part]
            else:
                sent_s, through_s, copied_s = streams.hand_over(part, start_s)
                arrived_s = through_s + costs.latency_s[part] + copied_s
            ended_s[sent_in] = np.maximum(ended_s[sent_in], sent_s)
            if table.one_each:
                ended_s[received_in] = np.maximum(ended_s[received_in], arrived_s)
            else:
                np.maximum.at(ended_s, received_in, arrived_s)
    starts = np.cumsum(table.lengths) - table.lengths
    done_s = np.maximum.reduceat(ended_s, starts)
    return done_s, done_s if streams is None else streams.free_s


class _StreamsOfRanks:
    """One stream per rank, to whomever it sends.

    Attributes:
        free_s: [ranks] when the last byte so far has left.
    """

    def __init__(self, table: TableWaves, busy_s: Floats, costs: StreamCosts, ready_s: Floats) -> None:
        self._table = table
        self._busy_s = busy_s
        self._costs = costs
        self.free_s = ready_s.copy()
        by_number = np.empty(len(table.number))
        by_number[table.number] = table.num_bytes
        self._bytes_before = np.cumsum(by_number) - by_number  # by number, of the messages of all ranks
        sent = np.bincount(table.source, weights=table.num_bytes, minlength=table.ranks)
        self._all_fit = bool(sent.max(initial=0.0) <= costs.buffer_bytes)
        num_sent = np.bincount(table.source, minlength=table.ranks)
        self._head = np.cumsum(num_sent) - num_sent  # by rank: its first message of which bytes are left
        self._ends_s = np.empty(len(table.number))  # by number

    def hand_over(self, part: slice, start_s: Floats) -> tuple[Floats, Floats, Floats]:
        """At most one message per rank: when it is sent, when its bytes have left, what copying it takes."""
        source, num_bytes = self._table.source[part], self._table.num_bytes[part]
        busy_s = self._busy_s[part]
        copied_s = self._costs.device_copy_s_per_byte * num_bytes
        handed_s = start_s + copied_s
        begin_s = np.maximum(handed_s, self.free_s[source])
        end_s = begin_s + busy_s
        self.free_s[source] = end_s
        taken_s = handed_s
        if not self._all_fit:
            fits = self._unsent_bytes(part, handed_s, end_s) <= self._costs.buffer_bytes
            buffered = np.minimum(num_bytes, self._costs.buffer_bytes)
            rest_s = busy_s * (1.0 - buffered / np.maximum(num_bytes, 1.0))
            taken_s = np.where(fits, handed_s, begin_s + rest_s)
        return taken_s + self._costs.copy_s_per_byte * num_bytes, end_s, copied_s

    def _unsent_bytes(self, part: slice, handed_s: Floats, end_s: Floats) -> Floats:
        """Bytes of each stream's messages that have not ended when one is handed over, with its own."""
        number, source = self._table.number[part], self._table.source[part]
        self._ends_s[number] = end_s
        before_s = handed_s - _NEVER_BEFORE * np.abs(handed_s)
        while True:
            head = self._head[source]
            gone = (head < number) & (self._ends_s[head] < before_s)
            if not gone.any():
                break
            self._head[source[gone]] += 1
        of_it = self._table.num_bytes[part]
        unsent: Floats = self._bytes_before[number] + of_it - self._bytes_before[head]
        return unsent
