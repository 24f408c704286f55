"""Completion times of a collective on links of its own.

Posts and blocks are sorted into *steps*: a step needs only the steps before it, and is a few operations on
arrays. The times are those of the blocks one by one. Of the pieces of a block only the first and the last
count: their arrivals are a convex sequence, as maxima of sums, so that the last piece of the next
block waits for its link from the first piece on, or for the last piece to arrive, and for nothing in between.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import Deadlock
from ..seeds import Floats, Integers
from .collective import Collective, Lists, sort_in_steps

_NEVER_BEFORE: Final = 1e-12
"""Relative difference within which a message that ends when another is handed over has not ended before."""


@dataclass(frozen=True, eq=False)
class Needs:
    """What is needed in one step of what was before.

    Attributes:
        flat: what is needed, side by side.
        first: where in ``flat`` that of each begins; None: each needs one.
        rows: who of the step needs anything.
    """

    flat: Integers
    first: Integers | None
    rows: Integers | slice

    def raise_to(self, values: Floats, others: Floats) -> None:
        """Raise ``values`` of a step [its size, ...] to at least the ``others`` of what each needs."""
        if self.first is not None:
            others = np.maximum.reduceat(others, self.first, axis=0)
        if isinstance(self.rows, slice):
            np.maximum(values, others, out=values)
        else:
            values[self.rows] = np.maximum(values[self.rows], others)


@dataclass(frozen=True, eq=False)
class PostStep:
    """Posts of one step.

    Attributes:
        here: their positions.
        before: positions of the posts before them.
        ends: of blocks, by position for the sender, and as many positions further on for the receiver.
    """

    here: slice
    before: Integers
    ends: Needs | None


@dataclass(frozen=True, eq=False)
class BlockStep:
    """Blocks of one step.

    Attributes:
        here: their positions.
        after, behind: positions of blocks.
    """

    here: slice
    after: Needs | None
    behind: Needs | None


@dataclass(frozen=True, eq=False)
class Layout:
    """A collective in steps; a block's or a post's *position* is its place in this order.

    Attributes:
        collective: what it is of.
        numbers: [B] blocks by position.
        posts: [P] posts by position; first the joinings, in the order of ranks.
        offered, posted: [B] positions of posts, by position.
        steps: one after another, without the joinings.
    """

    collective: Collective
    numbers: Integers
    posts: Integers
    offered: Integers
    posted: Integers
    steps: tuple[PostStep | BlockStep, ...]

    @cached_property
    def of_ranks(self) -> tuple[Integers, Integers]:
        """Sent blocks, arrived blocks and posts, rank by rank, and where those of each rank begin."""
        c = self.collective
        rank = np.concatenate((c.source[self.numbers], c.destination[self.numbers], c.post_rank[self.posts]))
        order = np.argsort(rank, kind="stable")
        return order, np.searchsorted(rank[order], np.arange(c.ranks))


@lru_cache(maxsize=64)
def lay_out(collective: Collective, streams: bool = False) -> Layout:
    """Sort posts and blocks into steps.

    Args:
        collective: any.
        streams: blocks are also behind those before them over the same stream.

    Raises:
        Deadlock: some posts can never happen.
    """
    c, behind = collective, collective.streams if streams else collective.behind
    num_posts, num_blocks = len(c.post_rank), c.messages
    later = np.flatnonzero(c.post_before >= 0)
    blocks = num_posts + np.arange(num_blocks)
    needing = [later, c.ends.owner, blocks, blocks]
    needed = [c.post_before[later], num_posts + c.ends.flat, c.offered, c.posted]
    for lists in (c.after, behind):
        needing.append(num_posts + lists.owner)
        needed.append(num_posts + lists.flat)
    order, never = sort_in_steps(np.concatenate(needing), np.concatenate(needed), num_posts + num_blocks)
    if never.any():
        raise _deadlock(c, never)
    return _in_steps(c, order, behind)


def _deadlock(c: Collective, never: NDArray[np.bool_]) -> Deadlock:
    """Name the first round of each rank that is never complete; ``never`` [P + B] has what never happens."""
    stuck = never[: len(c.post_rank)].copy()
    for posts in (c.offered, c.posted):
        np.logical_or.at(stuck, posts, never[len(c.post_rank) :])
    rounds = [np.flatnonzero(c.post_rank == rank)[1:] for rank in range(c.ranks)]
    return Deadlock(
        tuple(
            f"worker {rank} in round {int(stuck[own].argmax())} of {len(own)}"
            for rank, own in enumerate(rounds)
            if stuck[own].any()
        )
    )


def _in_steps(c: Collective, order: list[Integers], behind: Lists) -> Layout:
    num_posts, num_blocks = len(c.post_rank), c.messages
    nodes = np.concatenate(order)
    posts, numbers = nodes[nodes < num_posts], nodes[nodes >= num_posts] - num_posts
    at_post, at = np.empty(num_posts, np.int64), np.empty(num_blocks, np.int64)
    at_post[posts], at[numbers] = np.arange(num_posts), np.arange(num_blocks)
    receiver = c.source[c.ends.flat] != c.post_rank[c.ends.owner]
    ends = Lists(c.ends.start, at[c.ends.flat] + num_blocks * receiver)
    after, behind = (Lists(each.start, at[each.flat]) for each in (c.after, behind))
    steps: list[PostStep | BlockStep] = []
    seen, passed = 0, 0
    for each in order:
        some, others = each[each < num_posts], each[each >= num_posts] - num_posts
        if len(some) and seen:  # the joinings are given
            here = slice(seen, seen + len(some))
            steps.append(PostStep(here, at_post[c.post_before[some]], _needs(ends, some)))
        if len(others):
            here = slice(passed, passed + len(others))
            steps.append(BlockStep(here, *(_needs(lists, others) for lists in (after, behind))))
        seen, passed = seen + len(some), passed + len(others)
    return Layout(c, numbers, posts, at_post[c.offered[numbers]], at_post[c.posted[numbers]], tuple(steps))


def _needs(lists: Lists, rows: Integers) -> Needs | None:
    flat, lengths = lists.of(rows)
    if not len(flat):
        return None
    some = np.flatnonzero(lengths)
    return Needs(
        flat,
        None if len(some) == len(flat) else (np.cumsum(lengths) - lengths)[some],
        slice(None) if len(some) == len(rows) else some,
    )


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
class BlockCosts:
    """The costs of blocks on links of their own: arrays [B], or [B, clusters] for several clusters.

    Attributes:
        piece_s: that a piece keeps its links busy.
        latency_s, back_s: one way, and of the way back.
        overhead_s: of software, before the first piece of a block leaves; one, or of each cluster.
        announcements: ways back that it takes until the sender knows of a receive.
        stream: None: a block is sent when its last byte has left.
    """

    piece_s: Floats
    latency_s: Floats
    back_s: Floats
    overhead_s: float | Floats = 0.0
    announcements: float = 0.0
    stream: StreamCosts | None = None


class Times(NamedTuple):
    """Times of a collective.

    Attributes:
        done_s, idle_s: [ranks] a rank is through, and its last bytes have left (with streams perhaps later).
        first_s, last_s: [B] the first, and the last piece of a block has left, by position.
        at_s: [P] a post happens; first the joinings.
    """

    done_s: Floats
    idle_s: Floats
    first_s: Floats
    last_s: Floats
    at_s: Floats


def completion_s(layout: Layout, ready_s: Floats, costs: BlockCosts) -> Times:
    """Times of a collective's ranks, blocks and posts.

    Exact where no link ever has two blocks at once. Two ranks swap 100 bytes, on links that carry 100 bytes a
    second with half a second of latency, one of them late:

    >>> from paceline.sim.collectives.collective import CollectiveBlock, of_blocks
    >>> swap = of_blocks(2, [CollectiveBlock(0, 1, 100), CollectiveBlock(1, 0, 100)])
    >>> each = np.ones(2)
    >>> costs = BlockCosts(piece_s=each, latency_s=each / 2, back_s=each / 2)
    >>> completion_s(lay_out(swap), np.array([0.0, 2.0]), costs)[0].tolist()
    [3.5, 3.5]

    Args:
        layout: from ``lay_out``, of streams where the costs are.
        ready_s: [ranks], or [ranks, clusters], when each joins; it may be negative.
        costs: of blocks by number.

    Returns:
        Arrays, with a column for each cluster if ``ready_s`` has them.
    """
    c, n, more = layout.collective, layout.collective.messages, ready_s.shape[1:]
    piece_s, latency_s, back_s = (
        each[layout.numbers] for each in (costs.piece_s, costs.latency_s, costs.back_s)
    )
    busy_s = c.pieces[layout.numbers].reshape(-1, *(1 for _ in more)) * piece_s
    at_s = np.empty((len(layout.posts), *more))
    at_s[: c.ranks] = ready_s
    first_s, last_s = np.empty((n, *more)), np.empty((n, *more))  # when the first and the last piece has left
    ended_s = np.empty((2 * n, *more))  # for the senders, then for the receivers
    sockets = None if costs.stream is None else _Sockets(layout, piece_s, costs.stream)
    for step in layout.steps:
        here = step.here
        if isinstance(step, PostStep):
            at_s[here] = at_s[step.before]
            if step.ends is not None:
                step.ends.raise_to(at_s[here], ended_s[step.ends.flat])
            continue
        posted_s = at_s[layout.posted[here]]
        if costs.announcements:
            posted_s += costs.announcements * back_s[here]
        begin_s = np.maximum(at_s[layout.offered[here]], posted_s)
        end_s = _wait_for_pieces(step.after, begin_s, first_s, last_s, latency_s)
        begin_s += costs.overhead_s
        copied_s: Floats | float = 0.0
        if sockets is not None:
            copied_s = sockets.copied_s(here)
            begin_s += copied_s
        handed_s = begin_s.copy() if sockets is not None else begin_s
        if step.behind is not None:
            step.behind.raise_to(begin_s, last_s[step.behind.flat])
        first_s[here] = begin_s + piece_s[here]
        last_s[here] = begin_s + busy_s[here]
        if end_s is not None:
            last_s[here] = np.maximum(last_s[here], end_s + costs.overhead_s + piece_s[here])
        ended_s[here] = last_s[here]
        if sockets is not None:
            ended_s[here] = sockets.take(here, handed_s, begin_s, last_s[here])
        ended_s[n + here.start : n + here.stop] = last_s[here] + latency_s[here] + copied_s
    order, first = layout.of_ranks
    done_s = np.maximum.reduceat(np.concatenate((ended_s, at_s))[order], first, axis=0)
    idle_s = done_s
    if sockets is not None:
        idle_s = ready_s.copy()
        np.maximum.at(idle_s, c.source[layout.numbers], last_s)
    done_s += c.tail * costs.latency_s.max(axis=0, initial=0.0)
    return Times(done_s, idle_s, first_s, last_s, at_s)


def _wait_for_pieces(
    after: Needs | None, begin_s: Floats, first_s: Floats, last_s: Floats, latency_s: Floats
) -> Floats | None:
    """When the last pieces have what they need, if anything; raises ``begin_s`` to that of the first."""
    if after is None:
        return None
    end_s = begin_s.copy()
    after.raise_to(begin_s, first_s[after.flat] + latency_s[after.flat])
    after.raise_to(end_s, last_s[after.flat] + latency_s[after.flat])
    return end_s


class _Sockets:
    """What the sockets of one stream per pair of ranks take off the senders' hands."""

    def __init__(self, layout: Layout, busy_s: Floats, costs: StreamCosts) -> None:
        c = layout.collective
        self._numbers, self._busy_s, self._costs = layout.numbers, busy_s, costs
        self._bytes, self._by_position = c.num_bytes, c.num_bytes[layout.numbers]
        # Blocks of tables are numbered stream by stream.
        self._stream = np.unique(c.source * c.ranks + c.destination, return_inverse=True)[1]
        self._before = np.cumsum(c.num_bytes) - c.num_bytes
        self._head = np.flatnonzero(np.diff(self._stream, prepend=-1))  # the first of which bytes are left
        self._ends_s = np.empty(len(self._bytes))
        sent = np.bincount(self._stream, weights=c.num_bytes)
        self._all_fit = bool(sent.max(initial=0.0) <= costs.buffer_bytes)

    def copied_s(self, here: slice) -> Floats:
        """What copying the blocks from, or to, a device takes."""
        return self._costs.device_copy_s_per_byte * self._by_position[here]

    def take(self, here: slice, handed_s: Floats, begin_s: Floats, end_s: Floats) -> Floats:
        """When blocks are sent for their senders, at most one of each stream."""
        num_bytes, taken_s = self._by_position[here], handed_s
        if not self._all_fit:
            fits = self._unsent_bytes(self._numbers[here], handed_s, end_s) <= self._costs.buffer_bytes
            buffered = np.minimum(num_bytes, self._costs.buffer_bytes)
            rest_s = self._busy_s[here] * (1.0 - buffered / np.maximum(num_bytes, 1.0))
            taken_s = np.where(fits, handed_s, begin_s + rest_s)
        return taken_s + self._costs.copy_s_per_byte * num_bytes

    def _unsent_bytes(self, numbers: Integers, handed_s: Floats, end_s: Floats) -> Floats:
        """Bytes of each stream's unfinished blocks when another joins it, with that one's."""
        self._ends_s[numbers] = end_s
        stream, before_s = self._stream[numbers], handed_s - _NEVER_BEFORE * np.abs(handed_s)
        while True:
            head = self._head[stream]
            gone = (head < numbers) & (self._ends_s[head] < before_s)
            if not gone.any():
                break
            self._head[stream[gone]] += 1
        unsent: Floats = self._before[numbers] + self._bytes[numbers] - self._before[head]
        return unsent
