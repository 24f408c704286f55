"""The event driver: every scheme, message by message, in SimPy's virtual time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import simpy.core
from torch import Tensor
from typing_extensions import override

from ..program import operations as ops
from ..program.worker import Program
from ..records.run import Event
from ..traffic.clock import Clock, WakeUpDelays
from ..training.scoring import Scorer
from .exchanges import ExchangesInFlight
from .gradients import GradientsInFlight
from .job import Job
from .outcome import Outcome
from .tasks.clocked import ClockedRunner, Pending
from .tasks.runner import CoroutineTask

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
        gradients, exchanges: what is under way.
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
        self._delays = WakeUpDelays(job.transfer, job.workers)
        self.exchanges = ExchangesInFlight(
            job, self._clock, self._delays, faults or {}, self.complete, self.fail, self._alone, priced
        )
        self._failures = self.exchanges.failures
        self.gradients = GradientsInFlight(job, self._clock, self._delays, self._failures, self.complete)
        self._scorer = scorer
        self.may_crash = self._failures.may_strike
        self._progress = progress
        self._event_log = job.recording.log()
        self.writes = self._event_log is not None
        self._finals = [job.start] * job.workers
        self._leaders: dict[int, Tensor] = {}
        self._mains_alive = job.workers
        self._published = 0
        self._step_ends_s: list[float] = []
        self._pace = job.pace_marks()
        self._counted = self.exchanges.accounts(())
        self._over = False
        self.handlers[ops.BatchLoss] = self._batch_loss
        self.add_timed({ops.Gradient: self.gradients.begin, **self.exchanges.begins})

    @property
    def messages(self) -> int:
        """Transfers matched so far."""
        return self.exchanges.transfers.messages

    @property
    def work(self) -> int:
        """Work of transfers so far; a collective priced as a whole counts as few for each member."""
        return self.exchanges.transfers.work + self.exchanges.collectives.work

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
            breakdowns=[task.breakdown for task in self._mains],
            finals=[x for rank, x in enumerate(self._finals) if rank not in lost],
            leader=self._leaders[min(self._leaders)] if self._leaders else None,
            events=self._event_log.events if self._event_log else [],
            status="partial" if failure or all_died else "completed",
            message=failure or self._failures.deaths,
            lost=lost,
            pace=self._pace.last(),
            counted=self._counted,
            faults=self._failures.cost(),
            step_ends_s=self._step_ends_s[: min(task.breakdown.steps for task in self._mains)],
        )

    @override
    def close(self, rank: int) -> None:
        if self.tasks[rank][0].alive:
            self.exchanges.interrupt(self.tasks[rank][0], self.tasks[rank][0].breakdown)
        super().close(rank)

    @property
    def _mains(self) -> list[_Task]:
        return [tasks[0] for tasks in self.tasks.values()]

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
            raise self.exchanges.deadlock(self._mains) from None

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
        if not self._failures.strike(rank, operation, self.gradients.begun[rank]):
            return False
        self._scorer.lose(rank, self._clock.now)
        self._pace.lose(rank)
        self._mains_alive -= 1
        task.breakdown.ended_s = self._clock.now
        self.close(rank)
        self._failures.tell(rank, self.exchanges.collectives.waiting_for(rank))
        return True

    # --- the end of operations that take time ---------------------------------------------------

    @override
    def finish(self, pending: Pending) -> None:
        if type(pending.operation) is ops.Gradient:
            pending.task.breakdown.computed(self._clock.now)
        else:
            self.exchanges.finish(pending)

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
        return self.gradients.next_s(rank)

    @override
    def with_value(self, pending: Pending, call: Callable[[Tensor], None]) -> None:
        call(self.gradients.value(pending))

    @override
    def with_part(self, pending: Pending, start: int, stop: int, call: Callable[[Tensor], None]) -> None:
        call(self.gradients.value(pending)[..., start:stop])

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
            self._counted = self.exchanges.accounts(self._mains)
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
        return self.gradients.loss(task.rank)

    def _alone(self, pending: Pending) -> bool:
        """Whether an operation is all that its worker does, so that nothing else of it can use its links."""
        task = pending.task
        return pending.handle is None and not task.outstanding and len(self.tasks[task.rank]) == 1
