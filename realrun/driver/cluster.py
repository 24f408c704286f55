"""The cluster driver: one rank's coroutines on the wall clock, over gloo or NCCL.

All coroutines of a worker share this one thread and switch only at ``await``. Long gradients and blocking
waits run in helper threads; what they find comes back through a queue.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from paceline.sim.drivers.job import Job
from paceline.sim.drivers.tasks import SUSPENDED, CoroutineTask, Handles
from paceline.sim.errors import PeerLost, RunError, SchemeError
from paceline.sim.program import operations as ops
from paceline.sim.program.averaging import COLLECTIVES
from paceline.sim.program.worker import Program
from paceline.sim.records.accounting import TimeBreakdown
from paceline.sim.training.gradients import loss_given

from ..group.store import POLL_S, Control
from ..transport.connections import PeerGone
from ..transport.threads import CallResult, ThreadPool
from ..transport.transport import Transport
from .computing import Computing, SegmentReady
from .exchanges import Exchanges
from .loop import Loop
from .pending import ClusterPending
from .rank_log import Exchange, Exposure, LoggedOperation, Published, RankLog
from .watchdog import Heartbeat, Watchdog

_GRACE_S = 0.5
"""How long what a dead peer had already sent may take to arrive."""


class ClusterDriver:
    """Runs one worker's program on the wall clock.

    Args:
        job: what to run.
        rank: which worker this is.
        program: its coroutines, not yet started.
        transport, threads: how it talks.
        control, watch: what it shares with the other ranks.
        zero_s: when the run begins, on ``time.monotonic``.
        keeps: whether the value published at a step is needed for an evaluation.
        took_s: what a gradient took before the run; 0: that is not known, and every one may take long.
        die_at: number of the operation of the main coroutine at which this process dies.
        progress: called with the number of steps this worker has published.
    """

    def __init__(
        self,
        job: Job,
        rank: int,
        program: Program,
        *,
        transport: Transport,
        threads: ThreadPool,
        control: Control,
        watch: Watchdog,
        zero_s: float,
        keeps: Callable[[int], bool],
        took_s: float = 0.0,
        die_at: int | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self._job = job
        self._rank = rank
        self._transport = transport
        self._threads = threads
        self._control = control
        self._watch = watch
        self._loop = Loop(zero_s)
        self._keeps = keeps
        self._die_at = die_at
        self._crash = job.compute.crash_of(rank)
        self._progress = progress
        self._account = TimeBreakdown(rank)
        self._tasks: list[CoroutineTask[ClusterPending]] = [
            CoroutineTask(rank, number, coroutine, self._account)
            for number, coroutine in enumerate((program.main, *program.services))
        ]
        self.diary = RankLog(rank, job.start)
        self.in_flight: set[ClusterPending] = set()
        self._died_s: dict[int, float] = {}
        self._unexplained: set[ClusterPending] = set()
        self._look_s = 0.0
        self._since_s = 0.0
        self._issued = 0
        self._computing = Computing(
            job, rank, threads=threads, loop=self._loop, account=self._account, timing=self.diary.timing,
            in_flight=self.in_flight, took_s=took_s, complete=self.complete, turn=self._catch_up,
        )  # fmt: skip
        self._exchanges = Exchanges(
            job, rank, transport=transport, threads=threads, loop=self._loop, driver=self,
        )  # fmt: skip
        self.traffic = self._exchanges.traffic
        self.with_value = self._computing.with_value
        self.with_part = self._computing.with_part
        self.now_s = self._loop.now_s
        self._handles = handles = Handles[ClusterPending](job, self)
        self._handlers: dict[type, Callable[[CoroutineTask[ClusterPending], Any], Any]] = {
            ops.NextStep: self._next_step,
            ops.Publish: self._publish,
            ops.Now: lambda task, operation: self._write_reply(task, "now", self._account.steps),
            ops.BatchLoss: lambda task, operation: loss_given(self._computing.loss, rank),
            ops.Start: handles.start,
            ops.Wait: handles.wait,
            ops.WaitAny: handles.wait_any,
            ops.Poll: handles.poll,
            ops.NextSegment: self._next_segment,
        }
        self._timed: dict[type, Callable[[ClusterPending], None]] = {
            ops.Gradient: self._computing.begin_gradient,
            ops.Sleep: self._computing.begin_sleep,
            ops.Mix: self._exchanges.begin_mix,
            ops.Send: self._exchanges.begin_send,
            ops.Receive: self._exchanges.begin_receive,
            **dict.fromkeys(COLLECTIVES, self._exchanges.begin_collective),
        }

    @property
    def collectives_at_once(self) -> int:
        """The most that were under way."""
        return self._exchanges.collectives_at_once

    @property
    def step(self) -> int:
        """The step that the main coroutine is in."""
        return self._account.steps

    def run(self) -> None:
        """Run the main coroutine to its end, and the services until the mains of all ranks have ended.

        Raises:
            Stopped: another rank has failed.
            Deadlock: nobody can go on.
            PeerLost: a rank died and the scheme needed it.
            RunError: the scheme raised or broke a rule.
        """
        try:
            while (early_s := -self.now_s()) > 0:
                time.sleep(early_s)
            for task in self._tasks[1:] + self._tasks[:1]:
                self.advance(task, None)
            while self._tasks[0].alive:
                self._turn(float("inf"))
            self._control.put(f"ended/{self._rank}", self.now_s())
            while not self._all_ended():
                self._turn(POLL_S)
        finally:
            self._close()

    def _all_ended(self) -> bool:
        dead = self._control.dead()
        return all(r in dead or self._control.has(f"ended/{r}") for r in range(self._job.workers))

    def _close(self) -> None:
        main = self._tasks[0]
        if main.alive and main.blocked is not None:
            start_s, busy_s, _ = main.blocked
            self._expose(start_s, busy_s, Exchange(), self.now_s())
        for task in self._tasks:
            task.alive = False
            task.coroutine.close()
        self.diary.steps, self.diary.ended_s = self._account.steps, self._account.ended_s

    # --- the loop -------------------------------------------------------------------------------

    def _catch_up(self) -> None:
        """Do all that there is to do now."""
        while self._turn(0.0):
            pass

    def _turn(self, limit_s: float) -> bool:
        """Do the next thing that there is to do, waiting for it for ``limit_s`` at most; whether it came."""
        now_s = self.now_s()
        if now_s >= self._look_s:
            self._look(now_s)
        call = self._loop.ready()
        if call is None and (call := self._loop.alarm(now_s)) is not None:
            self._since_s = now_s
        if call is not None:
            call()
            return True
        next_s = min(self._look_s, self._loop.next_s)
        finished = self._threads.next(min(next_s - now_s, limit_s), self.in_flight)
        if finished is not None:
            self._deliver(finished)
        return finished is not None

    def at(self, time_s: float, call: Callable[[ClusterPending], None], pending: ClusterPending) -> None:
        """Call later, never from within this call."""
        if time_s <= self.now_s():
            self._loop.soon(lambda: call(pending))
        else:
            self._loop.at(time_s, lambda: call(pending))

    def _look(self, now_s: float) -> None:
        self._look_s = now_s + self._watch.period_s
        main = self._tasks[0]
        if not main.alive:
            self._watch.look_at_others(now_s)
        else:
            waiting = "the scheme's own code" if main.waiting is None else ops.describe(main.waiting)
            self._watch.look(Heartbeat(now_s, self._since_s, self._loop.next_s < float("inf"), waiting))
        for pending in list(self._unexplained):
            self._unexplained.discard(pending)
            if pending in self.in_flight:
                self.gone(pending, -1)
        for rank in self._control.dead():
            self._died_s.setdefault(rank, now_s)
        if self._died_s:
            self._lose_old(now_s)

    def _lose_old(self, now_s: float) -> None:
        """Give up pattern operations that need someone long dead; gloo tells of the others itself."""
        for rank, died_s in self._died_s.items():
            if now_s - died_s >= _GRACE_S:
                for pending in list(self.in_flight):
                    if rank in pending.exchange.peers and not isinstance(
                        pending.operation, ops.Send | ops.Receive
                    ):
                        self.lose(pending, rank)

    def _deliver(self, finished: CallResult) -> None:
        if isinstance(finished.token, SegmentReady):
            if finished.token.pending in self.in_flight:
                self._computing.known(finished.token.pending, finished.token.start, finished.result)
            return
        pending: ClusterPending = finished.token
        if pending not in self.in_flight:
            return
        if isinstance(finished.error, PeerGone):
            self.gone(pending, finished.error.rank)
            return
        self.in_flight.discard(pending)
        if finished.error is not None:
            if not isinstance(finished.error, Exception):
                raise finished.error
            raise RunError(f"worker {self._rank}: {pending.name} raised {finished.error}") from finished.error
        if isinstance(pending.operation, ops.Gradient):
            self._computing.computed(pending, *finished.result)
        else:
            self.complete(pending)

    def known_dead(self, rank: int) -> bool:
        """Whether this worker has heard of that one's death."""
        return rank in self._died_s

    def gone(self, pending: ClusterPending, rank: int) -> None:
        """gloo has lost a connection that an operation needs; -1 where it does not tell to whom."""
        self._watch.check()  # a rank that fails tells why before it closes its connections
        gone = [rank] if rank >= 0 else sorted(self._control.dead()) or self._transport.messages.lost_peers()
        if gone:
            self._control.note_death(gone[0])
            self._died_s.setdefault(gone[0], self.now_s())
            self.lose(pending, gone[0])
        else:  # its connection for messages is not known to be closed yet
            self._unexplained.add(pending)

    def lose(self, pending: ClusterPending, rank: int) -> None:
        """Raise ``PeerLost`` where an operation is waited for, or here if the run cannot go on."""
        self.in_flight.discard(pending)
        error = PeerLost(rank, pending.name)
        if not (self._transport.survives or isinstance(pending.operation, ops.Send | ops.Receive)):
            raise error
        if pending.handle is None:
            self.throw(pending.task, error)
        else:
            pending.reply = error
            self._complete_handle(pending)

    # --- coroutines -----------------------------------------------------------------------------

    def advance(self, task: CoroutineTask[ClusterPending], reply: Any) -> None:
        """Run a coroutine until it has to wait."""
        self._run(task, partial(task.coroutine.send, reply))

    def throw(self, task: CoroutineTask[ClusterPending], error: RunError) -> None:
        """Raise an error where a coroutine waits."""
        self._run(task, partial(task.coroutine.throw, error))

    def _run(self, task: CoroutineTask[ClusterPending], resume: Callable[[], Any]) -> None:
        if not task.alive:
            return
        task.waiting = task.blocked = None
        while True:
            try:
                operation = resume()
            except StopIteration:
                self._ended(task)
                return
            except RunError:
                raise
            except Exception as raised:
                where = f"worker {self._rank}, step {self._account.steps}"
                raise RunError(f"{where}: the scheme raised {type(raised).__name__}: {raised}") from raised
            if task.number == 0:
                self._since_s = self.now_s()
                crashes = self.diary.timing.gradients == self._crash and ops.computes(operation)
                if crashes or (self._die_at is not None and self._issued == self._die_at):
                    os._exit(1)
                self._issued += 1
            handler = self._handlers.get(type(operation))
            if handler is None:
                self.issue(task, operation, None)
                return
            reply = handler(task, operation)
            if reply is SUSPENDED:
                return
            resume = partial(task.coroutine.send, reply)

    def _ended(self, task: CoroutineTask[ClusterPending]) -> None:
        task.alive = False
        if task.outstanding:
            names = ", ".join(p.name for p in task.outstanding.values())
            raise SchemeError(f"worker {self._rank} ended without waiting for what it had started: {names}")
        if task.number == 0:
            self._account.ended_s = self.now_s()

    # --- operations that take time --------------------------------------------------------------

    def issue(
        self, task: CoroutineTask[ClusterPending], operation: ops.Operation[Any], handle: ops.Handle | None
    ) -> ClusterPending:
        """Let an operation that takes time begin."""
        begin = self._timed.get(type(operation))
        if begin is None:
            frame = getattr(task.coroutine, "cr_frame", None)
            where = f" ({frame.f_code.co_filename}:{frame.f_lineno})" if frame else ""
            raise SchemeError(f"worker {self._rank} awaited {operation!r}, which is no operation{where}")
        pending = ClusterPending(task, ops.name_of(type(operation)), operation, self.now_s(), handle)
        if handle is None:
            task.waiting = operation
            if task.number == 0:
                pending.busy_s = self._account.busy_s(pending.start_s)
                task.blocked = (pending.start_s, pending.busy_s, pending)
        else:
            task.outstanding[handle.number] = pending
        begin(pending)
        return pending

    def complete(self, pending: ClusterPending) -> None:
        """An operation is complete now."""
        task = pending.task
        if not task.alive:
            return
        operation = pending.operation
        if isinstance(operation, ops.Gradient):
            self._computing.ended(pending)
        elif not isinstance(operation, ops.Sleep):
            pending.reply = self._exchanges.reply(pending)
        if pending.handle is not None:
            self._complete_handle(pending)
            return
        if task.number == 0 and not isinstance(operation, ops.Gradient):
            peer_s = self.now_s() if isinstance(operation, ops.Sleep) else pending.start_s
            self._expose(pending.start_s, pending.busy_s, pending.exchange, peer_s)
        self.note(pending, pending.name, pending.start_s)
        if isinstance(operation, ops.Gradient):
            self.with_value(pending, partial(self.advance, task))
        else:
            self.advance(task, pending.reply)

    def _complete_handle(self, pending: ClusterPending) -> None:
        pending.done = True
        self.note(pending, pending.name, pending.start_s)
        if pending.waiter is not None:
            waiter, pending.waiter = pending.waiter, None
            waiter(pending)

    def blocked(
        self, task: CoroutineTask[ClusterPending], start_s: float, busy_s: float, pending: ClusterPending
    ) -> None:
        """A main coroutine was blocked on a started operation from ``start_s`` until now."""
        if task.number == 0:
            self._expose(start_s, busy_s, pending.exchange, pending.start_s)

    def _expose(self, start_s: float, busy_s: float, exchange: Exchange, peer_s: float) -> None:
        """The main coroutine was blocked until now; what no gradient hid is waiting or communicating."""
        now_s = self.now_s()
        exposed_s = (now_s - start_s) - (self._account.busy_s(now_s) - busy_s)
        self.diary.exposures.append(Exposure(start_s, exposed_s, exchange, peer_s))

    def note(self, pending: ClusterPending, name: str, start_s: float) -> None:
        """A row about an operation: of its completion, or of the coroutine's resumption."""
        num_bytes = pending.bytes if name == pending.name else 0
        handle = -1 if pending.handle is None else pending.handle.number
        self.diary.bytes_sent += num_bytes
        self.diary.rows.append(
            LoggedOperation(
                pending.task.number, handle, self._account.steps, name, start_s, self.now_s(),
                num_bytes, pending.peer, pending.exchange,
            )
        )  # fmt: skip

    def _write_reply(self, task: CoroutineTask[ClusterPending], name: str, step: int) -> float:
        """A row about an operation that took no time, whose reply depends on the clock; returns the time."""
        now_s = self.now_s()
        self.diary.rows.append(LoggedOperation(task.number, -1, step, name, now_s, now_s, 0, -1, Exchange()))
        return now_s

    def _next_segment(self, task: CoroutineTask[ClusterPending], operation: ops.NextSegment) -> Any:
        if (pending := task.outstanding.get(operation.handle.number)) is not None:
            self._computing.hurry(pending)
        return self._handles.next_segment(task, operation)

    # --- operations that take no time -----------------------------------------------------------

    def _next_step(self, task: CoroutineTask[ClusterPending], operation: ops.NextStep) -> bool:
        limit = self._job.max_iterations
        goes_on = limit is None or operation.step < limit
        if not self._job.synchronous and self.now_s() >= self._job.max_time_s:
            goes_on = False
        if not goes_on:
            self._write_reply(task, "next_step", operation.step)
        return goes_on

    def _publish(self, task: CoroutineTask[ClusterPending], operation: ops.Publish) -> None:
        self._account.steps = operation.step + 1
        self.diary.final = operation.value
        if operation.leader is not None:
            self.diary.leader = operation.leader
        models = (operation.value, operation.leader) if self._keeps(operation.step) else ()
        self.diary.published.append(
            Published(self.now_s(), operation.step, self.diary.bytes_sent, dict(operation.notes), *models)
        )
        if self._progress is not None:
            self._progress(self._account.steps)
