"""Operations that take time on a clock, virtual or real; coroutines wait for those they have started."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from torch import Tensor
from typing_extensions import override

from ...errors import PeerLost, RunError, SchemeError
from ...program import operations as ops
from ...program.encoding import Payload
from ...program.operations import Handle, Operation
from ...program.worker import Program
from ...records.run import HALF_SUM
from ..job import Job
from .runner import SUSPENDED, CoroutineTask, InFlight, Runner

_P = TypeVar("_P", bound=InFlight)


_BUSY: Final = frozenset({ops.Forward, ops.Encode, ops.Evaluate, ops.SpendRound})
"""Operations beside gradients in which a worker computes."""


class Pending(InFlight):
    """An operation in virtual time, in parts: complete when the latest part is.

    Setting ``parts`` above 0 requires ``on_settled``, which is called when every part has its time.
    """

    parts = 0
    on_settled: Callable[[Pending], None]
    values: list[Payload | None]
    ticket = 0

    def sent(self, time_s: float, peer_s: float) -> None:
        """One send is complete at ``time_s``."""
        if time_s > self.ready_s:
            self.ready_s = time_s
        if peer_s > self.peer_s:
            self.peer_s = peer_s
        self.parts -= 1
        if self.parts == 0:
            self.on_settled(self)

    def received(self, slot: int, sender: Pending, source: int, time_s: float, peer_s: float) -> None:
        """One receive is complete at ``time_s``."""
        self.values[slot] = sender.operation.value  # type: ignore[attr-defined]
        self.peer = source
        self.sent(time_s, peer_s)


class TimeSource(Protocol):
    """A clock."""

    @property
    def now(self) -> float:
        """Seconds since the run began."""

    def at(self, time_s: float, callback: Callable[[_P], None], value: _P) -> None:
        """Call ``callback(value)`` at ``time_s``, never from within this call."""


class ClockedRunner(Runner[_P]):
    """Advances coroutines on a clock: operations take time, and coroutines wait for those they have started.

    ``in_flight`` is the driver's class of operations in flight; ``writes``: whether operations are recorded.
    """

    writes = True

    def __init__(
        self, job: Job, programs: Mapping[int, Program], clock: TimeSource, in_flight: type[_P]
    ) -> None:
        super().__init__(job, programs)
        self._time = clock
        self._in_flight = in_flight
        self._fractions = job.layers.ready_fractions(job.compute.accumulate)
        self._fractions_of_part = job.layers.ready_fractions(1)
        self._ahead: dict[int, dict[int, float]] = defaultdict(dict)  # forward, by worker and segment
        self._signals: Counter[tuple[int, str]] = Counter()  # not yet awaited
        self._awaiting: dict[tuple[int, str], deque[_P]] = defaultdict(deque)
        self._begins: dict[type, tuple[str, Callable[[_P], None]]] = {}
        self.handlers |= {
            ops.NextStep: self._next_step,
            ops.Publish: self.publish,
            ops.Now: self._now,
            ops.Signal: self._signal,
            ops.Wait: self._wait,
            ops.WaitAny: self._wait_any,
            ops.Poll: self._poll,
            ops.NextSegment: self.next_segment,
        }
        self.add_timed(
            {
                ops.AwaitSignal: self._begin_await,
                ops.Forward: self._begin_forward,
                **dict.fromkeys((*(_BUSY - {ops.Forward}), ops.Sleep), self._begin_span),
            }
        )

    def add_timed(self, begins: Mapping[type, Callable[[_P], None]]) -> None:
        """Let operations of these kinds take time; each is begun by its function."""
        self._begins |= {kind: (ops.name_of(kind), begin) for kind, begin in begins.items()}

    # --- what a driver adds ---------------------------------------------------------------------

    @abstractmethod
    def publish(self, task: CoroutineTask[_P], operation: ops.Publish) -> None:
        """Take a worker's published value."""

    @abstractmethod
    def over(self) -> bool:
        """Whether no worker is to begin another step."""

    @abstractmethod
    def next_gradient_s(self, rank: int) -> float:
        """Seconds of a worker's next gradient, including its whole forward pass."""

    @abstractmethod
    def finish(self, pending: _P) -> None:
        """Set the reply of an operation that is complete."""

    @abstractmethod
    def with_value(self, pending: _P, call: Callable[[Tensor], None]) -> None:
        """Call with the value of a gradient as soon as it is known."""

    @abstractmethod
    def with_part(self, pending: _P, start: int, stop: int, call: Callable[[Tensor], None]) -> None:
        """Call with elements [start, stop) of a started gradient as soon as they are known."""

    @abstractmethod
    def blocked(self, pending: _P, start_s: float, busy_s: float, peer_s: float) -> None:
        """Account for a main coroutine that was blocked on an operation from ``start_s`` until now."""

    @abstractmethod
    def write(
        self,
        task: CoroutineTask[_P],
        name: str,
        step: int,
        start_s: float,
        now_s: float,
        pending: _P | None = None,
        handle: int = -1,
        num_bytes: int = 0,
    ) -> None:
        """Record a row about an operation that ends now."""

    # --- operations that take time --------------------------------------------------------------

    @override
    def issue(self, task: CoroutineTask[_P], operation: Operation[Any], handle: Handle | None) -> _P:
        known = self._begins.get(type(operation))
        if known is None:
            frame = getattr(task.coroutine, "cr_frame", None)
            where = f" ({frame.f_code.co_filename}:{frame.f_lineno})" if frame else ""
            raise SchemeError(f"worker {task.rank} awaited {operation!r}, which is no operation{where}")
        name, begin = known
        pending = self._in_flight(task, name, operation, self._time.now, handle)
        if handle is not None:
            task.outstanding[handle.number] = pending
        if type(operation) is ops.Gradient:
            # Its forward pass has taken this share already.
            pending.ahead = sum(self._ahead.pop(task.rank, {}).values()) * self.job.parts(operation)
            pending.stepped = operation.stepped and handle is not None
        elif handle is None and task.number == 0:
            pending.busy_s = task.breakdown.busy_s(pending.start_s)
            task.blocked, task.awaited = (pending.start_s, pending.busy_s), pending
        task.breakdown.operations.add(name)
        if type(operation) is ops.AllReduce and ops.adds_in_half(operation):
            task.breakdown.operations.add(HALF_SUM)
        begin(pending)
        return pending

    def _begin_forward(self, pending: _P) -> None:
        task = pending.task
        operation: ops.Forward = pending.operation  # type: ignore[assignment]
        ahead = self.job.layers.forward_of(operation, self.job.compute.accumulate)
        through = self._ahead[task.rank]
        if twice := through.keys() & ahead.keys():
            name = self.job.layers.segments[min(twice)][0]
            raise SchemeError(f"worker {task.rank} goes forward through {name} twice before a gradient")
        through |= ahead
        task.breakdown.computing(pending.start_s)
        pending.ready_s = pending.start_s + sum(ahead.values()) * self.next_gradient_s(task.rank)
        self._time.at(pending.ready_s, self.complete, pending)

    def encode_s(self, operation: ops.Encode) -> float:
        """Seconds of an encoding."""
        return float(self.job.encode_s(operation) or 0.0)

    def _begin_span(self, pending: _P) -> None:
        operation: Any = pending.operation
        if type(operation) in _BUSY:
            pending.task.breakdown.computing(pending.start_s)
        took_s = self.encode_s(operation) if isinstance(operation, ops.Encode) else operation.duration_s
        pending.ready_s = pending.start_s + took_s
        self._time.at(pending.ready_s, self.complete, pending)

    def _begin_await(self, pending: _P) -> None:
        key = pending.task.rank, pending.operation.name  # type: ignore[attr-defined]
        if self._signals[key]:
            self._signals[key] -= 1
            self._signalled(pending)
        else:
            self._awaiting[key].append(pending)

    def _signal(self, task: CoroutineTask[_P], operation: ops.Signal) -> None:
        """Wake the longest waiter for a signal of this name, or keep the signal."""
        key = task.rank, operation.name
        if waiting := self._awaiting[key]:
            self._signalled(waiting.popleft(), task.latest)
        else:
            self._signals[key] += 1

    def _signalled(self, pending: _P, cause: _P | None = None) -> None:
        pending.ready_s = pending.peer_s = self._time.now
        if cause is not None:
            pending.lasts_like(cause)
        self._time.at(pending.ready_s, self.complete, pending)

    def complete(self, pending: _P) -> None:
        """End an operation now."""
        task = pending.task
        if not task.alive or pending.done:
            return
        kind = type(pending.operation)
        if kind in _BUSY:
            task.breakdown.computed(self._time.now)
        else:
            self.finish(pending)
        if pending.handle is not None:
            self.complete_handle(pending)
            return
        if task.number:
            task.latest = pending
        elif kind is not ops.Gradient and kind not in _BUSY:
            peer_s = self._time.now if kind is ops.Sleep else pending.peer_s
            self.blocked(pending, pending.start_s, pending.busy_s, peer_s)
        if self.writes:
            self.note(pending, pending.name, pending.start_s)
        elif pending.sends:  # saves a call, for large runs
            task.breakdown.send(pending.sends)
        if kind is ops.Gradient:
            self.with_value(pending, partial(self.advance, task))
        else:
            self.advance(task, pending.reply)

    def complete_handle(self, pending: _P) -> None:
        """End a started operation now; its reply is set."""
        pending.done = True
        self.note(pending, pending.name, pending.start_s)
        if pending.waiter is not None:
            waiter, pending.waiter = pending.waiter, None
            waiter(pending)

    def fail(self, pending: _P, error: RunError) -> None:
        """Raise an error where an operation is waited for."""
        if pending.handle is None:
            self.throw(pending.task, error)
        else:
            pending.reply = error
            self.complete_handle(pending)

    def note(self, pending: _P, name: str, start_s: float) -> None:
        """Record that an operation is complete, or (by another ``name``) that its coroutine resumes."""
        task = pending.task
        num_bytes = task.breakdown.send(pending.sends) if name == pending.name else 0
        if self.writes:
            handle = -1 if pending.handle is None else pending.handle.number
            self.write(task, name, task.breakdown.steps, start_s, self._time.now, pending, handle, num_bytes)

    # --- operations about started ones ----------------------------------------------------------

    def _wait(self, task: CoroutineTask[_P], operation: ops.Wait) -> Any:
        pending = self.started(task, operation.handle)
        begun_s = self._time.now
        busy_s = task.breakdown.busy_s(begun_s)

        def resume(done: _P) -> None:
            del task.outstanding[operation.handle.number]
            self._waited(done, "wait", begun_s, busy_s)
            if isinstance(done.reply, PeerLost):
                self.throw(task, done.reply)
            elif isinstance(done.operation, ops.Gradient):
                self.with_value(done, partial(self.advance, task))
            else:
                self.advance(task, done.reply)

        task.waiting = operation
        if pending.done:
            self._time.at(begun_s, resume, pending)
        else:
            pending.waiter = resume
            task.blocked, task.awaited = (begun_s, busy_s), pending
        return SUSPENDED

    def _wait_any(self, task: CoroutineTask[_P], operation: ops.WaitAny) -> Any:
        candidates = [self.started(task, handle) for handle in operation.handles]
        if not candidates:
            raise SchemeError(f"worker {task.rank} waits for any of no handles")
        begun_s = self._time.now
        busy_s = task.breakdown.busy_s(begun_s)

        def resume(_: _P) -> None:
            first = next(p for p in candidates if p.done)
            for each in candidates:
                each.waiter = None
            self._waited(first, "wait_any", begun_s, busy_s)
            self.advance(task, first.handle)

        task.waiting = operation
        if any(p.done for p in candidates):
            self._time.at(begun_s, resume, candidates[0])
        else:
            for each in candidates:
                each.waiter = resume
            task.blocked, task.awaited = (begun_s, busy_s), candidates[0]
        return SUSPENDED

    def _waited(self, pending: _P, name: str, begun_s: float, busy_s: float) -> None:
        if pending.task.number == 0:
            self.blocked(pending, begun_s, busy_s, pending.peer_s)
        self.note(pending, name, begun_s)

    def _poll(self, task: CoroutineTask[_P], operation: ops.Poll) -> bool:
        pending = self.started(task, operation.handle)
        if pending.done:
            self.note(pending, "poll", self._time.now)
        return pending.done

    def next_segment(self, task: CoroutineTask[_P], operation: ops.NextSegment) -> Any:
        """Wait for the next segment of a started gradient; after the last one, for its end."""
        pending = self.started(task, operation.handle)
        if not isinstance(pending.operation, ops.Gradient):
            raise SchemeError(f"worker {task.rank} asks for the segments of {pending.name}, which has none")
        if not self._fractions:
            raise SchemeError(
                f"worker {task.rank} asks for the segments of a gradient that stands for a payload, of whose "
                "layers nothing is known; leave workload.payload and timing_only out"
            )
        task.waiting = operation
        now_s = self._time.now
        if pending.shown == len(self._fractions):
            if pending.stepped and not pending.done:
                self.complete_handle(pending)

            def end(done: _P) -> None:
                del task.outstanding[operation.handle.number]
                self.note(done, "segment", self._time.now)
                self.with_value(done, lambda _: self.advance(task, None))

            if pending.done:
                self._time.at(now_s, end, pending)
            else:
                pending.waiter = end
            return SUSPENDED
        name, start, stop = self.job.layers.segments[pending.shown]
        shown, stepped = pending.shown, pending.stepped
        pending.shown += 1
        fractions = self._fractions if pending.operation.part is None else self._fractions_of_part
        if stepped:
            task.breakdown.computing(now_s)
            from_s, done = now_s, fractions[shown - 1] if shown else pending.ahead
        else:
            from_s, done = pending.start_s, pending.ahead
        left = (fractions[shown] - done) / (1 - pending.ahead)
        ready_s = from_s + left * (pending.ready_s - pending.start_s)

        def show(value: Tensor) -> None:
            if stepped:
                task.breakdown.computed(self._time.now)
            self.note(pending, "segment", self._time.now)
            self.advance(task, ops.Segment(name, start, stop, value))

        self._time.at(max(ready_s, now_s), lambda due: self.with_part(due, start, stop, show), pending)
        return SUSPENDED

    # --- operations that take no time, and whose reply depends on the clock ---------------------

    def _next_step(self, task: CoroutineTask[_P], operation: ops.NextStep) -> bool:
        limit = self.job.max_iterations
        goes_on = not self.over() and (limit is None or operation.step < limit)
        if not goes_on:
            now_s = self._time.now
            self.write(task, "next_step", operation.step, now_s, now_s)
        return goes_on

    def _now(self, task: CoroutineTask[_P], operation: ops.Now) -> float:
        now_s = float(self._time.now)  # schemes get no numpy numbers
        self.write(task, "now", task.breakdown.steps, now_s, now_s)
        return now_s
