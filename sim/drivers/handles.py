"""Started operations: starting, waiting, polling, and the segments of a gradient."""

from __future__ import annotations

from typing import Any, Final, Protocol

import torch

from sim import operations as ops
from sim.drivers.clock import Clock
from sim.drivers.pending import Pending, Task
from sim.errors import PeerLost, RunError, SchemeError
from sim.job import Job

Tensor = torch.Tensor

SUSPENDED: Final = object()
"""What a handler returns where the coroutine has to wait."""


class Driver(Protocol):
    """What handles need of the event driver."""

    def advance(self, task: Task, reply: Any) -> None:
        """Run a coroutine until it has to wait."""

    def throw(self, task: Task, error: RunError) -> None:
        """Raise an error where a coroutine waits."""

    def issue(self, task: Task, operation: ops.Operation[Any], handle: ops.Handle | None) -> Pending:
        """Let an operation that takes time begin."""

    def note(self, pending: Pending, name: str, start_s: float, handle: int) -> None:
        """Write a row about a started operation."""

    def gradient_value(self, pending: Pending) -> Tensor:
        """The value of a started gradient."""


class Handles:
    """The operations on operations."""

    def __init__(self, job: Job, clock: Clock, driver: Driver) -> None:
        self._job = job
        self._clock = clock
        self._driver = driver
        self._made = [0] * job.workers
        self._fractions = job.ready_fractions()

    def start(self, task: Task, operation: ops.Start) -> ops.Handle:
        """Start an operation."""
        handle = ops.Handle(self._made[task.rank], operation.operation)
        self._made[task.rank] += 1
        self._driver.issue(task, operation.operation, handle)
        return handle

    def _pending_of(self, task: Task, handle: ops.Handle) -> Pending:
        pending = task.outstanding.get(handle.number)
        if pending is None or pending.handle is not handle:
            raise SchemeError(f"worker {task.rank} waits twice for one handle, or for somebody else's")
        return pending

    def wait(self, task: Task, operation: ops.Wait) -> Any:
        """Wait for a started operation's reply."""
        pending = self._pending_of(task, operation.handle)
        begun_s, busy_s = self._clock.now, task.account.busy_s(self._clock.now)

        def resume(done: Pending) -> None:
            del task.outstanding[operation.handle.number]
            if task.number == 0:
                task.account.blocked(begun_s, self._clock.now, done.peer_s, busy_s)
            self._driver.note(done, "wait", begun_s, operation.handle.number)
            if isinstance(done.reply, PeerLost):
                self._driver.throw(task, done.reply)
                return
            if isinstance(done.operation, ops.Gradient):
                done.reply = self._driver.gradient_value(done)
            self._driver.advance(task, done.reply)

        if pending.done:
            self._clock.at(begun_s, resume, pending)
        else:
            pending.waiter = resume
            task.blocked = (begun_s, busy_s, pending)
        task.waiting = operation
        return SUSPENDED

    def wait_any(self, task: Task, operation: ops.WaitAny) -> Any:
        """Wait for the first of several."""
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
            self._driver.note(first, "wait_any", begun_s, first.handle.number)
            self._driver.advance(task, first.handle)

        if any(p.done for p in candidates):
            self._clock.at(begun_s, resume, candidates[0])
        else:
            for each in candidates:
                each.waiter = resume
        task.waiting = operation
        return SUSPENDED

    def poll(self, task: Task, operation: ops.Poll) -> bool:
        """Whether a started operation is complete."""
        pending = self._pending_of(task, operation.handle)
        if pending.done:
            self._driver.note(pending, "poll", self._clock.now, operation.handle.number)
        return pending.done

    def next_segment(self, task: Task, operation: ops.NextSegment) -> Any:
        """Wait for the next segment of a started gradient."""
        pending = self._pending_of(task, operation.handle)
        if not isinstance(pending.operation, ops.Gradient):
            raise SchemeError(f"worker {task.rank} asks for the segments of {pending.name}, which has none")
        if pending.shown == len(self._fractions):
            return self._segments_end(task, operation, pending)
        name, start, stop = self._job.segments[pending.shown]
        ready_s = pending.start_s + self._fractions[pending.shown] * (pending.ready_s - pending.start_s)
        pending.shown += 1

        def resume(_: None) -> None:
            value = self._driver.gradient_value(pending)
            part = value[..., start:stop]
            self._driver.note(pending, "segment", self._clock.now, operation.handle.number)
            self._driver.advance(task, ops.Segment(name, start, stop, part))

        self._clock.at(max(ready_s, self._clock.now), resume, None)
        task.waiting = operation
        return SUSPENDED

    def _segments_end(self, task: Task, operation: ops.NextSegment, pending: Pending) -> Any:
        def resume(done: Pending) -> None:
            assert done.handle is not None
            del task.outstanding[done.handle.number]
            self._driver.note(done, "segment", self._clock.now, done.handle.number)
            self._driver.advance(task, None)

        if pending.done:
            self._clock.at(self._clock.now, resume, pending)
        else:
            pending.waiter = resume
        task.waiting = operation
        return SUSPENDED
