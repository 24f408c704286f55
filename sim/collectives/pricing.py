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
from numpy.typing import ArrayLike, NDArray

from ..errors import Deadlock
from ..seeds import Floats, Integers
from .collective import Collective, Lists, sort_in_steps

_NEVER_BEFORE: Final = 1e-12
"""Relative difference within which a message that ends when another is handed over has not ended before."""

_VECTORISE_FROM: Final = 24
"""Blocks in a step, on average, from which arrays are faster than plain Python."""


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
    def wide(self) -> bool:
        """Whether arrays are faster than plain Python."""
        return len(self.numbers) >= _VECTORISE_FROM * max(2, len(self.steps))

    @cached_property
    def of_ranks(self) -> tuple[Integers, Integers]:
        """Sent blocks, arrived blocks and posts, rank by rank, and where those of each rank begin."""
        c = self.collective
        rank = np.concatenate((c.source[self.numbers], c.destination[self.numbers], c.post_rank[self.posts]))
        order = np.argsort(rank, kind="stable")
        return order, np.searchsorted(rank[order], np.arange(c.ranks))

    @cached_property
    def plain(self) -> tuple[PlainPost | PlainBlock, ...]:
        """Posts and blocks one by one, in an order in which none needs a later one; without streams."""
        c, at = self.collective, np.argsort(self.numbers)
        ends, *needs = (Lists(each.start, at[each.flat]).tolist() for each in (c.ends, c.after, c.behind))
        source, rank, before = c.source[self.numbers].tolist(), c.post_rank.tolist(), c.post_before.tolist()
        columns = [each.tolist() for each in (c.source, c.destination, c.offered, c.posted, c.pieces)] + needs
        nodes: list[PlainPost | PlainBlock] = []
        for step in self.steps:
            if isinstance(step, PostStep):
                for post in self.posts[step.here].tolist():
                    parts = [(each, source[each] != rank[post]) for each in ends[post]]
                    nodes.append(PlainPost(post, rank[post], before[post], parts))
            else:
                for place, number in enumerate(self.numbers[step.here].tolist(), step.here.start):
                    nodes.append(PlainBlock(place, *(column[number] for column in columns)))
        return tuple(nodes)


class PlainPost(NamedTuple):
    """A post: its number, rank, the post before, and its ends: positions of blocks; does it receive them?"""

    post: int
    rank: int
    before: int
    ends: list[tuple[int, bool]]


class PlainBlock(NamedTuple):
    """A block by its position, with the numbers of the posts and positions of the blocks that it needs."""

    place: int
    source: int
    destination: int
    offered: int
    posted: int
    pieces: float
    after: list[int]
    behind: list[int]


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
    first_s: ArrayLike
    last_s: ArrayLike
    at_s: ArrayLike


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
    if layout.wide or ready_s.ndim > 1 or costs.stream:
        return _step_by_step(layout, ready_s, costs)
    return _one_by_one(layout, ready_s, costs)


def _step_by_step(layout: Layout, ready_s: Floats, costs: BlockCosts) -> Times:
    """``completion_s`` on arrays."""
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


def _one_by_one(layout: Layout, ready_s: Floats, costs: BlockCosts) -> Times:
    """``completion_s`` without streams, in plain Python: faster for few blocks."""
    c = layout.collective
    piece_s, latency_s, back_s = (
        each[layout.numbers].tolist() for each in (costs.piece_s, costs.latency_s, costs.back_s)
    )
    overhead_s, announcements = float(costs.overhead_s), costs.announcements
    done_s: list[float] = ready_s.tolist()
    at_s = [*done_s, *(0.0 for _ in range(len(layout.posts) - c.ranks))]
    first_left_s, last_left_s = [0.0] * c.messages, [0.0] * c.messages
    for node in layout.plain:
        if isinstance(node, PlainPost):
            post, rank, before, ends = node
            at = at_s[before]
            for place, comes in ends:
                at = max(at, last_left_s[place] + latency_s[place] if comes else last_left_s[place])
            at_s[post] = at
            done_s[rank] = max(done_s[rank], at)
            continue
        place, source, destination, offered, posted, pieces, after, behind = node
        first_s = max(at_s[offered], at_s[posted] + announcements * back_s[place])
        last_s = first_s
        for each in after:
            first_s = max(first_s, first_left_s[each] + latency_s[each])
            last_s = max(last_s, last_left_s[each] + latency_s[each])
        begin_s = max([first_s + overhead_s, *(last_left_s[each] for each in behind)])
        left_s = begin_s + pieces * piece_s[place]
        if after:
            left_s = max(left_s, last_s + overhead_s + piece_s[place])
        first_left_s[place], last_left_s[place] = begin_s + piece_s[place], left_s
        done_s[source] = max(done_s[source], left_s)
        done_s[destination] = max(done_s[destination], left_s + latency_s[place])
    tail_s = c.tail * max(latency_s, default=0.0)
    through_s = np.array([each + tail_s for each in done_s])
    return Times(through_s, through_s, first_left_s, last_left_s, at_s)


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
