"""Operations that need other workers, on the wall clock: posted here, waited for in helper threads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

from paceline.sim.drivers.job import Job
from paceline.sim.errors import SchemeError
from paceline.sim.program import operations as ops
from paceline.sim.program.averaging import root_of, weighted_sum
from paceline.sim.program.encoding import decoded
from paceline.sim.program.groups import members

from ..transport.backend import TransferInFlight
from ..transport.connections import Collective, PeerGone
from ..transport.threads import ThreadPool
from ..transport.transport import Transport
from .drain import PostedCounts
from .loop import Loop
from .pending import ClusterPending
from .rank_log import Exchange


class ExchangeListener(Protocol):
    """What exchanges need of the driver."""

    in_flight: set[ClusterPending]

    def known_dead(self, rank: int) -> bool:
        """Whether this worker has heard of that one's death."""

    def complete(self, pending: ClusterPending) -> None:
        """An operation is complete."""

    def lose(self, pending: ClusterPending, rank: int) -> None:
        """An operation cannot be completed: that peer is dead."""

    def gone(self, pending: ClusterPending, rank: int) -> None:
        """gloo has lost a connection that an operation needs; -1 where it does not tell to whom."""


class Exchanges:
    """One worker's exchanges with others.

    Args:
        job, rank: whose.
        transport: how it talks.
        threads, loop: where it is done.
        driver: who is told.
    """

    def __init__(
        self,
        job: Job,
        rank: int,
        *,
        transport: Transport,
        threads: ThreadPool,
        loop: Loop,
        driver: ExchangeListener,
    ) -> None:
        self._job = job
        self._rank = rank
        self._transport = transport
        self._threads = threads
        self._loop = loop
        self._driver = driver
        self._numbers: Counter[str] = Counter()
        self.traffic = PostedCounts()
        self.collectives_at_once = 0
        """The most that were under way."""

    def _expect(self, pending: ClusterPending, *peers: int) -> bool:
        """Whether the peers exist and none of them is known to be dead."""
        for peer in peers:
            if not 0 <= peer < self._job.workers or peer == self._rank:
                raise SchemeError(f"worker {self._rank}: {pending.name} with worker {peer} is not possible")
            if self._driver.known_dead(peer):
                self._driver.in_flight.add(pending)
                self._loop.soon(lambda rank=peer: self._driver.lose(pending, rank))  # type: ignore[misc]
                return False
        return True

    def _begin(self, pending: ClusterPending, begin: Callable[[], TransferInFlight]) -> None:
        """Begin transfers, and have them waited for."""
        self._driver.in_flight.add(pending)
        try:
            wait, pending.result = begin()
        except PeerGone as gone:
            rank = gone.rank
            self._loop.soon(lambda: self._driver.gone(pending, rank))
            return
        if isinstance(wait, Collective):
            self.collectives_at_once = max(self.collectives_at_once, self._threads.poll(pending, wait))
        else:
            self._threads.run(pending, wait)

    def _number(self, name: str) -> int:
        """How many operations of this kind there were before."""
        self._numbers[name] += 1
        return self._numbers[name] - 1

    def begin_mix(self, pending: ClusterPending) -> None:
        """Swap values with the neighbours."""
        operation: ops.Mix = pending.operation  # type: ignore[assignment]
        pattern, value = operation.pattern, operation.value
        sources, destinations = pattern.sources[self._rank], pattern.destinations[self._rank]
        number = self._number("mix")
        pending.exchange = Exchange(f"mix {number}", tuple({*sources, *destinations}))
        pending.version = value._version
        pending.bytes = self._job.num_bytes(value) * len(destinations)
        if not sources and not destinations:
            pending.result = list
            self._loop.soon(lambda: self._driver.complete(pending))
        elif self._expect(pending, *sources, *destinations):
            mix = self._transport.collectives.mix
            self._begin(pending, lambda: mix(value, sources, destinations, number))

    def begin_send(self, pending: ClusterPending) -> None:
        """Send a message."""
        operation: ops.Send = pending.operation  # type: ignore[assignment]
        peer, tag, value = operation.destination, operation.tag, operation.value
        pending.peer, pending.version, pending.bytes = peer, value._version, self._job.num_bytes(value)
        if self._expect(pending, peer):
            number = self.traffic.sends(peer, tag, self._transport.messages.buffers.message_bytes(value))
            pending.exchange = Exchange(_message_key(self._rank, peer, tag, number), (peer,))
            self._begin(pending, lambda: self._transport.messages.send(value, peer, tag))

    def begin_receive(self, pending: ClusterPending) -> None:
        """Receive a message."""
        operation: ops.Receive = pending.operation  # type: ignore[assignment]
        peer, tag, like = operation.source, operation.tag, operation.like
        if peer == ops.ANY:
            self.traffic.waits_for_any(tag)
        elif self._expect(pending, peer):
            pending.exchange = self._message_from(peer, tag)
        else:
            return
        self._begin(pending, lambda: self._transport.messages.receive(like, peer, tag))

    def _message_from(self, source: int, tag: str) -> Exchange:
        return Exchange(_message_key(source, self._rank, tag, self.traffic.receives(source, tag)), (source,))

    def begin_collective(self, pending: ClusterPending) -> None:
        """Take part in a collective of this worker's group."""
        operation, name = pending.operation, pending.name
        number = self._number(name)
        groups = operation.groups  # type: ignore[attr-defined]
        group = members(groups, self._job.workers, self._rank)
        others = tuple(r for r in group if r != self._rank)
        pending.exchange = Exchange(f"{name} {number}", others)
        pending.bytes = self._job.part_of(operation, group, self._rank).bytes_sent
        if isinstance(operation, ops.Broadcast):
            pending.peer = root_of(operation, self._rank, group)
        if self._expect(pending, *others):
            self._begin(pending, lambda: self._transport.collectives.begin(operation, group, number))

    def reply(self, pending: ClusterPending) -> Any:
        """The reply of an exchange that is complete."""
        operation = pending.operation
        assert pending.result is not None
        if isinstance(operation, ops.Send | ops.Mix) and operation.value._version != pending.version:
            raise SchemeError(f"worker {self._rank} wrote in place into a value that was being sent")
        reply = pending.result()
        if isinstance(operation, ops.Receive):
            pending.peer, value = reply
            if operation.source == ops.ANY:
                self.traffic.got_any(operation.tag)
                pending.exchange = self._message_from(pending.peer, operation.tag)
            return ops.Message(pending.peer, value)
        if isinstance(operation, ops.Mix):
            if self._job.problem is None:
                return decoded(operation.value)
            own, weights = operation.pattern.own[self._rank], operation.pattern.weights[self._rank]
            return weighted_sum(own, decoded(operation.value), weights, reply)
        return reply


def _message_key(source: int, destination: int, tag: str, number: int) -> str:
    return f"{source}>{destination} {tag} {number}"
