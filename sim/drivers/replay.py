"""Replay: a recorded run again, in one process and without a clock.

Every worker's coroutines are resumed in the order in which the record says that they resumed, and a
receive from anybody gets the message of the recorded source. So an asynchronous run, real or simulated,
gives the same iterates again. All-reduces are added up in rank order, which a library need not do:
there equality is up to rounding.

Needs all events of a run in which nobody was lost.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from ..errors import RunError
from ..program import operations as ops
from ..program.averaging import COLLECTIVES, combined, part, weighted_sum
from ..program.encoding import Payload, decoded
from ..program.groups import members
from ..program.worker import Program
from ..records.run import Event
from ..training.gradients import loss_given
from .job import Job

_LATER: Final = object()
_ABOUT_HANDLES: Final = frozenset({"wait", "wait_any", "segment"})


def replay(job: Job, programs: Sequence[Program], events: Sequence[Event]) -> list[Tensor]:
    """Run the programs as recorded.

    Args:
        job: of the recorded run.
        programs: the workers' coroutines, by rank, not yet started.
        events: of the run; each worker's in the order in which it resumed.

    Returns:
        Each worker's last published value.

    Raises:
        RunError: the record does not fit the programs, or is not whole.
    """
    run = _Replay(job, programs, events)
    try:
        return run.run()
    finally:
        for program in programs:
            for coroutine in (program.main, *program.services):
                coroutine.close()


@dataclass(slots=True, eq=False)
class _Task:
    worker: int
    number: int
    coroutine: Coroutine[Any, Any, None]
    waiting: ops.Operation[Any] | None = None
    issued: _Issued | None = None  # the awaited operation, if it is one that takes time
    alive: bool = True


@dataclass(slots=True, eq=False)
class _Issued:
    """An operation that takes time; ``number`` counts those of its kind (or its messages)."""

    task: _Task
    operation: ops.Operation[Any]
    number: int
    handle: ops.Handle | None
    reply: Any = None
    loss: Tensor | None = None
    shown: int = 0


class _Replay:
    def __init__(self, job: Job, programs: Sequence[Program], events: Sequence[Event]) -> None:
        self._job = job
        self._rows: list[deque[Event]] = [deque() for _ in programs]
        for event in events:
            self._rows[event.worker].append(event)
        self._tasks = [
            [_Task(worker, number, c) for number, c in enumerate((program.main, *program.services))]
            for worker, program in enumerate(programs)
        ]
        self._finals = [job.start] * job.workers
        self._losses: list[Tensor | None] = [None] * job.workers
        self._counts: list[Counter[str]] = [Counter() for _ in programs]
        self._started: list[dict[int, _Issued]] = [{} for _ in programs]
        self._messages: dict[tuple[int, int, str], dict[int, Payload]] = defaultdict(dict)
        self._sent: Counter[tuple[int, int, str]] = Counter()
        self._taken: Counter[tuple[int, int, str]] = Counter()
        self._inputs: dict[tuple[str, int], dict[int, Payload | None]] = defaultdict(dict)
        self._done: Counter[tuple[str, int]] = Counter()
        self._handlers: dict[type, Callable[[_Task, Any], Any]] = {
            ops.NextStep: self._next_step,
            ops.Publish: self._publish,
            ops.Now: self._now,
            ops.BatchLoss: lambda task, operation: loss_given(self._losses[task.worker], task.worker),
            ops.Start: self._start,
            ops.Poll: self._poll,
        }

    def run(self) -> list[Tensor]:
        for tasks in self._tasks:
            for task in tasks[1:] + tasks[:1]:
                self._advance(task, None)
        going = True
        while going:
            going = False
            for rows in self._rows:
                while rows and self._resume(rows):
                    going = True
        for worker, rows in enumerate(self._rows):
            if rows:
                raise self._misfit(worker, rows[0], "waits for what nobody has sent")
            if self._tasks[worker][0].alive:
                raise RunError(
                    f"the record ends before worker {worker} does: it needs all events of a whole run"
                )
        return self._finals

    def _misfit(self, worker: int, row: Event, what: str) -> RunError:
        return RunError(
            f"the record does not fit: worker {worker}, {row.operation} at {row.end_s:g} s {what}"
        )

    def _resume(self, rows: deque[Event]) -> bool:
        """Do what the next row says; False where it has to wait for another worker."""
        row = rows[0]
        task = self._tasks[row.worker][row.task]
        if row.handle >= 0:
            return self._about_handle(task, row, rows)
        issued = task.issued
        if issued is None or ops.name_of(type(issued.operation)) != row.operation:
            raise self._misfit(row.worker, row, f"where the scheme waits in {self._doing(task)}")
        reply = self._result(issued, row)
        if reply is _LATER:
            return False
        rows.popleft()
        self._advance(task, self._handed_over(issued, reply))
        return True

    def _handed_over(self, issued: _Issued, reply: Any) -> Any:
        """The reply, which the scheme gets now; with a gradient goes its loss."""
        if isinstance(issued.operation, ops.Gradient):
            self._losses[issued.task.worker] = issued.loss
        return reply

    def _doing(self, task: _Task) -> str:
        return "nothing" if task.waiting is None else ops.describe(task.waiting)

    def _about_handle(self, task: _Task, row: Event, rows: deque[Event]) -> bool:
        issued = self._started[row.worker].get(row.handle)
        if issued is None or issued.handle is None:
            raise self._misfit(
                row.worker, row, f"is about operation {row.handle}, which has not been started"
            )
        if row.operation not in _ABOUT_HANDLES:
            issued.reply = self._result(issued, row)
            if issued.reply is _LATER:
                return False
            rows.popleft()
            return True
        waited = {"wait": ops.Wait, "wait_any": ops.WaitAny, "segment": ops.NextSegment}[row.operation]
        if not isinstance(task.waiting, waited):
            raise self._misfit(row.worker, row, f"where the scheme waits in {self._doing(task)}")
        rows.popleft()
        if row.operation == "wait_any":
            self._advance(task, issued.handle)
        elif row.operation == "wait":
            del self._started[row.worker][row.handle]
            self._advance(task, self._handed_over(issued, issued.reply))
        else:
            self._advance(task, self._segment(issued))
        return True

    def _segment(self, issued: _Issued) -> ops.Segment | None:
        if issued.shown == len(self._job.segments):
            assert issued.handle is not None
            del self._started[issued.task.worker][issued.handle.number]
            return None
        name, start, stop = self._job.segments[issued.shown]
        issued.shown += 1
        if issued.reply is None:
            issued.reply = self._gradient(issued)
        value: Tensor = self._handed_over(issued, issued.reply)
        return ops.Segment(name, start, stop, value if self._job.problem is None else value[..., start:stop])

    # --- coroutines -----------------------------------------------------------------------------

    def _advance(self, task: _Task, reply: Any) -> None:
        task.waiting = task.issued = None
        while True:
            try:
                operation = task.coroutine.send(reply)
            except StopIteration:
                task.alive = False
                return
            handler = self._handlers.get(type(operation))
            if handler is None:
                task.waiting = operation
                if not isinstance(operation, ops.Wait | ops.WaitAny | ops.NextSegment):
                    task.issued = self._issue(task, operation, None)
                return
            reply = handler(task, operation)

    def _issue(self, task: _Task, operation: ops.Operation[Any], handle: ops.Handle | None) -> _Issued:
        worker, name = task.worker, ops.name_of(type(operation))
        number = self._counts[worker][name]
        self._counts[worker][name] += 1
        match operation:
            case ops.Send(destination=peer, value=value, tag=tag):
                self._messages[worker, peer, tag][self._sent[worker, peer, tag]] = value
                self._sent[worker, peer, tag] += 1
            case ops.Receive(source=peer, tag=tag) if peer != ops.ANY:
                number = self._next_message(peer, worker, tag)
            case _ if isinstance(operation, (ops.Mix, *COLLECTIVES)):
                self._inputs[name, number][worker] = getattr(operation, "value", None)
        return _Issued(task, operation, number, handle)

    def _next_message(self, source: int, destination: int, tag: str) -> int:
        self._taken[source, destination, tag] += 1
        return self._taken[source, destination, tag] - 1

    # --- replies --------------------------------------------------------------------------------

    def _result(self, issued: _Issued, row: Event) -> Any:
        """The reply of an operation that the record says is complete, or ``_LATER``."""
        operation = issued.operation
        if isinstance(operation, ops.Gradient):
            return self._gradient(issued) if issued.reply is None else issued.reply
        if isinstance(operation, ops.Mix):
            return self._mixed(issued, operation)
        if isinstance(operation, ops.Receive):
            return self._received(issued, operation, row.peer)
        if isinstance(operation, COLLECTIVES):
            return self._collected(issued, row.operation)
        return None

    def _gradient(self, issued: _Issued) -> Tensor:
        point: Tensor = issued.operation.point  # type: ignore[attr-defined]
        if self._job.problem is None:
            issued.loss = torch.zeros(1)
            return point
        value, issued.loss = self._job.problem.gradient(issued.task.worker, issued.number, point)
        return value

    def _mixed(self, issued: _Issued, operation: ops.Mix) -> Any:
        worker, pattern = issued.task.worker, operation.pattern
        known = self._inputs["mix", issued.number]
        if any(source not in known for source in pattern.sources[worker]):
            return _LATER
        if self._job.problem is None:
            return decoded(operation.value)
        others = [decoded(known[source]) for source in pattern.sources[worker]]  # type: ignore[arg-type]
        self._take("mix", issued.number)
        return weighted_sum(pattern.own[worker], decoded(operation.value), pattern.weights[worker], others)

    def _received(self, issued: _Issued, operation: ops.Receive, source: int) -> Any:
        worker, tag = issued.task.worker, operation.tag
        messages = self._messages[source, worker, tag]
        if operation.source == ops.ANY:
            if self._sent[source, worker, tag] <= self._taken[source, worker, tag]:
                return _LATER
            issued.number = self._next_message(source, worker, tag)
        elif issued.number not in messages:
            return _LATER
        return ops.Message(source, decoded(messages.pop(issued.number)))

    def _collected(self, issued: _Issued, name: str) -> Any:
        known, operation, worker = self._inputs[name, issued.number], issued.operation, issued.task.worker
        group = members(operation.groups, self._job.workers, worker)  # type: ignore[attr-defined]
        if any(rank not in known for rank in group):
            return _LATER
        inputs = [known[rank] for rank in group]
        self._take(name, issued.number)
        if self._job.problem is None and isinstance(operation, ops.AllReduce):
            return inputs[0]
        return part(operation, combined(operation, inputs, group), group.index(worker), len(group))

    def _take(self, name: str, number: int) -> None:
        """Forget the inputs of a pattern operation once every worker has its result."""
        self._done[name, number] += 1
        if self._done[name, number] == self._job.workers:
            del self._done[name, number], self._inputs[name, number]

    # --- operations that take no time -----------------------------------------------------------

    def _told(self, task: _Task, name: str, handle: int = -1) -> Event | None:
        """The next row, if it is the reply to ``name``."""
        rows = self._rows[task.worker]
        if rows and (rows[0].task, rows[0].operation, rows[0].handle) == (task.number, name, handle):
            return rows.popleft()
        return None

    def _next_step(self, task: _Task, operation: ops.NextStep) -> bool:
        rows = self._rows[task.worker]
        return not (rows and rows[0].step == operation.step and self._told(task, "next_step"))

    def _publish(self, task: _Task, operation: ops.Publish) -> None:
        self._finals[task.worker] = operation.value

    def _now(self, task: _Task, operation: ops.Now) -> float:
        told = self._told(task, "now")
        if told is None:
            raise RunError(
                f"the record does not fit: worker {task.worker} asks for a time that was not written down"
            )
        return told.end_s

    def _start(self, task: _Task, operation: ops.Start) -> ops.Handle:
        worker = task.worker
        handle = ops.Handle(self._counts[worker]["handle"], operation.operation)
        self._counts[worker]["handle"] += 1
        self._started[worker][handle.number] = self._issue(task, operation.operation, handle)
        return handle

    def _poll(self, task: _Task, operation: ops.Poll) -> bool:
        return self._told(task, "poll", operation.handle.number) is not None
