"""The event driver: every scheme, message by message, in SimPy's virtual time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import simpy.core
from torch import Tensor
from typing_extensions import override

from ..errors import Deadlock, RunError
from ..program import averaging, encoding
from ..program import operations as ops
from ..program.worker import Program
from ..records.accounting import TimeBreakdown
from ..records.run import ANY_SOURCE, Event
from ..traffic.clock import Clock, WakeUpDelays
from ..traffic.streams import Streams
from ..traffic.transfers import PATTERN_TAG, Transfers
from ..training.gradients import Deferred, loss_given
from ..training.scoring import Scorer
from .collectives import CollectivesInFlight
from .failures import Failures
from .job import Job
from .outcome import Outcome, describe_deaths
from .tasks.clocked import ClockedRunner, Pending
from .tasks.runner import CoroutineTask
from .turns import WorkerTurns

_Task = CoroutineTask[Pending]


class EventDriver(ClockedRunner[Pending]):
    """Runs a job's programs in virtual time.

    Args:
        job: to run.
        programs: the workers' coroutines, by rank.
        scorer: scores published models, and may end the run.
        permute_seed, start_s: see ``Clock``.
        faults: rank -> number of the operation of its main coroutine at which that worker dies.
        progress: called with the total number of steps published so far.
        priced: whether collectives are priced as a whole, which is far faster and gives the same times.

    Attributes:
        transfers: its messages.
    """

    most_at_once = 300_000

    def __init__(
        self,
        job: Job,
        programs: list[Program],
        scorer: Scorer[Tensor],
        *,
        permute_seed: int | None = None,
        start_s: float = 0.0,
        faults: Mapping[int, int] | None = None,
        progress: Callable[[int], None] | None = None,
        priced: bool = False,
    ) -> None:
        self._clock = Clock(permute_seed, start_s)
        super().__init__(job, dict(enumerate(programs)), self._clock, Pending)
        streams = job.transfer.streams and job.transfer.sharing != "none"
        self.transfers = (Streams if streams else Transfers)(self._clock, job.transfer)
        self._deferred = Deferred(job.problem) if job.problem else None
        self._scorer = scorer
        self._failures = Failures(job, faults or {}, self._clock, self.transfers.posts, self._fail)
        self.may_crash = self._failures.may_strike
        self._progress = progress
        self._event_log = job.recording.log()
        self.writes = self._event_log is not None
        self._finals = [job.start] * job.workers
        self._leaders: dict[int, Tensor] = {}
        self._mains_alive = job.workers
        self._gradients = [0] * job.workers
        self._received: dict[int, int] = {}
        self._published = 0
        self._step_ends_s: list[float] = []
        self._pace = job.pace_marks()
        self._counted: list[TimeBreakdown] = []
        self._over = False
        self._delays = WakeUpDelays(job.transfer, job.workers)
        ended = self.complete if self._delays.none_after_exchanges else self._settled
        self.collectives = CollectivesInFlight(job, self._clock, self.transfers, ended, self._alone, priced)
        self._turns = WorkerTurns(job, self._clock, self._join)
        self.handlers[ops.BatchLoss] = self._batch_loss
        self.add_timed(
            {
                ops.Gradient: self._begin_gradient,
                ops.Mix: self._turns.in_turn(self._begin_mix),
                ops.Send: self._begin_send,
                ops.Receive: self._begin_receive,
                **dict.fromkeys(averaging.COLLECTIVES, self._turns.in_turn(self._turns.connect)),
            }
        )

    @property
    def messages(self) -> int:
        """Transfers matched so far."""
        return self.transfers.messages

    @property
    def work(self) -> int:
        """Work of transfers so far; a collective priced as a whole counts as few for each member."""
        return self.transfers.work + self.collectives.work

    def run(self) -> Outcome:
        """Run to the end.

        Raises:
            Deadlock: no worker can continue and the run is not over.
            PeerLost: a worker died and another needed it.
            RunError: a scheme raised or broke a rule.
        """
        try:
            self._over = self._scorer.over
            for rank in () if self._over else self.tasks:
                if self._delays.staggered:
                    self._clock.at(self._clock.now + self._delays.after_gradient_s(rank, 0), self.begin, rank)
                else:
                    self.begin(rank)
            self._loop()
        finally:
            for rank in self.tasks:
                self.close(rank)
        return self.outcome()

    def outcome(self, failure: str = "") -> Outcome:
        """The outcome so far; ``failure`` says why it is partial."""
        dead = self._failures.dead
        all_died = len(dead) == len(self._finals)
        lost = frozenset[int]() if all_died else dead
        return Outcome(
            wall_s=self._clock.now,
            breakdowns=[tasks[0].breakdown for tasks in self.tasks.values()],
            finals=[x for rank, x in enumerate(self._finals) if rank not in lost],
            leader=self._leaders[min(self._leaders)] if self._leaders else None,
            events=self._event_log.events if self._event_log else [],
            status="partial" if failure or all_died else "completed",
            message=failure or describe_deaths(dead),
            lost=lost,
            pace=self._pace.last(),
            counted=self._counted,
            faults=self._failures.cost(),
            step_ends_s=self._step_ends_s[: min(tasks[0].breakdown.steps for tasks in self.tasks.values())],
        )

    @override
    def close(self, rank: int) -> None:
        if self.tasks[rank][0].alive:
            self._interrupted(self.tasks[rank][0], self.tasks[rank][0].breakdown)
        super().close(rank)

    def _interrupted(self, task: _Task, breakdown: TimeBreakdown) -> None:
        if task.blocked is not None and task.awaited is not None:
            start_s, busy_s = task.blocked
            peer_s = self._clock.now if task.awaited.parts else task.awaited.peer_s
            breakdown.blocked(start_s, self._clock.now, peer_s, busy_s)

    def _breakdowns_now(self) -> list[TimeBreakdown]:
        mains = [tasks[0] for tasks in self.tasks.values()]
        now = [replace(task.breakdown, sent_to=dict(task.breakdown.sent_to)) for task in mains]
        for task, breakdown in zip(mains, now, strict=True):
            self._interrupted(task, breakdown)
        return now

    def _loop(self) -> None:
        step, limit_s, scorer = self._clock.step, self.job.max_time_s, self._scorer
        scores, limited = scorer.scores, limit_s < math.inf
        try:
            while not self._over and self._mains_alive:
                # Score after all publications of an instant, before the clock advances.
                if scores and scorer.due_s is not None and scorer.has_passed(self._clock.peek()):
                    self._over = scorer.settle()
                    continue
                if limited and limit_s < self._clock.peek() < math.inf:
                    self._clock.at(limit_s, lambda _: None, None)
                    step()
                    return
                step()
        except simpy.core.EmptySchedule:
            mains = ((rank, tasks[0].waiting) for rank, tasks in self.tasks.items() if tasks[0].alive)
            waiting = (f"worker {rank} waits in {ops.describe(of)}" for rank, of in mains if of is not None)
            raise Deadlock(tuple(waiting)) from None

    @override
    def ended(self, task: _Task) -> None:
        super().ended(task)
        if task.number == 0:
            task.breakdown.ended_s = self._clock.now
            self._mains_alive -= 1

    # --- workers that die -----------------------------------------------------------------------

    @override
    def crashes(self, task: _Task, operation: ops.Operation[Any]) -> bool:
        rank = task.rank
        if not self._failures.strike(rank, operation, self._gradients[rank]):
            return False
        self._scorer.lose(rank, self._clock.now)
        self._pace.lose(rank)
        self._mains_alive -= 1
        task.breakdown.ended_s = self._clock.now
        self.close(rank)
        self._failures.tell(rank, self.collectives.waiting_for(rank))
        return True

    def _fail(self, pending: Pending, error: RunError) -> None:
        self._turns.end(pending)
        if pending.handle is None:
            pending.done = True
            self._interrupted(pending.task, pending.task.breakdown)
        self.fail(pending, error)

    # --- the end of operations that take time ---------------------------------------------------

    def _settled(self, pending: Pending) -> None:
        late_s = self._delays.after_exchange_s(pending.task.rank)
        self._clock.at(pending.ready_s + late_s, self.complete, pending)

    @override
    def finish(self, pending: Pending) -> None:
        operation = pending.operation
        kind = type(operation)
        if kind is ops.Gradient:
            pending.task.breakdown.computed(self._clock.now)
            return
        pending.check_sent()
        self._turns.end(pending)
        if kind is ops.Mix:
            rank, trains = pending.task.rank, self.job.problem is not None
            pending.reply = averaging.mix_values(operation, rank, pending.values, trains=trains)  # type: ignore[arg-type]
        elif kind is ops.Receive:
            pending.reply = ops.Message(pending.peer, encoding.decoded(pending.values[0]))  # type: ignore[arg-type]

    @override
    def blocked(self, pending: Pending, start_s: float, busy_s: float, peer_s: float) -> None:
        pending.task.breakdown.blocked(start_s, self._clock.now, peer_s, busy_s)

    @override
    def write(
        self,
        task: _Task,
        name: str,
        step: int,
        start_s: float,
        now_s: float,
        pending: Pending | None = None,
        handle: int = -1,
        num_bytes: int = 0,
    ) -> None:
        if self._event_log is not None:
            peer, peer_s = (-1, start_s) if pending is None else (pending.peer, pending.peer_s)
            peer_s = min(max(peer_s, start_s), now_s)
            rank, peer = self.job.rank_of(task.rank), peer if peer < 0 else self.job.rank_of(peer)
            self._event_log.add(
                Event(rank, task.number, handle, step, name, start_s, now_s, peer_s, num_bytes, peer)
            )

    # --- gradients ------------------------------------------------------------------------------

    @override
    def next_gradient_s(self, rank: int) -> float:
        return self.job.computing.duration_s(self.job.rank_of(rank), self._gradients[rank])

    def _ask_gradient(self, task: _Task, operation: ops.Gradient, ahead: float) -> tuple[int, float]:
        """A ticket for the value of the worker's next gradient, and its end; ``ahead`` of it is done."""
        index, rank = self._gradients[task.rank], self.job.rank_of(task.rank)
        self._gradients[task.rank] += self.job.ends_batch(operation)
        ticket = index
        if self._deferred is not None:
            ticket = self._deferred.ask(rank, index, operation.point, operation.part)
        took_s = (1 - ahead) * self.job.computing.duration_s(rank, index) / self.job.parts(operation)
        return ticket, self._failures.end_s(task.rank, index, self._clock.now, took_s)

    def _begin_gradient(self, pending: Pending) -> None:
        operation: ops.Gradient = pending.operation  # type: ignore[assignment]
        pending.ticket, pending.ready_s = self._ask_gradient(pending.task, operation, pending.ahead)
        if pending.stepped:
            return
        pending.task.breakdown.computing(self._clock.now)
        late_s = self._delays.after_gradient_s(pending.task.rank, self._gradients[pending.task.rank])
        self._clock.at(pending.ready_s + late_s, self.complete, pending)

    @override
    def with_value(self, pending: Pending, call: Callable[[Tensor], None]) -> None:
        call(self._gradient_value(pending))

    @override
    def with_part(self, pending: Pending, start: int, stop: int, call: Callable[[Tensor], None]) -> None:
        call(self._gradient_value(pending)[..., start:stop])

    def _gradient_value(self, pending: Pending) -> Tensor:
        if pending.reply is None:
            if self._deferred is not None:
                pending.reply = self._deferred.take(pending.ticket)
            else:
                self._received[pending.task.rank] = pending.ticket
                pending.reply = pending.operation.point  # type: ignore[attr-defined]
        value: Tensor = pending.reply
        return value

    # --- exchanges ------------------------------------------------------------------------------

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
        if self._failures.dead:
            self._failures.expect(pending, *sources, *destinations)
        num_bytes = encoding.message_bytes(value, self.job.bytes_per_parameter)
        pending.sends = [(destination, num_bytes) for destination in destinations]
        for slot, source in enumerate(sources):
            self.transfers.receive(source, rank, PATTERN_TAG, pending, slot)
        for destination in destinations:
            self.transfers.send(rank, destination, PATTERN_TAG, num_bytes, pending)

    def _begin_send(self, pending: Pending) -> None:
        operation: ops.Send = pending.operation  # type: ignore[assignment]
        self._failures.expect(pending, operation.destination)
        pending.parts, pending.on_settled = 1, self._settled
        pending.peer = operation.destination
        pending.version = operation.value._version
        num_bytes = encoding.message_bytes(operation.value, self.job.bytes_per_parameter)
        pending.sends = ((operation.destination, num_bytes),)
        rank = pending.task.rank
        self.transfers.send(rank, operation.destination, f"p2p {operation.tag}", num_bytes, pending)

    def _begin_receive(self, pending: Pending) -> None:
        operation: ops.Receive = pending.operation  # type: ignore[assignment]
        if operation.source == ops.ANY:
            pending.task.breakdown.operations.add(ANY_SOURCE)
        else:
            self._failures.expect(pending, operation.source)
        pending.parts, pending.on_settled = 1, self._settled
        pending.values = [None]
        self.transfers.receive(operation.source, pending.task.rank, f"p2p {operation.tag}", pending, 0)

    def _alone(self, pending: Pending) -> bool:
        """Whether an operation is all that its worker does, so that nothing else of it can use its links."""
        task = pending.task
        return pending.handle is None and not task.outstanding and len(self.tasks[task.rank]) == 1

    def _join(self, pending: Pending, group: tuple[int, ...]) -> None:
        if lost := self._failures.dead.intersection(group):
            self._failures.expect(pending, min(lost))
        else:
            self.collectives.begin(pending, group)

    # --- operations that take no time -----------------------------------------------------------

    @override
    def over(self) -> bool:
        return self._over

    @override
    def publish(self, task: _Task, operation: ops.Publish) -> None:
        task.breakdown.publish(operation.step, operation.notes)
        self._finals[task.rank] = operation.value
        self._published += 1
        if self.job.churn is not None:
            self._step_ends_s += [0.0] * (operation.step + 1 - len(self._step_ends_s))
            self._step_ends_s[operation.step] = self._clock.now
        self._pace.publish(task.rank, operation.step, self._clock.now, task.breakdown.bytes_sent)
        if not (self.job.synchronous or self._counted) and self._pace.complete:
            self._counted = self._breakdowns_now()
        if self._progress is not None:
            self._progress(self._published)
        if operation.leader is not None:
            self._leaders[task.rank] = operation.leader
        if not self._scorer.scores:
            return
        published = self.job.published(task.rank, self._clock.now, task.breakdown.bytes_sent, operation)
        if self._scorer.publish(published):
            self._over = True

    def _batch_loss(self, task: _Task, operation: ops.BatchLoss) -> Tensor:
        if self._deferred is not None:
            return loss_given(self._deferred.loss(self.job.rank_of(task.rank)), task.rank)
        received = self._received.get(task.rank)
        return loss_given(None if received is None else self.job.drawn_loss(task.rank, received), task.rank)
