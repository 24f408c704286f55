"""One collective in flight over a network shared with other traffic: block by block, or class by class."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
from typing_extensions import override

from ..collectives.classes import Classes, find_classes
from ..collectives.collective import Collective
from ..collectives.pricing import BlockCosts
from ..network.transport import TransferModel, route_pairs
from .clock import Clock
from .rendezvous import Tag, Transfer
from .sharing import FairSharing
from .transfers import Transfers


class _Wiring:
    """Dependences of a collective, in plain lists by block, by post or by rank.

    Attributes:
        source, destination, num_bytes, pieces: by block.
        rank: by post.
        receives, sends: by post, its blocks in the order of posting.
        own: by post, both of these, by source.
        next_post: by post; -1: the rank has no more.
        before: by post, see ``Collective``.
        num_ends: by post, the number of ends of blocks that it waits for.
        waited_for: by block, the post that its sender's end counts for, and its receiver's; -1: none.
        needs: by block, the number of blocks that must have a piece there.
        in_front: by block, the number of blocks that must have left.
        needed_by, then: by block, the blocks that wait for its data, and behind it.
        num_open: by rank, the number of ends of its blocks.
    """

    def __init__(self, c: Collective) -> None:
        self.source: list[int] = c.source.tolist()
        self.destination: list[int] = c.destination.tolist()
        self.num_bytes: list[float] = c.num_bytes.tolist()
        self.pieces: list[float] = c.pieces.tolist()
        self.rank: list[int] = c.post_rank.tolist()
        self.receives, self.sends = c.receives.tolist(), c.sends.tolist()
        both = zip(self.receives, self.sends, strict=True)
        self.own = [sorted((*a, *b), key=lambda each: (self.source[each], each)) for a, b in both]
        self.before: list[int] = c.post_before.tolist()
        ends = c.ends.tolist()
        self.num_ends = list(map(len, ends))
        self.next_post, self.waited_for = [-1] * len(ends), [[-1, -1] for _ in self.source]
        for post, (of, earlier) in enumerate(zip(self.rank, self.before, strict=True)):
            if earlier >= 0:
                self.next_post[earlier] = post
            for block in ends[post]:
                self.waited_for[block][self.source[block] != of] = post
        self.needs, self.in_front = list(map(len, c.after.tolist())), list(map(len, c.behind.tolist()))
        self.needed_by = c.after.inverse(c.messages).tolist()
        self.then = c.behind.inverse(c.messages).tolist()
        for block, waiting in enumerate(self.then):  # the same sender's first
            waiting.sort(key=lambda each: self.source[each] != self.source[block])
        self.num_open: list[int] = np.bincount([*self.source, *self.destination], minlength=c.ranks).tolist()


_wire = lru_cache(maxsize=64)(_Wiring)


class Flows:
    """The blocks of a collective: posts happen, and a block leaves once all its needs are met.

    Args:
        collective, members, model, costs: the placed collective; see ``PlacedBlocks``.
        clock, transfers: virtual time, and transport of the bytes.
        tag: of the messages, where senders hear of receives.
        finished: called with the owner of a rank that has sent and received everything.
    """

    def __init__(
        self,
        collective: Collective,
        members: tuple[int, ...],
        model: TransferModel,
        costs: BlockCosts,
        clock: Clock,
        transfers: Transfers,
        tag: Tag,
        finished: Callable[[Any], None],
    ) -> None:
        self._members = members
        self._launch_s = model.launch_s
        self._overhead_s = model.block_overhead_s
        self._tail_s = collective.tail * float(costs.latency_s.max(initial=0.0))
        self._costs = costs
        self._clock = clock
        self._transfers = transfers
        self._tag = tag
        self._finished = finished
        self._wiring = wiring = _wire(collective)
        self._rendezvous = collective.rendezvous
        self.owners: dict[int, Any] = {}
        self._happened = [False] * len(wiring.rank)
        self._ends_open = wiring.num_ends.copy()
        self._ready_s = [0.0] * len(wiring.rank)  # latest end of a post
        self._ready = [not number for number in wiring.num_ends]
        self._open = wiring.num_open.copy()
        self._last_end_s = [0.0] * collective.ranks
        # With rendezvous, transfers match the ends.
        blocks = range(0 if self._rendezvous else len(wiring.source))
        self._not_posted = [2 for _ in blocks]
        self._posted_s = [0.0 for _ in blocks]
        self._in_front = wiring.in_front.copy()
        self._first_needs, self._last_needs = wiring.needs.copy(), wiring.needs.copy()
        self._first_s = [0.0 for _ in blocks]  # when all needs had their first piece there
        self._last_s = [0.0 for _ in blocks]  # and their last piece
        self._left: dict[int, float] = {}  # blocks whose bytes have left before all needs arrived

    def join(self, rank: int, owner: Any) -> None:
        """Let a rank join: its first posts happen once it has launched its part."""
        self.owners[rank] = owner
        if self._launch_s:
            self._clock.at(self._clock.now + self._launch_s, self._launched, rank)
        else:
            self._launched(rank)

    def _launched(self, rank: int) -> None:
        self._happen(rank)
        if not self._wiring.num_open[rank]:
            self._clock.at(self._clock.now, self._finished, self.owners[rank])

    def _happen(self, post: int) -> None:
        """Process a post, and those after it that wait for nothing else."""
        wiring = self._wiring
        while True:
            self._happened[post] = True
            if self._rendezvous:
                self._meet(post)
            else:
                for block in wiring.own[post]:
                    self._not_posted[block] -= 1
                    self._posted_s[block] = self._clock.now
                for block in wiring.own[post]:
                    self._try(block)
            post = wiring.next_post[post]
            if post < 0 or not self._ready[post]:
                return

    def _meet(self, post: int) -> None:
        wiring, members, transfers = self._wiring, self._members, self._transfers
        rank = wiring.rank[post]
        for block in wiring.receives[post]:
            end = _End(self, block, 1, rank)
            transfers.receive(members[wiring.source[block]], members[rank], self._tag, end, 0)
        for block in wiring.sends[post]:
            end, num_bytes = _End(self, block, 0, rank), int(wiring.num_bytes[block])
            transfers.send(members[rank], members[wiring.destination[block]], self._tag, num_bytes, end)

    def end(self, block: int, side: int, rank: int, time_s: float) -> None:
        """A block ends at ``time_s``, now or later: for its sender (side 0), or for its receiver (1)."""
        if time_s > self._last_end_s[rank]:
            self._last_end_s[rank] = time_s
        self._open[rank] -= 1
        post = self._wiring.waited_for[block][side]
        if post >= 0:
            if time_s > self._ready_s[post]:
                self._ready_s[post] = time_s
            self._ends_open[post] -= 1
            if not self._ends_open[post]:
                self._clock.at(self._ready_s[post], self._all_ended, post)
        if not self._open[rank]:
            self._clock.at(self._last_end_s[rank] + self._tail_s, self._finished, self.owners[rank])

    def _all_ended(self, post: int) -> None:
        self._ready[post] = True
        if self._happened[self._wiring.before[post]]:
            self._happen(post)

    # --- blocks whose receives are posted ahead ---------------------------------------------------

    def _try(self, block: int) -> None:
        if not (self._not_posted[block] or self._first_needs[block] or self._in_front[block]):
            self._not_posted[block] = -1
            ready_s = max(self._first_s[block], self._posted_s[block])
            start_s = max(self._clock.now, ready_s + self._overhead_s)
            pieces = self._wiring.pieces[block]
            self._carry(block, self._wiring.num_bytes[block] / pieces, pieces == 1, start_s)

    def _carry(self, block: int, num_bytes: float, last: bool, start_s: float) -> None:
        wiring, members = self._wiring, self._members
        ends = members[wiring.source[block]], members[wiring.destination[block]]
        self._transfers.carry(*ends, num_bytes, Piece(self, block, last), start_s)

    def first_left(self, block: int, time_s: float) -> None:
        """The first of several pieces has left at ``time_s``, now or later."""
        self._clock.at(time_s, self._rest, block)

    def _rest(self, block: int) -> None:
        wiring = self._wiring
        rest = wiring.num_bytes[block] * (wiring.pieces[block] - 1) / wiring.pieces[block]
        self._carry(block, rest, True, self._clock.now)

    def first_arrived(self, block: int, time_s: float) -> None:
        """The first piece of a block arrives at ``time_s``."""
        if self._wiring.needed_by[block]:
            self._clock.at(time_s, self._first_arrived, block)

    def _first_arrived(self, block: int) -> None:
        for each in self._wiring.needed_by[block]:
            self._first_there(each)

    def _first_there(self, block: int) -> None:
        self._first_needs[block] -= 1
        self._first_s[block] = self._clock.now
        if not self._first_needs[block]:
            self._try(block)

    def _last_there(self, block: int) -> None:
        self._last_needs[block] -= 1
        self._last_s[block] = self._clock.now
        if not self._last_needs[block] and block in self._left:
            self._all_left(block, self._left.pop(block))

    def last_left(self, block: int, time_s: float, arrival_s: float) -> None:
        """The links have let the bytes of a block through at ``time_s``; they arrive at ``arrival_s``."""
        self._clock.at(time_s, self._bytes_left, (block, arrival_s - time_s))

    def _bytes_left(self, left: tuple[int, float]) -> None:
        block, latency_s = left
        if self._last_needs[block]:
            self._left[block] = latency_s
        else:
            self._all_left(block, latency_s)

    def _all_left(self, block: int, latency_s: float) -> None:
        """All needs of a block have arrived to their last piece; its own last piece still has to leave."""
        if self._wiring.pieces[block] > 1 and self._wiring.needs[block]:
            left_s = self._last_s[block] + self._overhead_s + float(self._costs.piece_s[block])
            if left_s > self._clock.now:
                self._clock.at(left_s, self._through, (block, latency_s))
                return
        self._through((block, latency_s))

    def _through(self, left: tuple[int, float]) -> None:
        (block, latency_s), wiring, now_s = left, self._wiring, self._clock.now
        self._clock.at(now_s + latency_s, self._arrived, block)
        self.end(block, 0, wiring.source[block], now_s)
        for each in wiring.then[block]:
            self._in_front[each] -= 1
            if not self._in_front[each]:
                self._try(each)

    def _arrived(self, block: int) -> None:
        wiring = self._wiring
        for each in wiring.needed_by[block]:
            self._last_there(each)
            if wiring.pieces[block] == 1:
                self._first_there(each)
        self.end(block, 1, wiring.destination[block], self._clock.now)


@dataclass(slots=True, eq=False)
class _End:
    """One end of a block whose ends rendezvous."""

    flows: Flows
    block: int
    side: int
    rank: int

    @property
    def owner(self) -> Any:
        return self.flows.owners[self.rank]

    def sent(self, time_s: float, peer_s: float) -> None:
        self.flows.end(self.block, self.side, self.rank, time_s)

    def received(self, slot: int, sender: object, source: int, time_s: float, peer_s: float) -> None:
        self.flows.end(self.block, self.side, self.rank, time_s)


@dataclass(slots=True, eq=False)
class Piece:
    """The first piece of a block, or all of the rest."""

    flows: Flows
    block: int
    last: bool
    left_s: float = 0.0

    def sent(self, time_s: float, peer_s: float) -> None:
        """See ``TransferSide``."""
        self.left_s = time_s
        if not self.last:
            self.flows.first_left(self.block, time_s)

    def received(self, slot: int, sender: object, source: int, time_s: float, peer_s: float) -> None:
        """See ``TransferSide``."""
        if self.last:
            self.flows.last_left(self.block, self.left_s, time_s)
        else:
            self.flows.first_arrived(self.block, time_s)


# --- on classes of like blocks: one flow for all blocks, one link for all links of a class --------

_NO_TAG: Final = ("alike", 0, 0)
"""Tag of blocks whose receives are posted ahead: it is never looked up."""


@dataclass(frozen=True, eq=False)
class Alike:
    """A collective on hosts of a network, in classes of like blocks.

    Attributes:
        classes: of its blocks.
        model: how its messages travel.
        costs: of the block of each class.
        peak: [classes] largest bytes per second of a block.
    """

    classes: Classes
    model: TransferModel
    costs: BlockCosts
    peak: list[float]

    def flows(self, clock: Clock, transfers: AlikeTransfers, finished: Callable[[Any], None]) -> Flows:
        """The collective as ``Flows`` among classes of ranks."""
        c = self.classes.collective
        open_classes = c.ranks

        def end(owner: Any) -> None:
            nonlocal open_classes
            open_classes -= 1
            if not open_classes:
                del transfers.alike[flows]
            finished(owner)

        flows = Flows(c, tuple(range(c.ranks)), self.model, self.costs, clock, transfers, _NO_TAG, end)
        transfers.alike[flows] = self
        return flows


def find_alike(
    c: Collective, ready: tuple[int, ...], members: tuple[int, ...], model: TransferModel, costs: BlockCosts
) -> Alike | None:
    """Find the classes of a collective; None where few blocks are alike, or shares of links are uneven.

    Args:
        c: its rank i is ``members[i]``.
        ready: [ranks] equal numbers for ranks that join together.
        members: hosts.
        model: how messages travel.
        costs: of the blocks.
    """
    if not model.shares_evenly or c.rendezvous or len(c.post_rank) > c.ranks or not c.messages:
        return None
    routes = route_pairs(c.source, c.destination, members, model)
    classes = find_classes(
        c,
        np.array(ready),
        np.stack([costs.latency_s, routes.bytes_per_s]),
        routes.links,
        np.array(model.bandwidths_bytes_per_s),
    )
    if classes is None:
        return None
    one = classes.one
    of_one = BlockCosts(
        costs.piece_s[one], costs.latency_s[one], costs.back_s[one], costs.overhead_s, costs.announcements
    )
    return Alike(classes, model, of_one, routes.bytes_per_s[one].tolist())


class AlikeTransfers(Transfers):
    """Transfers of collectives with the same classes of links as a ``first`` one.

    Attributes:
        alike: of all collectives in flight, by their flows.
    """

    def __init__(self, clock: Clock, model: TransferModel, first: Alike) -> None:
        super().__init__(clock, model)
        self._links = first.classes
        self._sharing = FairSharing(first.classes.bandwidths)
        self.alike: dict[Flows, Alike] = {}

    def can_take(self, other: Alike) -> bool:
        """Whether a collective has the same classes of links."""
        ours, theirs = self._links, other.classes
        return ours.bandwidths == theirs.bandwidths and bool((ours.of_link == theirs.of_link).all())

    @override
    def _plan_route(self, source: int, destination: int, transfer: Transfer) -> None:
        piece = transfer.sender
        assert isinstance(piece, Piece)
        of, block = self.alike[piece.flows], piece.block
        weight = of.classes.weight[block]
        transfer.source, transfer.destination, transfer.weight = source, destination, weight
        transfer.latency_s, transfer.links = float(of.costs.latency_s[block]), of.classes.links[block]
        transfer.num_bytes, transfer.cap = transfer.num_bytes * weight, of.peak[block] * weight
