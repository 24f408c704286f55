"""The event driver: every scheme, message by message, in SimPy's virtual time."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import simpy.core
import torch
from torch import Tensor

from ..errors import Deadlock, PeerLost, RunError, SchemeError
from ..network.profile import MessageRange
from ..network.wake_up_delays import WakeUpDelays
from ..program import operations as ops
from ..program.averaging import COLLECTIVES, root_of, weighted_sum
from ..program.encoding import decoded
from ..program.groups import members
from ..program.worker import Program
from ..records.accounting import TimeBreakdown
from ..records.run import Event
from ..training.gradients import Deferred, loss_given
from ..training.scoring import Scorer
from .clock import Clock
from .collectives import CollectivesInFlight
from .job import Job
from .outcome import Outcome
from .pending import Pending
from .streams import Streams
from .tasks import SUSPENDED, CoroutineTask, Handles
from .transfers import Transfers

_NAMES: Mapping[type, str] = {
    ops.Gradient: "gradient",
    ops.Mix: "mix",
    **{kind: ops.name_of(kind) for kind in COLLECTIVES},
    ops.Send: "send",
    ops.Receive: "receive",
    ops.Sleep: "sleep",
}
"""The operations that take time, as records spell them."""


class EventDriver:
    """Runs a job's programs in virtual time.

    Args:
        job: what to run.
        programs: the workers' coroutines, by rank.
        scorer: scores what is published, and may end the run.
        permute_seed: see ``Clock``.
        faults: rank -> number of the operation of its main coroutine at which that worker dies.
        progress: called with the total number of steps published so far.
    """

    def __init__(
        self,
        job: Job,
        programs: list[Program],
        scorer: Scorer,
        *,
        permute_seed: int | None = None,
        faults: Mapping[int, int] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self._job = job
        self._clock = Clock(permute_seed)
        streams = job.transfer.streams and job.transfer.sharing != "none"
        self._transfers = (Streams if streams else Transfers)(self._clock, job.transfer)
        self._deferred = Deferred(job.problem) if job.problem else None
        self._scorer = scorer
        self._faults = dict(faults or {})
        self._crashes = {rank: job.compute.crash_of(rank) for rank in range(job.workers)}
        self._mortal = bool(faults) or any(at is not None for at in self._crashes.values())
        self._progress = progress
        self._journal = job.journal()
        self._accounts = [TimeBreakdown(rank) for rank in range(job.workers)]
        self._tasks: list[list[CoroutineTask[Pending]]] = [
            [
                CoroutineTask(rank, number, coroutine, self._accounts[rank])
                for number, coroutine in enumerate(_all(program))
            ]
            for rank, program in enumerate(programs)
        ]
        self._finals = [job.start] * job.workers
        self._leaders: dict[int, Tensor] = {}
        self._mains_alive = job.workers
        self._dead: set[int] = set()
        self._issued = [0] * job.workers
        self._gradients = [0] * job.workers
        self._published = 0
        self._over = False
        self._lateness = WakeUpDelays(job.transfer, job.compute.seed, job.workers)
        ended = self._complete if self._lateness.none_after_exchanges else self._settled
        self._gatherings = CollectivesInFlight(job, self._clock, self._transfers, ended)
        self.at = self._clock.at
        handles: Handles[Pending] = Handles(job, self)
        self._handlers: dict[type, Callable[[CoroutineTask[Pending], Any], Any]] = {
            ops.NextStep: self._next_step,
            ops.Publish: self._publish,
            ops.Now: self._now,
            ops.BatchLoss: self._batch_loss,
            ops.Start: handles.start,
            ops.Wait: handles.wait,
            ops.WaitAny: handles.wait_any,
            ops.Poll: handles.poll,
            ops.NextSegment: handles.next_segment,
        }
        self._timed: dict[type, Callable[[Pending], None]] = {
            ops.Gradient: self._begin_gradient,
            ops.Mix: self._begin_mix,
            ops.Send: self._begin_send,
            ops.Receive: self._begin_receive,
            ops.Sleep: self._begin_sleep,
            **dict.fromkeys(COLLECTIVES, self._begin_collective),
        }

    @property
    def messages(self) -> int:
        """Transfers matched so far."""
        return self._transfers.messages

    @property
    def traffic(self) -> MessageRange | None:
        """The range of its messages; None where messages are not sent over streams."""
        return self._transfers.traffic if isinstance(self._transfers, Streams) else None

    def run(self) -> Outcome:
        """Run to the end.

        Raises:
            Deadlock: no worker can go on and the run is not over.
            PeerLost: a worker died and another needed it.
            RunError: a scheme raised or broke a rule.
        """
        try:
            # Thousands of coroutines live as long as the run: no need to look through them for garbage.
            gc.freeze()
            for rank, tasks in enumerate(self._tasks):
                if self._lateness.staggered:
                    self._clock.at(self._lateness.after_gradient_s(rank, 0), self._begin, tasks)
                else:
                    self._begin(tasks)
            self._loop()
        finally:
            gc.unfreeze()
            for tasks in self._tasks:
                self._close(tasks)
        died = ", ".join(str(rank) for rank in sorted(self._dead))
        return self.outcome(f"worker {died} died" if self._dead else "")

    def _begin(self, tasks: list[CoroutineTask[Pending]]) -> None:
        """Start a worker's coroutines, services first."""
        for task in tasks[1:] + tasks[:1]:
            self.advance(task, None)

    def outcome(self, failure: str = "") -> Outcome:
        """What has happened so far; ``failure`` says why that is not all."""
        return Outcome(
            wall_s=self._clock.now,
            accounts=self._accounts,
            finals=[x for rank, x in enumerate(self._finals) if rank not in self._dead] or self._finals,
            leader=self._leaders[min(self._leaders)] if self._leaders else None,
            events=self._journal.events if self._journal else [],
            status="partial" if failure else "completed",
            message=failure,
        )

    def _close(self, tasks: list[CoroutineTask[Pending]]) -> None:
        """End a worker's coroutines where they are, and its account with them."""
        if tasks[0].alive:
            self._interrupted(tasks[0])
        for task in tasks:
            task.alive = False
            task.coroutine.close()

    def _interrupted(self, task: CoroutineTask[Pending]) -> None:
        """Account for what a main coroutine waits in, and will not see the end of."""
        if task.blocked is not None:
            start_s, busy_s, pending = task.blocked
            peer_s = self._clock.now if pending.parts else pending.peer_s
            task.account.blocked(start_s, self._clock.now, peer_s, busy_s)

    def _loop(self) -> None:
        step, limit_s = self._clock.step, self._job.max_time_s
        try:
            while not self._over and self._mains_alive:
                if limit_s < math.inf and self._clock.peek() > limit_s:
                    self._clock.at(limit_s, lambda _: None, None)
                    step()
                    return
                step()
        except simpy.core.EmptySchedule:
            raise Deadlock(self._blocked()) from None

    def _blocked(self) -> tuple[str, ...]:
        return tuple(
            f"worker {task.rank} waits in {ops.describe(task.waiting)}"
            for tasks in self._tasks
            for task in tasks
            if task.alive and task.waiting is not None and task.number == 0
        )

    # --- coroutines -----------------------------------------------------------------------------

    def advance(self, task: CoroutineTask[Pending], reply: Any) -> None:
        """Run a coroutine until it has to wait."""
        self._run(task, task.coroutine.send, reply)

    def throw(self, task: CoroutineTask[Pending], error: RunError) -> None:
        """Raise an error where a coroutine waits."""
        self._run(task, task.coroutine.throw, error)

    def _run(self, task: CoroutineTask[Pending], resume: Callable[[Any], Any], what: Any) -> None:
        if not task.alive:
            return
        task.waiting = task.blocked = None
        handlers = self._handlers
        while True:
            try:
                operation = resume(what)
            except StopIteration:
                self._ended(task)
                return
            except RunError:
                raise
            except Exception as error:
                where = f"worker {task.rank}, step {task.account.steps}"
                raise RunError(f"{where}: the scheme raised {type(error).__name__}: {error}") from error
            if self._mortal and task.number == 0 and self._dies(task, operation):
                return
            kind = type(operation)
            if kind is ops.Gradient:
                self._compute(task, operation)
                return
            handler = handlers.get(kind)
            if handler is None:
                self.issue(task, operation, None)
                return
            what = handler(task, operation)
            if what is SUSPENDED:
                return
            resume = task.coroutine.send

    def _ended(self, task: CoroutineTask[Pending]) -> None:
        task.alive = False
        if task.outstanding:
            names = ", ".join(p.name for p in task.outstanding.values())
            raise SchemeError(f"worker {task.rank} ended without waiting for what it had started: {names}")
        if task.number == 0:
            task.account.ended_s = self._clock.now
            self._mains_alive -= 1

    def _dies(self, task: CoroutineTask[Pending], operation: ops.Operation[Any]) -> bool:
        number = self._issued[task.rank]
        self._issued[task.rank] += 1
        crashes = self._crashes[task.rank] == self._gradients[task.rank] and ops.computes(operation)
        if not crashes and self._faults.get(task.rank) != number:
            return False
        self._dead.add(task.rank)
        self._scorer.lose(task.rank)
        self._mains_alive -= 1
        task.account.ended_s = self._clock.now
        self._close(self._tasks[task.rank])
        for part in self._transfers.waiting_for(task.rank):
            self._clock.at(self._clock.now, self._lose, (part, task.rank))
        return True

    def _lose(self, what: tuple[Any, int]) -> None:
        part, rank = what
        self._transfers.drop(part)
        pending: Pending = part if isinstance(part, Pending) else part.run.pending
        error = PeerLost(rank, pending.name)
        task = pending.task
        if not task.alive or pending.done:
            return
        if pending.handle is None:
            pending.done = True
            self._interrupted(task)
            self.throw(task, error)
        else:
            pending.reply = error
            self._complete_handle(pending)

    # --- operations that take time --------------------------------------------------------------

    def issue(
        self, task: CoroutineTask[Pending], operation: ops.Operation[Any], handle: ops.Handle | None
    ) -> Pending:
        """Let an operation that takes time begin."""
        kind = type(operation)
        begin = self._timed.get(kind)
        if begin is None:
            frame = getattr(task.coroutine, "cr_frame", None)
            where = f" ({frame.f_code.co_filename}:{frame.f_lineno})" if frame else ""
            raise SchemeError(f"worker {task.rank} awaited {operation!r}, which is no operation{where}")
        pending = Pending(task, _NAMES[kind], operation, self._clock.now, handle, self._settled)
        if handle is None:
            task.waiting = operation
            if task.number == 0:
                pending.busy_s = task.account.busy_s(pending.start_s)
                task.blocked = (pending.start_s, pending.busy_s, pending)
        else:
            task.outstanding[handle.number] = pending
        begin(pending)
        return pending

    def _settled(self, pending: Pending) -> None:
        """All transfers of an operation have a time of completion."""
        resume_s = self._lateness.after_exchange_s(pending.task.rank)
        self._clock.at(pending.ready_s + resume_s, self._complete, pending)

    def _complete(self, pending: Pending) -> None:
        """An operation is complete now."""
        task = pending.task
        if not task.alive or pending.done:
            return
        operation = pending.operation
        kind = type(operation)
        if kind is ops.Gradient:
            task.account.computed(self._clock.now)
        elif kind is ops.Mix:
            pending.reply = self._mixed(pending)
        elif kind is ops.Receive:
            self._check_versions(pending)
            pending.reply = ops.Message(pending.peer, decoded(pending.values[0]))  # type: ignore[arg-type]
        elif kind is ops.Send:
            self._check_versions(pending)
        if pending.handle is not None:
            self._complete_handle(pending)
            return
        if task.number == 0:
            peer_s = self._clock.now if kind is ops.Sleep else pending.peer_s
            task.account.blocked(pending.start_s, self._clock.now, peer_s, pending.busy_s)
        task.account.bytes_sent += pending.bytes
        if self._journal is not None:
            self._write(pending, pending.name, pending.start_s, -1, pending.bytes)
        self.advance(task, pending.reply)

    def _complete_handle(self, pending: Pending) -> None:
        pending.done = True
        assert pending.handle is not None
        self.note(pending, pending.name, pending.start_s)
        if pending.waiter is not None:
            waiter, pending.waiter = pending.waiter, None
            waiter(pending)

    def note(self, pending: Pending, name: str, start_s: float) -> None:
        """A row about a started operation: of its completion, or of the coroutine's resumption."""
        num_bytes = pending.bytes if name == pending.name else 0
        pending.task.account.bytes_sent += num_bytes
        if self._journal is not None:
            assert pending.handle is not None
            self._write(pending, name, start_s, pending.handle.number, num_bytes)

    def blocked(self, task: CoroutineTask[Pending], start_s: float, busy_s: float, pending: Pending) -> None:
        """A main coroutine was blocked on a started operation from ``start_s`` until now."""
        if task.number == 0:
            task.account.blocked(start_s, self._clock.now, pending.peer_s, busy_s)

    def _write(self, pending: Pending, name: str, start_s: float, handle: int, num_bytes: int) -> None:
        assert self._journal is not None
        task, now_s = pending.task, self._clock.now
        peer_s = min(max(pending.peer_s, start_s), now_s)
        self._journal.add(
            Event(
                task.rank,
                task.number,
                handle,
                task.account.steps,
                name,
                start_s,
                now_s,
                peer_s,
                num_bytes,
                pending.peer,
            )
        )

    def _note_reply(self, task: CoroutineTask[Pending], name: str, step: int) -> None:
        """A row about an operation that took no time and whose reply depends on the clock."""
        if self._journal is not None:
            now_s = self._clock.now
            self._journal.add(Event(task.rank, task.number, -1, step, name, now_s, now_s, now_s, 0, -1))

    def _compute(self, task: CoroutineTask[Pending], operation: ops.Gradient) -> None:
        """An awaited gradient: nobody else is involved, so that it needs no ``Pending``."""
        task.waiting = operation
        start_s = self._clock.now
        ticket, duration_s = self._ask_gradient(task, operation.point)
        what = (task, operation.point, ticket, start_s)
        late_s = self._lateness.after_gradient_s(task.rank, self._gradients[task.rank])
        self._clock.at(start_s + duration_s + late_s, self._computed, what)

    def _computed(self, what: tuple[CoroutineTask[Pending], Tensor, int, float]) -> None:
        task, point, ticket, start_s = what
        if not task.alive:
            return
        now_s = self._clock.now
        task.account.computed(now_s)
        if self._journal is not None:
            self._journal.add(
                Event(
                    task.rank, task.number, -1, task.account.steps, "gradient", start_s, now_s, start_s, 0, -1
                )
            )
        self.advance(task, point if self._deferred is None else self._deferred.take(ticket))

    def _ask_gradient(self, task: CoroutineTask[Pending], point: Tensor) -> tuple[int, float]:
        """A ticket for the worker's next gradient, and how long it takes."""
        rank = task.rank
        index = self._gradients[rank]
        self._gradients[rank] = index + 1
        task.account.computing(self._clock.now)
        ticket = 0 if self._deferred is None else self._deferred.ask(rank, index, point)
        return ticket, self._job.compute.duration_s(rank, index)

    def _begin_gradient(self, pending: Pending) -> None:
        operation: ops.Gradient = pending.operation  # type: ignore[assignment]
        pending.ticket, duration_s = self._ask_gradient(pending.task, operation.point)
        pending.ready_s = pending.start_s + duration_s
        late_s = self._lateness.after_gradient_s(pending.task.rank, self._gradients[pending.task.rank])
        self._clock.at(pending.ready_s + late_s, self._complete, pending)

    def with_value(self, pending: Pending, call: Callable[[Tensor], None]) -> None:
        """Call with the value of a started gradient."""
        call(self._gradient_value(pending))

    def with_part(self, pending: Pending, start: int, stop: int, call: Callable[[Tensor], None]) -> None:
        """Call with elements [start, stop) of a started gradient."""
        call(self._gradient_value(pending)[..., start:stop])

    def now_s(self) -> float:
        """Seconds since the run began."""
        return float(self._clock.now)

    def _gradient_value(self, pending: Pending) -> Tensor:
        if pending.reply is None:
            operation: ops.Gradient = pending.operation  # type: ignore[assignment]
            known = self._deferred is None
            pending.reply = operation.point if known else self._deferred.take(pending.ticket)  # type: ignore[union-attr]
        value: Tensor = pending.reply
        return value

    def _begin_mix(self, pending: Pending) -> None:
        operation: ops.Mix = pending.operation  # type: ignore[assignment]
        rank, pattern, value = pending.task.rank, operation.pattern, operation.value
        sources, destinations = pattern.sources[rank], pattern.destinations[rank]
        pending.parts = len(sources) + len(destinations)
        pending.values = [None] * len(sources)
        pending.version = value._version
        if pending.parts == 0:
            self._settled(pending)
            return
        if self._dead:
            self._expect(pending, *sources, *destinations)
        num_bytes = self._job.num_bytes(value)
        pending.bytes = num_bytes * len(destinations)
        for slot, source in enumerate(sources):
            self._transfers.receive(source, rank, "mix", pending, slot)
        for destination in destinations:
            self._transfers.send(rank, destination, "mix", num_bytes, pending, value)

    def _mixed(self, pending: Pending) -> Tensor:
        operation: ops.Mix = pending.operation  # type: ignore[assignment]
        self._check_versions(pending)
        if self._deferred is None:
            return decoded(operation.value)
        rank, pattern = pending.task.rank, operation.pattern
        values = [decoded(value) for value in pending.values]  # type: ignore[arg-type]
        return weighted_sum(pattern.own[rank], decoded(operation.value), pattern.weights[rank], values)

    def _check_versions(self, pending: Pending) -> None:
        if pending.version >= 0 and pending.operation.value._version != pending.version:  # type: ignore[attr-defined]
            raise SchemeError(f"worker {pending.task.rank} wrote in place into a value that was being sent")

    def _begin_send(self, pending: Pending) -> None:
        operation: ops.Send = pending.operation  # type: ignore[assignment]
        self._expect(pending, operation.destination)
        pending.parts, pending.peer = 1, operation.destination
        pending.version = operation.value._version
        pending.bytes = self._job.num_bytes(operation.value)
        rank = pending.task.rank
        self._transfers.send(
            rank, operation.destination, f"p2p {operation.tag}", pending.bytes, pending, operation.value
        )

    def _begin_receive(self, pending: Pending) -> None:
        operation: ops.Receive = pending.operation  # type: ignore[assignment]
        if operation.source != ops.ANY:
            self._expect(pending, operation.source)
        pending.parts, pending.values = 1, [None]
        self._transfers.receive(operation.source, pending.task.rank, f"p2p {operation.tag}", pending, 0)

    def _begin_collective(self, pending: Pending) -> None:
        groups = pending.operation.groups  # type: ignore[attr-defined]
        group = members(groups, self._job.workers, pending.task.rank)
        lost = self._dead.intersection(group)
        if lost:
            self._expect(pending, min(lost))
        else:
            if isinstance(pending.operation, ops.Broadcast):
                pending.peer = root_of(pending.operation, pending.task.rank, group)
            self._gatherings.begin(pending, group)

    def _begin_sleep(self, pending: Pending) -> None:
        operation: ops.Sleep = pending.operation  # type: ignore[assignment]
        pending.ready_s = pending.start_s + operation.duration_s
        self._clock.at(pending.ready_s, self._complete, pending)

    def _expect(self, pending: Pending, *peers: int) -> None:
        """Fail an operation at once where a peer is known to be dead or does not exist."""
        for peer in peers:
            if not 0 <= peer < self._job.workers or peer == pending.task.rank:
                raise SchemeError(
                    f"worker {pending.task.rank}: {pending.name} with worker {peer} is not possible"
                )
            if peer in self._dead:
                self._clock.at(self._clock.now, self._lose, (pending, peer))

    # --- operations that take no time, or that wait for others ----------------------------------

    def _next_step(self, task: CoroutineTask[Pending], operation: ops.NextStep) -> bool:
        limit = self._job.max_iterations
        goes_on = not self._over and (limit is None or operation.step < limit)
        if not goes_on:
            self._note_reply(task, "next_step", operation.step)
        return goes_on

    def _publish(self, task: CoroutineTask[Pending], operation: ops.Publish) -> None:
        task.account.steps = operation.step + 1
        self._finals[task.rank] = operation.value
        self._published += 1
        if self._progress is not None:
            self._progress(self._published)
        if operation.leader is not None:
            self._leaders[task.rank] = operation.leader
        if self._scorer.publish(
            task.rank,
            operation.step,
            self._clock.now,
            operation.value,
            task.account.bytes_sent,
            operation.leader,
            operation.notes,
        ):
            self._over = True

    def _batch_loss(self, task: CoroutineTask[Pending], operation: ops.BatchLoss) -> Tensor:
        if self._deferred is None:
            return torch.zeros(1)
        return loss_given(self._deferred.loss(task.rank), task.rank)

    def _now(self, task: CoroutineTask[Pending], operation: ops.Now) -> float:
        self._note_reply(task, "now", task.account.steps)
        return float(self._clock.now)


def _all(program: Program) -> tuple[Coroutine[Any, Any, None], ...]:
    return (program.main, *program.services)
