"""Times of the messages of a mix, for all workers at once: max-plus sums of vectors.

A message from j to i leaves b / r after both sides are ready, and arrives one latency later:

    left = max(t_j, t_i + announcement) + overhead + b / r,    arrived = left + latency

A worker continues when all its own messages have left and all that it waits for have arrived. That holds
where a message has its links for itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain
from typing import Final

import numpy as np

from ...collectives.collective import Sends
from ...errors import NotInLockstep
from ...network.transfer import TransferModel, route_pairs
from ...program.operations import Mix, name_of
from ...program.pattern import Pattern
from ...seeds import Floats, Integers
from .accounts import StackedOperation

KEPT_PATTERNS: Final = 64
"""Patterns whose messages are cached; a sequence of graphs seldom has more in one period."""

Numbers = float | Floats
"""One number for all messages, or one for each."""


class _Ends:
    """Senders and receivers of one pattern's m messages, receiver by receiver, on any network.

    Attributes:
        source, destination: of each [m].
        by_source: the messages' places, sender by sender.
        receivers, senders: workers whose in- or out-degree is not 0, ascending.
        received_from, sent_from: where the messages of these begin, in ``source`` and in ``by_source``.
        one_peer: every worker receives one message and sends one.
        at_most_one: no worker receives more than one, or sends more than one.
        num_sent: by each worker [n].
        last_source: the last source of each worker if all begin at once, -1 where it receives nothing.
    """

    def __init__(self, pattern: Pattern) -> None:
        n = pattern.workers
        in_degrees = np.fromiter(map(len, pattern.sources), np.int64, n)
        self.destination = np.repeat(np.arange(n), in_degrees)
        self.source = np.fromiter(chain.from_iterable(pattern.sources), np.int64, len(self.destination))
        self.by_source = np.argsort(self.source, kind="stable")
        out_degrees = np.bincount(self.source, minlength=n)
        self.receivers, self.senders = np.flatnonzero(in_degrees), np.flatnonzero(out_degrees)
        self.received_from = (np.cumsum(in_degrees) - in_degrees)[self.receivers]
        self.sent_from = (np.cumsum(out_degrees) - out_degrees)[self.senders]
        self.at_most_one = bool(in_degrees.max() <= 1 and out_degrees.max() <= 1)
        self.one_peer = self.at_most_one and len(self.source) == n
        self.num_sent: int | Integers = 1 if self.one_peer else out_degrees
        self.last_source = np.full(n, -1)
        self.last_source[self.receivers] = self.source[np.cumsum(in_degrees)[self.receivers] - 1]


_ends_of = lru_cache(maxsize=KEPT_PATTERNS)(_Ends)


@lru_cache(maxsize=KEPT_PATTERNS)
def _sends_of(ends: _Ends, num_bytes: int) -> Sends:
    return Sends(ends.source, ends.destination, np.full(len(ends.source), num_bytes))


@dataclass(frozen=True, slots=True, eq=False)
class _Messages:
    """The messages of one pattern on each job's network; a number is for all of them."""

    ends: _Ends
    latency_s: Numbers
    announced_s: Numbers
    rate_bytes_per_s: Numbers


class MixTimes:
    """Times the mixes of runs, each on a network without variation; their models differ in nothing else.

    ``may_be_cut``: the run may end before its operations do, so that ``known_s`` counts.
    """

    def __init__(self, models: Sequence[TransferModel], may_be_cut: bool) -> None:
        self._may_be_cut, model = may_be_cut, models[0]
        self._shared = model.sharing != "none"
        self._meeting = shared_links(model)
        self._overhead_s = model.block_overhead_s
        self._announcement = 0.0 if model.plain_patterns else model.announcement
        self._messages = lru_cache(maxsize=KEPT_PATTERNS)(partial(_place, models, self._announcement))

    def times(
        self, pattern: Pattern, begin_s: Floats, num_bytes: int, step: int, handle: int
    ) -> tuple[StackedOperation, int, int]:
        """A mix begun at ``begin_s`` [jobs, n], its number of messages, and its work, which is the same.

        ``peer``: each worker's last source, -1 where it received nothing. ``NotInLockstep``: shared links.
        """
        if self._meeting:
            raise NotInLockstep(self._meeting)
        messages = self._messages(pattern)
        ends = messages.ends
        if self._shared and not ends.at_most_one:
            raise NotInLockstep(
                "a worker has several messages under way at once, which share its link (network.sharing)"
            )
        sends, by_links = _sends_of(ends, num_bytes), self._shared and self._may_be_cut
        sender_s = begin_s.take(ends.source, axis=-1)
        receiver_s = begin_s if ends.one_peer else begin_s.take(ends.destination, axis=-1)
        together_s = np.maximum(sender_s, receiver_s)
        announced_s = together_s
        if self._announcement:
            announced_s = np.maximum(sender_s, receiver_s + messages.announced_s)
        # Added in the event driver's order, for the same bits.
        left_s = announced_s + self._overhead_s if self._overhead_s else announced_s
        left_s = left_s + num_bytes / messages.rate_bytes_per_s
        arrived_s = left_s + messages.latency_s
        if ends.one_peer:
            sent_s = left_s.take(ends.by_source, axis=-1)
            end_s = np.maximum(arrived_s, sent_s, out=arrived_s)
            sent_together_s = together_s.take(ends.by_source, axis=-1)
            peer_s = np.maximum(together_s, sent_together_s, out=sent_together_s)
            known_s = np.maximum(left_s, sent_s) if by_links else peer_s
            last = ends.source
        else:
            end_s = _latest(ends, begin_s, arrived_s, left_s)
            peer_s = _latest(ends, begin_s, together_s, together_s)
            known_s = _latest(ends, begin_s, left_s, left_s) if by_links else peer_s
            last = _last_sources(ends, together_s)
        mixed = StackedOperation(
            name_of(Mix), step, begin_s, end_s, peer_s, known_s, handle < 0, num_bytes * ends.num_sent, last,
            handle, sends=sends,
        )  # fmt: skip
        return mixed, len(ends.source), len(ends.source)


def _place(models: Sequence[TransferModel], announcement: float, pattern: Pattern) -> _Messages:
    ends, hosts = _ends_of(pattern), tuple(range(pattern.workers))
    there = [route_pairs(ends.source, ends.destination, hosts, model) for model in models]
    back_s = np.zeros((1, 1))
    if announcement:
        back = [route_pairs(ends.destination, ends.source, hosts, model) for model in models]
        back_s = np.stack([each.latency_s for each in back])
    return _Messages(
        ends=ends,
        latency_s=_one_if_equal(np.stack([each.latency_s for each in there])),
        announced_s=_one_if_equal(announcement * back_s),
        rate_bytes_per_s=_one_if_equal(np.stack([each.bytes_per_s for each in there])),
    )


def _one_if_equal(values: Floats) -> Numbers:
    """``values`` [jobs, m] as one number, or one for each job, if they are equal."""
    if not values.shape[-1] or not (values == values[:, :1]).all():
        return values
    return float(values[0, 0]) if len(values) == 1 else values[:, :1]


def _latest(ends: _Ends, begin_s: Floats, received_s: Floats, sent_s: Floats) -> Floats:
    """Latest time of each worker [jobs, n]: its own begin, received and sent messages [jobs, m]."""
    latest_s = begin_s.copy()
    if len(ends.source):
        for ranks, first, values in (
            (ends.receivers, ends.received_from, received_s),
            (ends.senders, ends.sent_from, sent_s.take(ends.by_source, axis=-1)),
        ):
            among_s = np.maximum.reduceat(values, first, axis=-1)
            latest_s[:, ranks] = np.maximum(latest_s[:, ranks], among_s)
    return latest_s


def _last_sources(ends: _Ends, together_s: Floats) -> Integers:
    """Each worker's last source: of several that came together, the one of highest rank."""
    if ends.at_most_one or not len(ends.source):
        return ends.last_source
    last = np.tile(ends.last_source, (len(together_s), 1))
    latest_s = np.full(last.shape, -np.inf)
    latest_s[:, ends.receivers] = np.maximum.reduceat(together_s, ends.received_from, axis=-1)
    rows, among = np.nonzero(together_s == latest_s[:, ends.destination])
    last[rows, ends.destination[among]] = ends.source[among]  # the last one wins
    return last


def shared_links(model: TransferModel) -> str:
    """Why messages can share links though every worker has at most one in flight; "" if they cannot."""
    network = model.network
    if model.sharing == "none":
        return ""
    if network.routes or network.node_of or network.pipe or network.leave or network.enter:
        return "messages of different workers share links (network.sharing)"
    if model.streams and not model.plain_patterns:
        return "messages and announcements share TCP streams (network.transport)"
    return ""
