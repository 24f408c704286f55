"""Exchanges under way in virtual time: mixes as transfers, collectives as a whole or by messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from ..errors import Deadlock, RunError
from ..program import averaging, encoding
from ..program import operations as ops
from ..records.accounting import TimeBreakdown
from ..records.run import ANY_SOURCE
from ..traffic.clock import Clock, WakeUpDelays
from ..traffic.streams import Streams
from ..traffic.transfers import PATTERN_TAG, Transfers
from .collectives import CollectivesInFlight
from .failures import Failures
from .job import Job
from .tasks.clocked import Pending
from .tasks.runner import CoroutineTask
from .turns import WorkerTurns

_Tasks = Iterable[CoroutineTask[Pending]]


class ExchangesInFlight:
    """The exchanges of all workers of a run.

    Args:
        job: of the run.
        clock, delays: virtual time, and how late its ends are noticed.
        faults: rank -> number of the operation of its main coroutine at which that worker dies.
        complete, fail: called with an exchange that is complete on its worker, or cannot be.
        alone: whether an operation is all that its worker does.
        priced: whether collectives are priced as a whole.

    Attributes:
        transfers, collectives: those under way.
        failures: workers that die or are away.
        begins: kind of an operation -> the function that begins it.
    """

    def __init__(
        self,
        job: Job,
        clock: Clock,
        delays: WakeUpDelays,
        faults: Mapping[int, int],
        complete: Callable[[Pending], None],
        fail: Callable[[Pending, RunError], None],
        alone: Callable[[Pending], bool],
        priced: bool,
    ) -> None:
        self._job, self._clock, self._delays = job, clock, delays
        self._complete, self._fail = complete, fail
        streams = job.transfer.streams and job.transfer.sharing != "none"
        self.transfers = (Streams if streams else Transfers)(clock, job.transfer)
        self.failures = Failures(job, faults, clock, self.transfers.posts, self._lose)
        ended = complete if delays.none_after_exchanges else self._settled
        self.collectives = CollectivesInFlight(job, clock, self.transfers, ended, alone, priced)
        self._turns = WorkerTurns(job, clock, self._join)
        self.begins: Mapping[type, Callable[[Pending], None]] = {
            ops.Mix: self._turns.in_turn(self._begin_mix),
            ops.Send: self._begin_send,
            ops.Receive: self._begin_receive,
            **dict.fromkeys(averaging.COLLECTIVES, self._turns.in_turn(self._turns.connect)),
        }

    def _settled(self, pending: Pending) -> None:
        late_s = self._delays.after_exchange_s(pending.task.rank)
        self._clock.at(pending.ready_s + late_s, self._complete, pending)

    def _begin_mix(self, pending: Pending) -> None:
        operation: ops.Mix = pending.operation  # type: ignore[assignment]
        rank, pattern, value = pending.task.rank, operation.pattern, operation.value
        sources, destinations = pattern.sources[rank], pattern.destinations[rank]
        pending.parts, pending.on_settled = len(sources) + len(destinations), self._settled
        pending.values = [None] * len(sources)
        pending.version = value._version
        if pending.parts == 0:
            self._settled(pending)
            return
        if self.failures.dead:
            self.failures.expect(pending, *sources, *destinations)
        num_bytes = encoding.message_bytes(value, self._job.bytes_per_parameter)
        pending.sends = [(destination, num_bytes) for destination in destinations]
        for slot, source in enumerate(sources):
            self.transfers.receive(source, rank, PATTERN_TAG, pending, slot)
        for destination in destinations:
            self.transfers.send(rank, destination, PATTERN_TAG, num_bytes, pending)

    def _begin_send(self, pending: Pending) -> None:
        operation: ops.Send = pending.operation  # type: ignore[assignment]
        self.failures.expect(pending, operation.destination)
        pending.parts, pending.on_settled = 1, self._settled
        pending.peer = operation.destination
        pending.version = operation.value._version
        num_bytes = encoding.message_bytes(operation.value, self._job.bytes_per_parameter)
        pending.sends = ((operation.destination, num_bytes),)
        rank = pending.task.rank
        self.transfers.send(rank, operation.destination, f"p2p {operation.tag}", num_bytes, pending)

    def _begin_receive(self, pending: Pending) -> None:
        operation: ops.Receive = pending.operation  # type: ignore[assignment]
        if operation.source == ops.ANY:
            pending.task.breakdown.operations.add(ANY_SOURCE)
        else:
            self.failures.expect(pending, operation.source)
        pending.parts, pending.on_settled = 1, self._settled
        pending.values = [None]
        self.transfers.receive(operation.source, pending.task.rank, f"p2p {operation.tag}", pending, 0)

    def _join(self, pending: Pending, group: tuple[int, ...]) -> None:
        if lost := self.failures.dead.intersection(group):
            self.failures.expect(pending, min(lost))
        else:
            self.collectives.begin(pending, group)

    def _lose(self, pending: Pending, error: RunError) -> None:
        self._turns.end(pending)
        if pending.handle is None:
            pending.done = True
            self.interrupt(pending.task, pending.task.breakdown)
        self._fail(pending, error)

    def finish(self, pending: Pending) -> None:
        """Set the reply of an exchange that is complete."""
        operation = pending.operation
        pending.check_sent()
        self._turns.end(pending)
        if isinstance(operation, ops.Mix):
            rank, trains = pending.task.rank, self._job.problem is not None
            pending.reply = averaging.mix_values(operation, rank, pending.values, trains=trains)  # type: ignore[arg-type]
        elif isinstance(operation, ops.Receive):
            pending.reply = ops.Message(pending.peer, encoding.decoded(pending.values[0]))  # type: ignore[arg-type]

    # --- where workers are blocked -------------------------------------------------------------

    def interrupt(self, task: CoroutineTask[Pending], breakdown: TimeBreakdown) -> None:
        """Account in ``breakdown`` for an exchange that a main coroutine is blocked in up to now."""
        if task.blocked is not None and task.awaited is not None:
            start_s, busy_s = task.blocked
            peer_s = self._clock.now if task.awaited.parts else task.awaited.peer_s
            breakdown.blocked(start_s, self._clock.now, peer_s, busy_s)

    def accounts(self, mains: _Tasks) -> list[TimeBreakdown]:
        """The breakdowns of main coroutines as of now, copied."""
        now = []
        for task in mains:
            now.append(replace(task.breakdown, sent_to=dict(task.breakdown.sent_to)))
            self.interrupt(task, now[-1])
        return now

    def deadlock(self, mains: _Tasks) -> Deadlock:
        """The error where nobody can continue: what each living worker waits in."""
        waiting = ((task.rank, task.waiting) for task in mains if task.alive)
        return Deadlock(
            tuple(f"worker {rank} waits in {ops.describe(of)}" for rank, of in waiting if of is not None)
        )
