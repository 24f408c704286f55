"""Operations between workers on the wall clock: posted here, waited for in helper threads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
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
from .drain import PostedCounts
from .rank_log import Exchange
from .rank_state import ClusterPending, Rank


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
