"""The cluster driver: one rank's coroutines on the wall clock, over gloo or NCCL.

All coroutines of a worker share this one thread and switch only at ``await``. Long gradients and blocking
waits run in helper threads, whose results come back through a queue.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

from torch import Tensor
from typing_extensions import override

from paceline.sim.drivers.tasks.clocked import ClockedRunner
from paceline.sim.drivers.tasks.runner import CoroutineTask
from paceline.sim.errors import PeerLost, RunError
from paceline.sim.program import operations as ops
from paceline.sim.program.averaging import COLLECTIVES
from paceline.sim.program.worker import Program
from paceline.sim.training.gradients import loss_given

from ..group.job_store import POLL_S
from ..group.store import Stopped
from ..transport.connections import CallResult, PeerGone
from .clocks import TO_START_S
from .computing import Computing, SegmentReady
from .exchanges import Exchanges
from .rank_log import Exchange, Exposure, LoggedOperation
from .rank_state import ClusterPending, Outages, Rank, saved_every
from .watchdog import Heartbeat

_GRACE_S = 0.5
"""Time for messages already sent by a dead peer to arrive."""


_Task = CoroutineTask[ClusterPending]


class ClusterDriver(ClockedRunner[ClusterPending]):
    """Runs one worker's program on the wall clock.

    Args:
        program: the worker's coroutines, not yet started.
        took_s: duration of a gradient before the run; 0: unknown, and every one may take long.
        die_at: number of the main coroutine's operation at which this process dies.
        progress: called with the number of steps published by this worker.
    """

    may_crash = True

    def __init__(
        self,
        rank: Rank,
        program: Program,
        *,
        took_s: float = 0.0,
        die_at: int | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__(rank.job, {rank.number: program}, rank.loop, ClusterPending)
        self._rank = rank
        self._die_at = die_at
        self._crash_at = rank.job.compute.crash_of(rank.number)
        self._progress = progress
        self._main = self.tasks[rank.number][0]
        self._breakdown = self._main.breakdown
        self._breakdown.go_on(rank.log.counts)
        rank.log.counts = self._breakdown
        self._unexplained: set[ClusterPending] = set()
        self._look_s = 0.0
        self._since_s = 0.0
        self._issued = 0
        self._computing = Computing(rank, took_s, self.complete, self._catch_up)
        self._outages = Outages(rank.whole, rank.log, rank.loop, rank.life)
        self._hold_at = sys.maxsize
        self._rank.loop.alarm(rank.life.hold_s, self._hold)
        self.exchanges = Exchanges(rank, self.complete, self.lose, self.gone)
        self.handlers[ops.NextStep] = self._begin_step
        self.handlers[ops.BatchLoss] = lambda task, _: loss_given(self._computing.loss, task.rank)
        self.add_timed(
            {
                ops.Gradient: self._computing.begin_gradient,
                ops.Mix: self.exchanges.begin_mix,
                ops.Send: self.exchanges.begin_send,
                ops.Receive: self.exchanges.begin_receive,
                **dict.fromkeys(COLLECTIVES, self.exchanges.begin_collective),
            }
        )

    @property
    def step(self) -> int:
        """Current step of the main coroutine."""
        return self._breakdown.steps

    def run(self) -> None:
        """Run the main coroutine to its end, and the services until the mains of all ranks have ended.

        Raises:
            Stopped: another rank has failed.
            Deadlock: no rank can continue.
            PeerLost: a rank died and the scheme needed it.
            RunError: the scheme raised or broke a rule.
        """
        number, watchdog = self._rank.number, self._rank.watchdog
        watchdog.start()
        try:
            while (early_s := -self._rank.loop.now) > 0:
                time.sleep(early_s)
            self.begin(number)
            while self._main.alive:
                self._turn(float("inf"))
            self._look(self._rank.loop.now)
            while not watchdog.all_ended:
                self._turn(POLL_S)
        finally:
            watchdog.close()
            self.close(number)

    @override
    def close(self, rank: int) -> None:
        if self._main.alive and self._main.blocked is not None:
            self._expose(*self._main.blocked, Exchange(), self._rank.loop.now)
        super().close(rank)
        in_flight = self._rank.in_flight
        in_flight -= {each for each in in_flight if ops.is_droppable(each.operation)}
        self._rank.log.ended_s = self._breakdown.ended_s

    # --- the loop -------------------------------------------------------------------------------

    def _catch_up(self) -> None:
        while self._turn(0.0):
            pass

    def _turn(self, limit_s: float) -> bool:
        """Do the next due thing, waiting for at most ``limit_s``; False if none came."""
        now_s = self._rank.loop.now
        if now_s >= self._look_s:
            self._look(now_s)
        call = self._rank.loop.ready()
        if call is None and (call := self._rank.loop.due(now_s)) is not None:
            self._since_s = now_s
        if call is not None:
            call()
            return True
        next_s = min(self._look_s, self._rank.loop.next_s)
        finished = self._rank.threads.next(min(next_s - now_s, limit_s), self._rank.in_flight)
        if finished is not None:
            self._deliver(finished)
        return finished is not None

    def _look(self, now_s: float) -> None:
        watchdog, main = self._rank.watchdog, self._main
        self._look_s = now_s + watchdog.period_s
        waiting = "the scheme's own code" if main.waiting is None else ops.describe(main.waiting)
        able = self._rank.loop.next_s < float("inf")
        watchdog.beat(Heartbeat(now_s, self._since_s, able, waiting, ended=not main.alive))
        for pending in list(self._unexplained):
            self._unexplained.discard(pending)
            if pending in self._rank.in_flight:
                self.gone(pending, -1)
        for rank in watchdog.dead:
            self._rank.died_s.setdefault(rank, now_s)
            if self._rank.standing is not None:  # what everybody does is discarded
                raise PeerLost(self.job.rank_of(rank), waiting)
        if self._rank.died_s:
            self._lose_old(now_s)

    def _lose_old(self, now_s: float) -> None:
        """Give up pattern operations that need a rank long dead; gloo reports the others itself."""
        for rank, died_s in self._rank.died_s.items():
            if now_s - died_s >= _GRACE_S:
                for pending in list(self._rank.in_flight):
                    if self.job.rank_of(rank) in pending.exchange.peers and not isinstance(
                        pending.operation, ops.Send | ops.Receive
                    ):
                        self.lose(pending, rank)

    def _deliver(self, finished: CallResult) -> None:
        in_flight = self._rank.in_flight
        if isinstance(finished.token, SegmentReady):
            if finished.token.pending in in_flight:
                self._computing.take_segment(finished.token.pending, finished.token.start, finished.result)
            return
        pending: ClusterPending = finished.token
        if pending not in in_flight:
            return
        if isinstance(finished.error, PeerGone):
            self.gone(pending, finished.error.rank)
            return
        in_flight.discard(pending)
        if finished.error is not None:
            if not isinstance(finished.error, Exception):
                raise finished.error
            where = f"worker {self._rank.number}: {pending.name}"
            raise RunError(f"{where} raised {finished.error}") from finished.error
        if isinstance(pending.operation, ops.Gradient):
            self._computing.take_gradient(pending, *finished.result)
        else:
            self.complete(pending)

    # --- ranks that die -------------------------------------------------------------------------

    @override
    def crashes(self, task: _Task, operation: ops.Operation[Any]) -> bool:
        self._since_s = self._rank.loop.now
        crashes = self._rank.log.timing.gradients == self._crash_at and ops.computes(operation)
        if crashes or self._issued == self._die_at:
            os._exit(1)
        self._issued += 1
        if self._rank.standing is not None:
            self._rank.standing.note(operation)
        return False

    def gone(self, pending: ClusterPending, rank: int) -> None:
        """Handle a connection lost by gloo under an operation, to ``rank`` or (-1) an unnamed peer."""
        self._rank.watchdog.check()  # a failing rank reports before it closes its connections
        control = self._rank.control
        gone = [rank] if rank >= 0 else sorted(control.dead()) or self._rank.transport.messages.lost_peers()
        if gone:
            control.note_death(gone[0])
            self._rank.died_s.setdefault(gone[0], self._rank.loop.now)
            self.lose(pending, gone[0])
        else:  # its message connection is not known to be closed yet
            self._unexplained.add(pending)

    def lose(self, pending: ClusterPending, rank: int) -> None:
        """Raise ``PeerLost`` where the operation is awaited, or here if the run cannot continue."""
        self._rank.in_flight.discard(pending)
        error = PeerLost(rank, pending.name)
        if not (self._rank.transport.survives or isinstance(pending.operation, ops.Send | ops.Receive)):
            raise error
        self.fail(pending, error)

    # --- what coroutines do ---------------------------------------------------------------------

    def _hold(self) -> None:
        """Somebody is back: tell the others after how many exchanges this worker can stop at the earliest."""
        assert self._rank.standing is not None
        self._hold_at = 1 + self._rank.standing.exchanges
        self._rank.control.put(f"hold/{self._rank.number}", self._hold_at)

    def _begin_step(self, task: _Task, operation: ops.NextStep) -> bool:
        self._outages.begin_step(operation.step)
        if self._rank.standing is not None and self._rank.standing.exchanges >= self._hold_at:
            self._hold_at = max(self._rank.control.meet("hold", self._hold_at, TO_START_S))
            if self._rank.standing.exchanges >= self._hold_at:
                raise Stopped  # the view is over
        return self._next_step(task, operation)

    @override
    def ended(self, task: _Task) -> None:
        super().ended(task)
        if task.number == 0:
            self._breakdown.ended_s = self._rank.loop.now

    @override
    def finish(self, pending: ClusterPending) -> None:
        if isinstance(pending.operation, ops.Gradient):
            self._computing.ended(pending)
        elif not isinstance(pending.operation, ops.Sleep | ops.AwaitSignal | ops.Encode | ops.Evaluate):
            pending.reply = self.exchanges.reply(pending)

    @override
    def blocked(self, pending: ClusterPending, start_s: float, busy_s: float, peer_s: float) -> None:
        self._expose(start_s, busy_s, pending.exchange, peer_s)

    def _expose(self, start_s: float, busy_s: float, exchange: Exchange, peer_s: float) -> None:
        """Log the block of the main coroutine until now, less the time hidden by gradients."""
        now_s = self._rank.loop.now
        exposed_s = (now_s - start_s) - (self._breakdown.busy_s(now_s) - busy_s)
        self._rank.log.exposures.append(Exposure(start_s, exposed_s, exchange, peer_s))

    @override
    def write(
        self,
        task: _Task,
        name: str,
        step: int,
        start_s: float,
        now_s: float,
        pending: ClusterPending | None = None,
        handle: int = -1,
        num_bytes: int = 0,
    ) -> None:
        peer, exchange = (-1, Exchange()) if pending is None else (pending.peer, pending.exchange)
        peer = self.job.rank_of(peer) if peer >= 0 else peer
        self._rank.log.rows.append(
            LoggedOperation(task.number, handle, step, name, start_s, now_s, num_bytes, peer, exchange)
        )

    @override
    def with_value(self, pending: ClusterPending, call: Callable[[Tensor], None]) -> None:
        self._computing.with_value(pending, call)

    @override
    def with_part(
        self, pending: ClusterPending, start: int, stop: int, call: Callable[[Tensor], None]
    ) -> None:
        self._computing.with_part(pending, start, stop, call)

    @override
    def next_segment(self, task: _Task, operation: ops.NextSegment) -> Any:
        self._computing.hurry(self.started(task, operation.handle))
        return super().next_segment(task, operation)

    @override
    def encode_s(self, operation: ops.Encode) -> float:
        """Encoding time of the padding only: the worker really encodes its own elements."""
        own = min(1.0, self.job.start.itemsize / self.job.bytes_per_parameter)
        return (1 - own) * super().encode_s(operation)

    @override
    def next_gradient_s(self, rank: int) -> float:
        return self._computing.next_s

    @override
    def over(self) -> bool:
        return not self.job.synchronous and self._rank.loop.now >= self.job.max_time_s

    @override
    def publish(self, task: _Task, operation: ops.Publish) -> None:
        self._breakdown.publish(operation.step, operation.notes)
        self._rank.log.final = operation.value
        if operation.leader is not None:
            self._rank.log.leader = operation.leader
        self._rank.log.publish(
            self.job.published(self._rank.number, self._rank.loop.now, self._breakdown.bytes_sent, operation)
        )
        if self._progress is not None:
            self._progress(self._breakdown.steps)
        if self._rank.standing is not None:
            self._rank.standing.publish(operation)
        life, every = self._rank.life, saved_every(self.job)
        if life.folder and every and self._breakdown.steps % every == 0:
            life.save(self._breakdown.steps, self.job.workers, operation.kept, self._rank.log)
