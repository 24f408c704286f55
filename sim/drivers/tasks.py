"""Started operations under every clock: starting, waiting, polling, and the segments of a gradient."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final, Generic, Protocol, TypeVar

from torch import Tensor

from ..errors import PeerLost, RunError, SchemeError
from ..program import operations as ops
from ..program.operations import Handle, Operation
from ..records.accounting import TimeBreakdown
from .job import Job


class InFlight:
    """An operation that takes time, from its start to its completion."""

    # Class attributes, not slots: most operations change few of them, and a million are made a minute.
    ready_s: float
    bytes = 0
    peer = -1
    busy_s = 0.0
    done = False
    reply: Any = None
    version = -1  # of the tensor in use, when the operation started
    shown = 0  # segments of a gradient that the scheme has seen
    waiter: Callable[[Any], None] | None = None

    def __init__(
        self,
        task: CoroutineTask[Any],
        name: str,
        operation: Operation[Any],
        start_s: float,
        handle: Handle | None,
    ) -> None:
        self.task = task
        self.name = name
        self.operation = operation
        self.start_s = self.ready_s = start_s
        self.handle = handle


_P = TypeVar("_P", bound=InFlight)


class CoroutineTask(Generic[_P]):
    """One coroutine of one worker: the main one (number 0) or a service."""

    __slots__ = ("account", "alive", "blocked", "coroutine", "number", "outstanding", "rank", "waiting")

    def __init__(
        self, rank: int, number: int, coroutine: Coroutine[Any, Any, None], account: TimeBreakdown
    ) -> None:
        self.rank = rank
        self.number = number
        self.coroutine = coroutine
        self.account = account
        self.alive = True
        self.waiting: Operation[Any] | None = None  # what it is blocked in
        self.blocked: tuple[float, float, _P] | None = None  # since when, busy_s then, on what
        self.outstanding: dict[int, _P] = {}  # started, and not yet waited for


SUSPENDED: Final = object()
"""What a handler returns where the coroutine has to wait."""


class TaskHost(Protocol[_P]):
    """What handles need of a driver."""

    def now_s(self) -> float:
        """Seconds since the run began."""

    def at(self, time_s: float, call: Callable[[_P], None], pending: _P) -> None:
        """Call later, never from within this call."""

    def advance(self, task: CoroutineTask[_P], reply: Any) -> None:
        """Run a coroutine until it has to wait."""

    def throw(self, task: CoroutineTask[_P], error: RunError) -> None:
        """Raise an error where a coroutine waits."""

    def issue(self, task: CoroutineTask[_P], operation: ops.Operation[Any], handle: ops.Handle | None) -> _P:
        """Let an operation that takes time begin."""

    def note(self, pending: _P, name: str, start_s: float) -> None:
        """Write a row about a started operation."""

    def blocked(self, task: CoroutineTask[_P], start_s: float, busy_s: float, pending: _P) -> None:
        """A main coroutine was blocked on an operation from ``start_s`` until now."""

    def with_value(self, pending: _P, call: Callable[[Tensor], None]) -> None:
        """Call with the value of a started gradient as soon as it is known."""

    def with_part(self, pending: _P, start: int, stop: int, call: Callable[[Tensor], None]) -> None:
        """Call with elements [start, stop) of a started gradient as soon as they are known."""


class Handles(Generic[_P]):
    """The operations on operations."""

    def __init__(self, job: Job, driver: TaskHost[_P]) -> None:
        self._job = job
        self._driver = driver
        self._made = [0] * job.workers
        self._fractions = job.ready_fractions()

    def start(self, task: CoroutineTask[_P], operation: ops.Start) -> ops.Handle:
        """Start an operation."""
        handle = ops.Handle(self._made[task.rank], operation.operation)
        self._made[task.rank] += 1
        self._driver.issue(task, operation.operation, handle)
        return handle

    def _pending_of(self, task: CoroutineTask[_P], handle: ops.Handle) -> _P:
        pending = task.outstanding.get(handle.number)
        if pending is None or pending.handle is not handle:
            raise SchemeError(f"worker {task.rank} waits twice for one handle, or for somebody else's")
        return pending

    def wait(self, task: CoroutineTask[_P], operation: ops.Wait) -> Any:
        """Wait for a started operation's reply."""
        driver, pending = self._driver, self._pending_of(task, operation.handle)
        begun_s = driver.now_s()
        busy_s = task.account.busy_s(begun_s)

        def resume(done: _P) -> None:
            del task.outstanding[operation.handle.number]
            driver.blocked(task, begun_s, busy_s, done)
            driver.note(done, "wait", begun_s)
            if isinstance(done.reply, PeerLost):
                driver.throw(task, done.reply)
            elif isinstance(done.operation, ops.Gradient):
                driver.with_value(done, lambda value: driver.advance(task, value))
            else:
                driver.advance(task, done.reply)

        task.waiting = operation
        if pending.done:
            driver.at(begun_s, resume, pending)
        else:
            pending.waiter = resume
            task.blocked = (begun_s, busy_s, pending)
        return SUSPENDED

    def wait_any(self, task: CoroutineTask[_P], operation: ops.WaitAny) -> Any:
        """Wait for the first of several."""
        driver = self._driver
        candidates = [self._pending_of(task, handle) for handle in operation.handles]
        if not candidates:
            raise SchemeError(f"worker {task.rank} waits for any of no handles")
        begun_s = driver.now_s()
        busy_s = task.account.busy_s(begun_s)

        def resume(_: _P) -> None:
            first = next(p for p in candidates if p.done)
            for each in candidates:
                each.waiter = None
            driver.blocked(task, begun_s, busy_s, first)
            driver.note(first, "wait_any", begun_s)
            driver.advance(task, first.handle)

        task.waiting = operation
        if any(p.done for p in candidates):
            driver.at(begun_s, resume, candidates[0])
        else:
            for each in candidates:
                each.waiter = resume
            task.blocked = (begun_s, busy_s, candidates[0])
        return SUSPENDED

    def poll(self, task: CoroutineTask[_P], operation: ops.Poll) -> bool:
        """Whether a started operation is complete."""
        pending = self._pending_of(task, operation.handle)
        if pending.done:
            self._driver.note(pending, "poll", self._driver.now_s())
        return pending.done

    def next_segment(self, task: CoroutineTask[_P], operation: ops.NextSegment) -> Any:
        """Wait for the next segment of a started gradient."""
        driver, pending = self._driver, self._pending_of(task, operation.handle)
        if not isinstance(pending.operation, ops.Gradient):
            raise SchemeError(f"worker {task.rank} asks for the segments of {pending.name}, which has none")
        task.waiting = operation
        if pending.shown == len(self._fractions):
            self._after_segments(task, pending)
            return SUSPENDED
        name, start, stop = self._job.segments[pending.shown]
        ready_s = pending.start_s + self._fractions[pending.shown] * (pending.ready_s - pending.start_s)
        pending.shown += 1

        def show(value: Tensor) -> None:
            driver.note(pending, "segment", driver.now_s())
            driver.advance(task, ops.Segment(name, start, stop, value))

        def due(pending: _P) -> None:
            driver.with_part(pending, start, stop, show)

        driver.at(max(ready_s, driver.now_s()), due, pending)
        return SUSPENDED

    def _after_segments(self, task: CoroutineTask[_P], pending: _P) -> None:
        driver = self._driver

        def resume(done: _P) -> None:
            assert done.handle is not None
            del task.outstanding[done.handle.number]
            driver.note(done, "segment", driver.now_s())
            driver.with_value(done, lambda _: driver.advance(task, None))

        if pending.done:
            driver.at(driver.now_s(), resume, pending)
        else:
            pending.waiter = resume
