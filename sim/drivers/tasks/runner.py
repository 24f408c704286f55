"""The loop that advances coroutines under every driver, and the operations that they have in flight."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, NoReturn, TypeVar

from ...config.user_code import call as user_code
from ...errors import RunError, SchemeError
from ...program import operations as ops
from ...program.operations import Handle, Operation
from ...program.worker import Program
from ...records.accounting import TimeBreakdown
from ...records.run import UNTIMED_ENCODING
from ..job import Job


class InFlight:
    """An operation that takes time, from its start to its completion."""

    # Class attributes, not slots: most operations change few of them, and a million begin a minute.
    ready_s: float
    peer_s: float  # when the last peer that is needed had started, as far as that is known
    sends: Sequence[tuple[int, int]] = ()  # destination and bytes of each of its messages
    peer = -1
    busy_s = 0.0
    done = False
    reply: Any = None
    loss: Any = None  # Tensor [1] that a gradient came with, or None; in lockstep also its number
    version = -1  # of the tensor in use, when the operation started
    shown = 0  # segments of a gradient that the scheme has seen
    stepped = False  # a gradient computes a segment only while the scheme waits for it
    ahead = 0.0  # of a gradient's duration, what its forward pass has taken before it began
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
        self.start_s = self.ready_s = self.peer_s = start_s
        self.handle = handle

    def lasts_like(self, cause: InFlight) -> None:
        """Take over from an operation of a service, which has ended now, whom it waited for."""
        self.peer_s = cause.peer_s

    def check_peer(self, peer: int, workers: int) -> None:
        """Raise ``SchemeError`` where ``peer`` is this worker itself, or none of the ``workers``."""
        if not 0 <= peer < workers or peer == self.task.rank:
            raise SchemeError(f"worker {self.task.rank}: {self.name} with worker {peer} is not possible")

    def check_sent(self) -> None:
        """Raise ``SchemeError`` where the scheme has written into a value since it began to be sent."""
        if self.version >= 0 and self.operation.value._version != self.version:  # type: ignore[attr-defined]
            raise SchemeError(f"worker {self.task.rank} wrote in place into a value that was being sent")


_P = TypeVar("_P", bound=InFlight)


@dataclass(slots=True, eq=False)
class CoroutineTask(Generic[_P]):
    """One coroutine of one worker: the main one (number 0) or a service."""

    rank: int
    number: int
    coroutine: Coroutine[Any, Any, None]
    breakdown: TimeBreakdown
    alive: bool = True
    waiting: Operation[Any] | None = None  # what it is blocked in
    awaited: _P | None = None  # what that is about
    blocked: tuple[float, float] | None = None  # since when, and busy_s then: a main coroutine only
    latest: _P | None = None  # what it awaited last: a service only
    outstanding: dict[int, _P] = field(default_factory=dict)  # started, and not yet waited for


SUSPENDED: Final = object()
"""Reply of a handler if the coroutine has to wait."""


def _raise_with_line(error: SchemeError, coroutine: Coroutine[Any, Any, None]) -> NoReturn:
    text = user_code.with_line(str(error), coroutine)
    if text == str(error):
        raise error
    raise SchemeError(text) from error


class Runner(ABC, Generic[_P]):
    """The loop that advances the coroutines of some workers, under every driver.

    Args:
        job: what they run.
        programs: rank -> that worker's coroutines, not yet started.

    Attributes:
        tasks: rank -> its coroutines, the main one first.
        handlers: kind of an operation -> what answers it: called with the task and the operation, returns
            the reply, or ``SUSPENDED`` where the coroutine has to wait. All others begin in ``issue``.
        may_crash: whether ``crashes`` is called before every operation of a main coroutine.
        most_at_once: operations that a coroutine may ask for until it has to wait.
    """

    may_crash = False
    most_at_once = sys.maxsize

    def __init__(self, job: Job, programs: Mapping[int, Program]) -> None:
        self.job = job
        self.tasks: dict[int, list[CoroutineTask[_P]]] = {}
        for rank, program in programs.items():
            breakdown = TimeBreakdown()
            self.tasks[rank] = [
                CoroutineTask(rank, number, coroutine, breakdown)
                for number, coroutine in enumerate((program.main, *program.services))
            ]
        self.handlers: dict[type, Callable[[CoroutineTask[_P], Any], Any]] = {
            ops.Start: self.start,
            ops.Encode: self._encode,
        }
        self._handles: Counter[int] = Counter()

    @abstractmethod
    def issue(self, task: CoroutineTask[_P], operation: Operation[Any], handle: Handle | None) -> _P:
        """Begin an operation, started (with a handle) or awaited; ``SchemeError`` if unsupported."""

    def crashes(self, task: CoroutineTask[_P], operation: Operation[Any]) -> bool:
        """Whether the worker dies instead of doing this operation of its main coroutine."""
        return False

    def begin(self, rank: int) -> None:
        """Start a worker's coroutines, services first."""
        tasks = self.tasks[rank]
        for task in tasks[1:] + tasks[:1]:
            self.advance(task, None)

    def close(self, rank: int) -> None:
        """End a worker's coroutines where they are."""
        for task in self.tasks[rank]:
            task.alive = False
            task.coroutine.close()

    def advance(self, task: CoroutineTask[_P], reply: Any) -> None:
        """Run a coroutine until it has to wait."""
        self._resume(task, task.coroutine.send, reply)

    def throw(self, task: CoroutineTask[_P], error: RunError) -> None:
        """Raise an error where a coroutine waits."""
        self._resume(task, task.coroutine.throw, error)

    def _resume(self, task: CoroutineTask[_P], resume: Callable[[Any], Any], value: Any) -> None:
        if not task.alive:
            return
        task.waiting = task.awaited = task.blocked = None
        handlers, may_crash = self.handlers, self.may_crash and task.number == 0
        for _ in range(self.most_at_once):
            try:
                operation = resume(value)
            except StopIteration:
                self.ended(task)
                return
            except RunError:
                raise
            except Exception as error:
                where = f"worker {task.rank}, step {task.breakdown.steps}"
                raise RunError(f"{where}: the scheme raised {user_code.format_error(error)}") from error
            if may_crash and self.crashes(task, operation):
                return
            handler = handlers.get(type(operation))
            try:
                if handler is None:
                    task.waiting = operation
                    self.issue(task, operation, None)
                    return
                value = handler(task, operation)
            except SchemeError as error:
                _raise_with_line(error, task.coroutine)
            if value is SUSPENDED:
                return
            resume = task.coroutine.send
        text = "goes on and on while no time passes, and would never end; wait for something"
        raise SchemeError(user_code.with_line(f"worker {task.rank} {text}", task.coroutine))

    def ended(self, task: CoroutineTask[_P]) -> None:
        """Retire a coroutine; ``SchemeError`` if it has not waited for operations that it started."""
        task.alive = False
        started = (each for each in task.outstanding.values() if not ops.is_droppable(each.operation))
        if names := ", ".join(each.name for each in started):
            raise SchemeError(f"worker {task.rank} ended without waiting for what it had started: {names}")

    def start(self, task: CoroutineTask[_P], operation: ops.Start) -> Handle:
        """Start an operation."""
        handle = Handle(self._handles[task.rank], operation.operation)
        self._handles[task.rank] += 1
        self.issue(task, operation.operation, handle)
        return handle

    def _encode(self, task: CoroutineTask[_P], operation: ops.Encode) -> Any:
        if self.job.encode_s(operation) is None:
            task.breakdown.operations.add(UNTIMED_ENCODING)
            return None
        task.waiting = operation
        self.issue(task, operation, None)
        return SUSPENDED

    def started(self, task: CoroutineTask[_P], handle: Handle) -> _P:
        """Operation of a handle; ``SchemeError`` if it was waited for, or started by another coroutine."""
        pending = task.outstanding.get(handle.number)
        if pending is None or pending.handle is not handle:
            raise SchemeError(f"worker {task.rank} waits twice for one handle, or for somebody else's")
        return pending
