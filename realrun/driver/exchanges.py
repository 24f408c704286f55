"""Operations between workers on the wall clock: posted here, waited for in helper threads.

At a run's end nothing is left in flight. When the mains of all workers have ended, the services are stopped
where they are. A receive without a sender is released by a message of one element, and a message without a
receiver is received and dropped. The counts of all posted operations determine each rank's part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from paceline.sim.collectives.collective import sends_of
from paceline.sim.program import operations as ops
from paceline.sim.program.averaging import mix_values, root_of
from paceline.sim.program.encoding import message_bytes
from paceline.sim.program.groups import members
from paceline.sim.records.run import ANY_SOURCE

from ..transport.backend import TransferInFlight
from ..transport.connections import CollectiveWait, PeerGone
from .rank_log import Exchange
from .rank_state import ClusterPending, Rank


@dataclass
class PostedCounts:
    """Sends and receives posted so far by one rank.

    Attributes:
        sent: (destination, tag) -> messages.
        received: (source, tag) -> receives from that source, and from anybody if it answered.
        any_waiting: tag -> receives from anybody that are not complete.
        largest: tag -> bytes of the largest message sent.
    """

    sent: Counter[tuple[int, str]] = field(default_factory=Counter)
    received: Counter[tuple[int, str]] = field(default_factory=Counter)
    any_waiting: Counter[str] = field(default_factory=Counter)
    largest: dict[str, int] = field(default_factory=dict)

    def sends(self, destination: int, tag: str, num_bytes: int) -> int:
        """Count a message; returns its number among those to this destination under this tag."""
        self.sent[destination, tag] += 1
        self.largest[tag] = max(num_bytes, self.largest.get(tag, 0))
        return self.sent[destination, tag]

    def receives(self, source: int, tag: str) -> int:
        """Count a receive from ``source``, or an any-source one answered by it; returns its number."""
        self.received[source, tag] += 1
        return self.received[source, tag]

    def as_lists(self) -> list[Any]:
        """The counts as lists, for the control store."""
        return [
            [(*key, count) for key, count in self.sent.items()],
            [(*key, count) for key, count in self.received.items()],
            [*self.any_waiting.items()],
            [*self.largest.items()],
        ]

    @staticmethod
    def from_lists(lists: list[Any]) -> PostedCounts:
        """The inverse of ``as_lists``."""
        sent, received, any_waiting, largest = lists
        return PostedCounts(
            Counter({(peer, tag): count for peer, tag, count in sent}),
            Counter({(peer, tag): count for peer, tag, count in received}),
            Counter(dict(any_waiting)),
            dict(largest),
        )


@dataclass(frozen=True, slots=True)
class Drain:
    """A completion: ``source`` releases a receive, or (-1) ``destination`` swallows a message."""

    source: int
    destination: int
    tag: str
    num_bytes: int


def plan_drains(counts: Sequence[PostedCounts]) -> list[Drain]:
    """Drains that complete every posted send and receive. A pure function of the counts."""
    n = len(counts)
    drains: list[Drain] = []
    tags = sorted(
        {tag for t in counts for _, tag in (*t.sent, *t.received)}
        | {g for t in counts for g in t.any_waiting}
    )
    for tag in tags:
        largest = max((t.largest.get(tag, 0) for t in counts), default=0)
        for destination, own in enumerate(counts):
            surplus = 0
            for source in range(n):
                more = counts[source].sent[destination, tag] - own.received[source, tag]
                surplus += max(more, 0)
                drains += [Drain(source, destination, tag, 1)] * max(-more, 0)
            waiting = own.any_waiting[tag]
            drains += [Drain((destination - 1) % n, destination, tag, 1)] * max(waiting - surplus, 0)
            drains += [Drain(-1, destination, tag, largest)] * max(surplus - waiting, 0)
    return drains


class Exchanges:
    """One worker's exchanges with others.

    Args:
        complete: called with an operation that is complete.
        lose: called with one that cannot be completed, since that peer is dead.
        gone: called with one whose connection gloo has lost, to that rank or (-1) an unnamed peer.
    """

    def __init__(
        self,
        rank: Rank,
        complete: Callable[[ClusterPending], None],
        lose: Callable[[ClusterPending, int], None],
        gone: Callable[[ClusterPending, int], None],
    ) -> None:
        self._rank = rank
        self._complete, self._lose, self._gone = complete, lose, gone
        self._prefix = f"{rank.life.view} {rank.life.first_step} "
        self._numbers: Counter[str] = Counter()
        self.counts = PostedCounts()
        self.collectives_at_once = 0  # at most

    def _expect(self, pending: ClusterPending, *peers: int) -> bool:
        """Check that the peers exist; False if one of them is known to be dead."""
        for peer in peers:
            pending.check_peer(peer, self._rank.job.workers)
            if peer in self._rank.died_s:
                self._rank.in_flight.add(pending)
                self._rank.loop.soon(partial(self._lose, pending, peer))
                return False
        return True

    def _begin(self, pending: ClusterPending, begin: Callable[[], TransferInFlight]) -> None:
        self._rank.in_flight.add(pending)
        try:
            wait, pending.result = begin()
        except PeerGone as gone:
            self._rank.loop.soon(partial(self._gone, pending, gone.rank))
            return
        if isinstance(wait, CollectiveWait):
            self.collectives_at_once = max(self.collectives_at_once, self._rank.threads.poll(pending, wait))
        else:
            self._rank.threads.run(pending, wait)

    def _named(self, key: str, *peers: int) -> Exchange:
        return Exchange(self._prefix + key, tuple(map(self._rank.job.rank_of, peers)))

    def _number(self, name: str) -> int:
        self._numbers[name] += 1
        return self._numbers[name] - 1

    def begin_mix(self, pending: ClusterPending) -> None:
        """Exchange values with the neighbours."""
        operation: ops.Mix = pending.operation  # type: ignore[assignment]
        pattern, value = operation.pattern, operation.value
        sources, destinations = pattern.sources[self._rank.number], pattern.destinations[self._rank.number]
        number = self._number("mix")
        pending.exchange = self._named(f"mix {number}", *{*sources, *destinations})
        pending.version = value._version
        num_bytes = message_bytes(value, self._rank.job.bytes_per_parameter)
        pending.sends = [(self._rank.job.rank_of(destination), num_bytes) for destination in destinations]
        if not sources and not destinations:
            pending.result = list
            self._rank.loop.soon(partial(self._complete, pending))
        elif self._expect(pending, *sources, *destinations):
            mix = self._rank.transport.collectives.mix
            self._begin(pending, lambda: mix(value, sources, destinations, number))

    def begin_send(self, pending: ClusterPending) -> None:
        """Begin to send a message."""
        operation: ops.Send = pending.operation  # type: ignore[assignment]
        peer, tag, value = operation.destination, operation.tag, operation.value
        pending.peer, pending.version = peer, value._version
        pending.sends = (
            (self._rank.job.rank_of(peer), message_bytes(value, self._rank.job.bytes_per_parameter)),
        )
        if self._expect(pending, peer):
            number = self.counts.sends(peer, tag, self._rank.transport.messages.buffers.message_bytes(value))
            pending.exchange = self._named(_message_key(self._rank.number, peer, tag, number), peer)
            self._begin(pending, lambda: self._rank.transport.messages.send(value, peer, tag))

    def begin_receive(self, pending: ClusterPending) -> None:
        """Post the receive of a message."""
        operation: ops.Receive = pending.operation  # type: ignore[assignment]
        peer, tag, like = operation.source, operation.tag, operation.like
        if peer == ops.ANY:
            self.counts.any_waiting[tag] += 1
            pending.task.breakdown.operations.add(ANY_SOURCE)
        elif self._expect(pending, peer):
            pending.exchange = self._message_from(peer, tag)
        else:
            return
        self._begin(pending, lambda: self._rank.transport.messages.receive(like, peer, tag))

    def _message_from(self, source: int, tag: str) -> Exchange:
        return self._named(
            _message_key(source, self._rank.number, tag, self.counts.receives(source, tag)), source
        )

    def begin_collective(self, pending: ClusterPending) -> None:
        """Take part in a collective of this worker's group."""
        operation, name = pending.operation, pending.name
        number = self._number(name)
        groups = operation.groups  # type: ignore[attr-defined]
        group = members(groups, self._rank.job.workers, self._rank.number)
        others = tuple(r for r in group if r != self._rank.number)
        needed = others
        if isinstance(operation, ops.Broadcast):
            pending.peer = root_of(operation, self._rank.number, group)
            needed = tuple(r for r in others if r == pending.peer)
        pending.exchange = self._named(f"{name} {number}", *needed)
        collective, order = self._rank.job.choice.collective_of(operation, group, self._rank.number)
        sends = sends_of(((collective, order),)).of_hosts.get(self._rank.number, ())  # as in the simulator
        pending.sends = [(self._rank.job.rank_of(peer), num_bytes) for peer, num_bytes in sends]
        if self._expect(pending, *others):
            self._begin(pending, lambda: self._collective(operation, group, number))

    def _collective(
        self, operation: ops.Operation[Any], group: tuple[int, ...], number: int
    ) -> TransferInFlight:
        """Begin the library's collective, or a hierarchical all-reduce by hosts and sites."""
        collectives, forced = self._rank.transport.collectives, self._rank.job.collectives.all_reduce
        if isinstance(operation, ops.AllReduce) and forced == "hierarchical" and len(group) > 1:
            return collectives.hierarchical(operation.value, *self._rank.job.choice.by_site(group), number)
        return collectives.begin(operation, group, number)

    def reply(self, pending: ClusterPending) -> Any:
        """The reply of a completed exchange."""
        operation = pending.operation
        assert pending.result is not None
        if isinstance(operation, ops.Send | ops.Mix):
            pending.check_sent()
        reply = pending.result()
        if isinstance(operation, ops.Receive):
            pending.peer, value = reply
            if operation.source == ops.ANY:
                self.counts.any_waiting[operation.tag] -= 1
                pending.exchange = self._message_from(pending.peer, operation.tag)
            return ops.Message(pending.peer, value)
        if isinstance(operation, ops.Mix):
            return mix_values(operation, self._rank.number, reply, trains=self._rank.job.problem is not None)
        return reply


def _message_key(source: int, destination: int, tag: str, number: int) -> str:
    return f"{source}>{destination} {tag} {number}"
