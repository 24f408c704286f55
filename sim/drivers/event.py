"""The event driver: every scheme, message by message, in SimPy's virtual time."""

from __future__ import annotations

import gc
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

import simpy.core
import torch

from sim import operations as ops
from sim.accounting import Account
from sim.drivers.clock import Clock
from sim.drivers.outcome import Outcome
from sim.drivers.pending import CollectiveRun, Pending, Task
from sim.drivers.transfers import Transfers
from sim.errors import Deadlock, PeerLost, RunError, SchemeError
from sim.evaluation import Scorer, mean_model
from sim.gradients import Deferred
from sim.job import Job
from sim.mixing import weighted_sum
from sim.records import Event
from sim.schedules import schedule_of
from sim.worker import Program

Tensor = torch.Tensor

_SUSPENDED: Final = object()
_NAMES: Mapping[type, str] = {
    ops.Gradient: "gradient",
    ops.Mix: "mix",
    ops.AllReduce: "all_reduce",
    ops.AllGather: "all_gather",
    ops.Broadcast: "broadcast",
    ops.Barrier: "barrier",
    ops.Send: "send",
    ops.Receive: "receive",
    ops.Sleep: "sleep",
}
"""The operations that take time, as records spell them."""


class _Gathering:
    """The inputs of one collective operation, and its one result."""

    __slots__ = ("inputs", "last_s", "result", "taken")

    def __init__(self) -> None:
        self.inputs: dict[int, Tensor | None] = {}
        self.last_s = 0.0
        self.result: Tensor | None = None
        self.taken = 0


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
        self._transfers = Transfers(self._clock, job.transfer)
        self._deferred = Deferred(job.problem) if job.problem else None
        self._scorer = scorer
        self._faults = dict(faults or {})
        self._progress = progress
        self._journal = job.journal()
        self._accounts = [Account(rank) for rank in range(job.workers)]
        self._tasks = [
            [
                Task(rank, number, coroutine, self._accounts[rank])
                for number, coroutine in enumerate(_all(program))
            ]
            for rank, program in enumerate(programs)
        ]
        self._finals = [job.start] * job.workers
        self._mains_alive = job.workers
        self._dead: set[int] = set()
        self._issued = [0] * job.workers
        self._gradients = [0] * job.workers
        self._handles = [0] * job.workers
        self._sequence: list[dict[str, int]] = [{} for _ in range(job.workers)]
        self._gatherings: dict[tuple[str, int], _Gathering] = {}
        self._published = 0
        self._over = False
        self._fractions = job.ready_fractions()
        self._handlers: dict[type, Callable[[Task, Any], Any]] = {
            ops.NextStep: self._next_step,
            ops.Publish: self._publish,
            ops.Now: self._now,
            ops.Start: self._start,
            ops.Wait: self._wait,
            ops.WaitAny: self._wait_any,
            ops.Poll: self._poll,
            ops.NextSegment: self._next_segment,
        }
        self._timed: dict[type, Callable[[Pending], None]] = {
            ops.Gradient: self._begin_gradient,
            ops.Mix: self._begin_mix,
            ops.Send: self._begin_send,
            ops.Receive: self._begin_receive,
            ops.Sleep: self._begin_sleep,
            ops.AllReduce: self._begin_collective,
            ops.AllGather: self._begin_collective,
            ops.Broadcast: self._begin_collective,
            ops.Barrier: self._begin_collective,
        }

    @property
    def messages(self) -> int:
        """Transfers matched so far."""
        return self._transfers.messages

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
            for tasks in self._tasks:
                for task in tasks[1:] + tasks[:1]:
                    self._advance(task, None)
            self._loop()
        finally:
            gc.unfreeze()
            for tasks in self._tasks:
                self._close(tasks)
        died = ", ".join(str(rank) for rank in sorted(self._dead))
        return self.outcome(f"worker {died} died" if self._dead else "")

    def outcome(self, failure: str = "") -> Outcome:
        """What has happened so far; ``failure`` says why that is not all."""
        return Outcome(
            wall_s=self._clock.now,
            accounts=self._accounts,
            finals=self._finals,
            events=self._journal.events if self._journal else [],
            status="partial" if failure else "completed",
            message=failure,
        )

    def _close(self, tasks: list[Task]) -> None:
        """End a worker's coroutines where they are, and its account with them."""
        if tasks[0].alive and tasks[0].blocked is not None:
            start_s, busy_s, pending = tasks[0].blocked
            peer_s = self._clock.now if pending.parts else pending.peer_s
            tasks[0].account.blocked(start_s, self._clock.now, peer_s, busy_s)
        for task in tasks:
            task.alive = False
            task.coroutine.close()

    def _loop(self) -> None:
        step, limit_s = self._clock.step, self._job.max_time_s
        while not self._over and self._mains_alive:
            if self._clock.peek() > limit_s:
                self._clock.at(limit_s, lambda _: None, None)
                self._clock.step()
                return
            try:
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

    def _advance(self, task: Task, reply: Any) -> None:
        """Run a coroutine until it has to wait."""
        if not task.alive:
            return
        task.waiting = task.blocked = None
        send, handlers = task.coroutine.send, self._handlers
        while True:
            try:
                operation = send(reply)
            except StopIteration:
                self._ended(task)
                return
            except RunError:
                raise
            except Exception as error:
                where = f"worker {task.rank}, step {task.account.steps}"
                raise RunError(f"{where}: the scheme raised {type(error).__name__}: {error}") from error
            if task.number == 0 and self._faults and self._dies(task):
                return
            kind = type(operation)
            if kind is ops.Gradient:
                self._compute(task, operation)
                return
            handler = handlers.get(kind)
            if handler is None:
                self._issue(task, operation, None)
                return
            reply = handler(task, operation)
            if reply is _SUSPENDED:
                return

    def _throw(self, task: Task, error: RunError) -> None:
        """Raise an error where a coroutine waits."""
        try:
            operation = task.coroutine.throw(error)
        except StopIteration:
            self._ended(task)
            return
        handler = self._handlers.get(type(operation))
        if isinstance(operation, ops.Gradient):
            self._compute(task, operation)
        elif handler is None:
            self._issue(task, operation, None)
        elif (reply := handler(task, operation)) is not _SUSPENDED:
            self._advance(task, reply)

    def _ended(self, task: Task) -> None:
        task.alive = False
        if task.outstanding:
            names = ", ".join(p.name for p in task.outstanding.values())
            raise SchemeError(f"worker {task.rank} ended without waiting for what it had started: {names}")
        if task.number == 0:
            task.account.ended_s = self._clock.now
            self._mains_alive -= 1

    def _dies(self, task: Task) -> bool:
        number = self._issued[task.rank]
        self._issued[task.rank] += 1
        if self._faults.get(task.rank) != number:
            return False
        self._dead.add(task.rank)
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
            self._throw(task, error)
        else:
            pending.reply = error
            self._complete_handle(pending)

    # --- operations that take time --------------------------------------------------------------

    def _issue(self, task: Task, operation: ops.Operation[Any], handle: ops.Handle | None) -> Pending:
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
        self._clock.at(pending.ready_s, self._complete, pending)

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
            pending.reply = ops.Message(pending.peer, pending.values[0])  # type: ignore[arg-type]
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
        self._advance(task, pending.reply)

    def _complete_handle(self, pending: Pending) -> None:
        pending.done = True
        assert pending.handle is not None
        self._note(pending, pending.name, pending.start_s, pending.handle.number)
        if pending.waiter is not None:
            waiter, pending.waiter = pending.waiter, None
            waiter(pending)

    def _note(self, pending: Pending, name: str, start_s: float, handle: int) -> None:
        """A row about a started operation: of its completion, or of the coroutine's resumption."""
        num_bytes = pending.bytes if name == pending.name else 0
        pending.task.account.bytes_sent += num_bytes
        if self._journal is not None:
            self._write(pending, name, start_s, handle, num_bytes)

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

    def _note_reply(self, task: Task, name: str, step: int) -> None:
        """A row about an operation that took no time and whose reply depends on the clock."""
        if self._journal is not None:
            now_s = self._clock.now
            self._journal.add(Event(task.rank, task.number, -1, step, name, now_s, now_s, now_s, 0, -1))

    def _compute(self, task: Task, operation: ops.Gradient) -> None:
        """An awaited gradient: nobody else is involved, so that it needs no ``Pending``."""
        task.waiting = operation
        start_s = self._clock.now
        ticket, duration_s = self._ask_gradient(task, operation.point)
        self._clock.at(start_s + duration_s, self._computed, (task, operation.point, ticket, start_s))

    def _computed(self, what: tuple[Task, Tensor, int, float]) -> None:
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
        self._advance(task, point if self._deferred is None else self._deferred.take(ticket))

    def _ask_gradient(self, task: Task, point: Tensor) -> tuple[int, float]:
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
        self._settled(pending)

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
        if pending.parts == 0:
            self._settled(pending)
            return
        if self._dead:
            self._expect(pending, *sources, *destinations)
        pending.values = [None] * len(sources)
        pending.version = value._version
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
            return operation.value
        rank = pending.task.rank
        values: list[Tensor] = pending.values  # type: ignore[assignment]
        return weighted_sum(
            operation.pattern.own[rank], operation.value, operation.pattern.weights[rank], values
        )

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

    def _begin_sleep(self, pending: Pending) -> None:
        operation: ops.Sleep = pending.operation  # type: ignore[assignment]
        pending.ready_s = pending.start_s + operation.duration_s
        self._settled(pending)

    def _expect(self, pending: Pending, *peers: int) -> None:
        """Fail an operation at once where a peer is known to be dead or does not exist."""
        for peer in peers:
            if not 0 <= peer < self._job.workers or peer == pending.task.rank:
                raise SchemeError(
                    f"worker {pending.task.rank}: {pending.name} with worker {peer} is not possible"
                )
            if peer in self._dead:
                self._clock.at(self._clock.now, self._lose, (pending, peer))

    # --- collectives ----------------------------------------------------------------------------

    def _begin_collective(self, pending: Pending) -> None:
        operation, name, rank = pending.operation, pending.name, pending.task.rank
        number = self._sequence[rank].get(name, 0)
        self._sequence[rank][name] = number + 1
        gathering = self._gatherings.setdefault((name, number), _Gathering())
        gathering.inputs[rank] = getattr(operation, "value", None)
        gathering.last_s = self._clock.now
        pending.ticket = number
        for peer in range(self._job.workers):
            if peer in self._dead:
                self._expect(pending, peer)
                return
        schedule = schedule_of(self._job, operation)
        pending.bytes = sum(size for r in schedule.rounds[rank] for _, size in r.sends)
        run = CollectiveRun(
            pending, schedule, rank, (name, number, 0), self._transfers, self._clock.at, self._collected
        )
        run.begin()

    def _collected(self, pending: Pending) -> None:
        """A worker has come through all rounds of its collective."""
        operation, key = pending.operation, (pending.name, pending.ticket)
        gathering = self._gatherings[key]
        if gathering.result is None and not isinstance(operation, ops.Barrier):
            gathering.result = self._collective_value(operation, gathering)
        pending.reply = gathering.result
        pending.peer_s = gathering.last_s
        gathering.taken += 1
        if gathering.taken == self._job.workers:
            del self._gatherings[key]
            self._transfers.close((*key, 0))
        self._complete(pending)

    def _collective_value(self, operation: ops.Operation[Any], gathering: _Gathering) -> Tensor | None:
        if isinstance(operation, ops.Broadcast):
            return gathering.inputs[operation.root]
        inputs: list[Tensor] = [gathering.inputs[r] for r in range(self._job.workers)]  # type: ignore[misc]
        if isinstance(operation, ops.AllGather):
            return torch.stack(inputs)
        return inputs[0] if self._deferred is None else mean_model(inputs)

    # --- operations that take no time, or that wait for others ----------------------------------

    def _next_step(self, task: Task, operation: ops.NextStep) -> bool:
        limit = self._job.max_iterations
        goes_on = not self._over and (limit is None or operation.step < limit)
        if not goes_on:
            self._note_reply(task, "next_step", operation.step)
        return goes_on

    def _publish(self, task: Task, operation: ops.Publish) -> None:
        task.account.steps = operation.step + 1
        self._finals[task.rank] = operation.value
        self._published += 1
        if self._progress is not None:
            self._progress(self._published)
        if self._scorer.publish(task.rank, operation.step, self._clock.now, operation.value):
            self._over = True

    def _now(self, task: Task, operation: ops.Now) -> float:
        self._note_reply(task, "now", task.account.steps)
        return float(self._clock.now)

    def _start(self, task: Task, operation: ops.Start) -> ops.Handle:
        handle = ops.Handle(self._handles[task.rank], operation.operation)
        self._handles[task.rank] += 1
        self._issue(task, operation.operation, handle)
        return handle

    def _pending_of(self, task: Task, handle: ops.Handle) -> Pending:
        pending = task.outstanding.get(handle.number)
        if pending is None or pending.handle is not handle:
            raise SchemeError(f"worker {task.rank} waits twice for one handle, or for somebody else's")
        return pending

    def _wait(self, task: Task, operation: ops.Wait) -> Any:
        pending = self._pending_of(task, operation.handle)
        begun_s, busy_s = self._clock.now, task.account.busy_s(self._clock.now)

        def resume(done: Pending) -> None:
            del task.outstanding[operation.handle.number]
            if task.number == 0:
                task.account.blocked(begun_s, self._clock.now, done.peer_s, busy_s)
            self._note(done, "wait", begun_s, operation.handle.number)
            if isinstance(done.reply, PeerLost):
                self._throw(task, done.reply)
                return
            if isinstance(done.operation, ops.Gradient):
                done.reply = self._gradient_value(done)
            self._advance(task, done.reply)

        if pending.done:
            self._clock.at(begun_s, resume, pending)
        else:
            pending.waiter = resume
            task.blocked = (begun_s, busy_s, pending)
        task.waiting = operation
        return _SUSPENDED

    def _wait_any(self, task: Task, operation: ops.WaitAny) -> Any:
        candidates = [self._pending_of(task, handle) for handle in operation.handles]
        if not candidates:
            raise SchemeError(f"worker {task.rank} waits for any of no handles")
        begun_s, busy_s = self._clock.now, task.account.busy_s(self._clock.now)

        def resume(done: Pending) -> None:
            first = next(p for p in candidates if p.done)
            for each in candidates:
                each.waiter = None
            if task.number == 0:
                task.account.blocked(begun_s, self._clock.now, first.peer_s, busy_s)
            assert first.handle is not None
            self._note(first, "wait_any", begun_s, first.handle.number)
            self._advance(task, first.handle)

        if any(p.done for p in candidates):
            self._clock.at(begun_s, resume, candidates[0])
        else:
            for each in candidates:
                each.waiter = resume
        task.waiting = operation
        return _SUSPENDED

    def _poll(self, task: Task, operation: ops.Poll) -> bool:
        pending = self._pending_of(task, operation.handle)
        if pending.done:
            self._note(pending, "poll", self._clock.now, operation.handle.number)
        return pending.done

    def _next_segment(self, task: Task, operation: ops.NextSegment) -> Any:
        pending = self._pending_of(task, operation.handle)
        if not isinstance(pending.operation, ops.Gradient):
            raise SchemeError(f"worker {task.rank} asks for the segments of {pending.name}, which has none")
        if pending.shown == len(self._fractions):
            return self._segments_end(task, operation, pending)
        name, start, stop = self._job.segments[pending.shown]
        ready_s = pending.start_s + self._fractions[pending.shown] * (pending.ready_s - pending.start_s)
        pending.shown += 1

        def resume(_: None) -> None:
            value = self._gradient_value(pending)
            part = value if self._deferred is None else value[..., start:stop]
            self._note(pending, "segment", self._clock.now, operation.handle.number)
            self._advance(task, ops.Segment(name, start, stop, part))

        self._clock.at(max(ready_s, self._clock.now), resume, None)
        task.waiting = operation
        return _SUSPENDED

    def _segments_end(self, task: Task, operation: ops.NextSegment, pending: Pending) -> Any:
        def resume(done: Pending) -> None:
            assert done.handle is not None
            del task.outstanding[done.handle.number]
            self._note(done, "segment", self._clock.now, done.handle.number)
            self._advance(task, None)

        if pending.done:
            self._clock.at(self._clock.now, resume, pending)
        else:
            pending.waiter = resume
        task.waiting = operation
        return _SUSPENDED


def _all(program: Program) -> tuple[Coroutine[Any, Any, None], ...]:
    return (program.main, *program.services)
