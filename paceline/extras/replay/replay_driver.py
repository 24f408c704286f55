"""Replay: a recorded run again, in one process and without a clock.

Every worker's coroutines resume in the recorded order, and a receive from anybody gets the message of the
recorded source. So an asynchronous run, real or simulated, gives the same iterates again. All-reduces are
added up in rank order, which a library need not do: there equality is up to rounding.

Needs all events of a run that lost no worker.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from torch import Tensor
from typing_extensions import override

from paceline.sim.drivers.job import Job
from paceline.sim.drivers.tasks.runner import SUSPENDED, CoroutineTask, InFlight, Runner
from paceline.sim.errors import RunError
from paceline.sim.program import operations as ops
from paceline.sim.program.averaging import COLLECTIVES, combined, mix_values, part
from paceline.sim.program.encoding import Payload, decoded
from paceline.sim.program.groups import members
from paceline.sim.program.worker import Program
from paceline.sim.records.run import Event
from paceline.sim.training.gradients import loss_given

_LATER: Final = object()
"""Stands for a reply that needs another worker's later operation."""

_ABOUT_HANDLES: Final = {"wait": ops.Wait, "wait_any": ops.WaitAny, "segment": ops.NextSegment}


class ShortRecordError(RunError):
    """A record that ends before a worker does."""


def replay(
    job: Job,
    programs: Sequence[Program],
    events: Sequence[Event],
    published: Callable[[int, ops.Publish], None] | None = None,
) -> list[Tensor]:
    """Run the programs as recorded.

    Args:
        job: of the recorded run.
        programs: the workers' coroutines, by rank, not yet started.
        events: of the run; each worker's in the order of its resumptions.
        published: called with every worker's rank and publication.

    Returns:
        Each worker's last published value.

    Raises:
        ShortRecordError: the record ends before a worker does.
        RunError: the record does not fit the programs, or a scheme raised.
    """
    run = _Replay(job, programs, events, published)
    try:
        return run.run()
    finally:
        for rank in run.tasks:
            run.close(rank)


class _Issued(InFlight):
    """An operation that takes time; ``number`` counts those of its kind (or its messages)."""

    number = 0


_Task = CoroutineTask[_Issued]


class _Replay(Runner[_Issued]):
    def __init__(
        self,
        job: Job,
        programs: Sequence[Program],
        events: Sequence[Event],
        published: Callable[[int, ops.Publish], None] | None,
    ) -> None:
        self._published = published
        super().__init__(job, dict(enumerate(programs)))
        self._rows: list[deque[Event]] = [deque() for _ in programs]
        for event in events:
            self._rows[event.worker].append(event)
        self._finals = [job.start] * job.workers
        self._losses: list[Tensor | None] = [None] * job.workers
        self._counts: list[Counter[str]] = [Counter() for _ in programs]
        self._messages: dict[tuple[int, int, str], dict[int, Payload]] = defaultdict(dict)
        self._sent: Counter[tuple[int, int, str]] = Counter()
        self._taken: Counter[tuple[int, int, str]] = Counter()
        self._inputs: dict[tuple[str, int], dict[int, Payload | None]] = defaultdict(dict)
        self._done: Counter[tuple[str, int]] = Counter()
        self.handlers |= {
            ops.NextStep: self._next_step,
            ops.Publish: self._publish,
            ops.Signal: lambda task, _: None,
            ops.Now: self._now,
            ops.BatchLoss: lambda task, _: loss_given(self._losses[task.rank], task.rank),
            ops.Poll: self._poll,
            **dict.fromkeys(_ABOUT_HANDLES.values(), self._suspend),
        }

    def run(self) -> list[Tensor]:
        for rank in self.tasks:
            self.begin(rank)
        going = True
        while going:
            going = False
            for rows in self._rows:
                while rows and self._follow(rows):
                    going = True
        for worker, rows in enumerate(self._rows):
            if rows:
                raise self._misfit(rows[0], "waits for what nobody has sent")
            if self.tasks[worker][0].alive:
                raise ShortRecordError(
                    f"the record ends before worker {worker} does: it needs all events of a whole run"
                )
        return self._finals

    def _misfit(self, row: Event, why: str) -> RunError:
        return RunError(
            f"the record does not fit: worker {row.worker}, {row.operation} at {row.end_s:g} s {why}"
        )

    def _waits_elsewhere(self, task: _Task, row: Event) -> RunError:
        waiting = "nothing" if task.waiting is None else ops.describe(task.waiting)
        return self._misfit(row, f"where the scheme waits in {waiting}")

    def _follow(self, rows: deque[Event]) -> bool:
        """Process the next row; False if it has to wait for another worker."""
        row = rows[0]
        task = self.tasks[row.worker][row.task]
        if row.handle >= 0:
            return self._about_handle(task, row, rows)
        issued = task.awaited
        if issued is None or issued.name != row.operation:
            raise self._waits_elsewhere(task, row)
        reply = self._result(issued, row)
        if reply is _LATER:
            return False
        rows.popleft()
        self.advance(task, self._handed_over(issued, reply))
        return True

    def _handed_over(self, issued: _Issued, reply: Any) -> Any:
        """The reply as the scheme receives it; a gradient brings its loss."""
        if isinstance(issued.operation, ops.Gradient):
            self._losses[issued.task.rank] = issued.loss
        return reply

    def _about_handle(self, task: _Task, row: Event, rows: deque[Event]) -> bool:
        issued = task.outstanding.get(row.handle)
        if issued is None:
            raise self._misfit(row, f"is about operation {row.handle}, which has not been started")
        if row.operation not in _ABOUT_HANDLES:
            issued.reply = self._result(issued, row)
            if issued.reply is _LATER:
                return False
            rows.popleft()
            return True
        if not isinstance(task.waiting, _ABOUT_HANDLES[row.operation]):
            raise self._waits_elsewhere(task, row)
        rows.popleft()
        if row.operation == "wait_any":
            self.advance(task, issued.handle)
        elif row.operation == "wait":
            del task.outstanding[row.handle]
            self.advance(task, self._handed_over(issued, issued.reply))
        else:
            self.advance(task, self._segment(issued, row.handle))
        return True

    def _segment(self, issued: _Issued, handle: int) -> ops.Segment | None:
        if issued.shown == len(self.job.layers.segments):
            del issued.task.outstanding[handle]
            return None
        name, start, stop = self.job.layers.segments[issued.shown]
        issued.shown += 1
        if issued.reply is None:
            issued.reply = self._gradient(issued)
        value: Tensor = self._handed_over(issued, issued.reply)
        return ops.Segment(name, start, stop, value if self.job.problem is None else value[..., start:stop])

    def _suspend(self, task: _Task, operation: ops.Operation[Any]) -> Any:
        task.waiting = operation
        return SUSPENDED

    @override
    def issue(self, task: _Task, operation: ops.Operation[Any], handle: ops.Handle | None) -> _Issued:
        worker, name = task.rank, ops.name_of(type(operation))
        issued = _Issued(task, name, operation, 0.0, handle)
        issued.number = self._counts[worker][name]
        self._counts[worker][name] += 1
        match operation:
            case ops.Send(destination=peer, value=value, tag=tag):
                self._messages[worker, peer, tag][self._sent[worker, peer, tag]] = value
                self._sent[worker, peer, tag] += 1
            case ops.Receive(source=peer, tag=tag) if peer != ops.ANY:
                issued.number = self._next_message(peer, worker, tag)
            case _ if isinstance(operation, (ops.Mix, *COLLECTIVES)):
                self._inputs[name, issued.number][worker] = getattr(operation, "value", None)
        if handle is None:
            task.awaited = issued
        else:
            task.outstanding[handle.number] = issued
        return issued

    def _next_message(self, source: int, destination: int, tag: str) -> int:
        self._taken[source, destination, tag] += 1
        return self._taken[source, destination, tag] - 1

    # --- replies --------------------------------------------------------------------------------

    def _result(self, issued: _Issued, row: Event) -> Any:
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
        operation: ops.Gradient = issued.operation  # type: ignore[assignment]
        number = issued.number // self.job.parts(operation)
        if self.job.problem is None:
            issued.loss = self.job.drawn_loss(issued.task.rank, number)
            return operation.point
        problem, index = self.job.problem.of_part(number, operation.part)
        value, issued.loss = problem.gradient(issued.task.rank, index, operation.point)
        return value

    def _mixed(self, issued: _Issued, operation: ops.Mix) -> Any:
        worker, pattern = issued.task.rank, operation.pattern
        known = self._inputs["mix", issued.number]
        if any(source not in known for source in pattern.sources[worker]):
            return _LATER
        others = [known[source] for source in pattern.sources[worker]]
        if trains := self.job.problem is not None:
            self._take("mix", issued.number)
        return mix_values(operation, worker, others, trains=trains)  # type: ignore[arg-type]

    def _received(self, issued: _Issued, operation: ops.Receive, source: int) -> Any:
        worker, tag = issued.task.rank, operation.tag
        messages = self._messages[source, worker, tag]
        if operation.source == ops.ANY:
            if self._sent[source, worker, tag] <= self._taken[source, worker, tag]:
                return _LATER
            issued.number = self._next_message(source, worker, tag)
        elif issued.number not in messages:
            return _LATER
        return ops.Message(source, decoded(messages.pop(issued.number)))

    def _collected(self, issued: _Issued, name: str) -> Any:
        known, operation, worker = self._inputs[name, issued.number], issued.operation, issued.task.rank
        group = members(operation.groups, self.job.workers, worker)  # type: ignore[attr-defined]
        if any(rank not in known for rank in group):
            return _LATER
        inputs = [known[rank] for rank in group]
        self._take(name, issued.number)
        if self.job.problem is None and isinstance(operation, ops.AllReduce):
            return decoded(inputs[0])  # type: ignore[arg-type]
        return part(operation, combined(operation, inputs, group), group.index(worker), len(group))

    def _take(self, name: str, number: int) -> None:
        self._done[name, number] += 1
        if self._done[name, number] == self.job.workers:
            del self._done[name, number], self._inputs[name, number]

    # --- operations that take no time -----------------------------------------------------------

    def _next_row(self, task: _Task, name: str, handle: int = -1) -> Event | None:
        rows = self._rows[task.rank]
        if rows and (rows[0].task, rows[0].operation, rows[0].handle) == (task.number, name, handle):
            return rows.popleft()
        return None

    def _next_step(self, task: _Task, operation: ops.NextStep) -> bool:
        rows = self._rows[task.rank]
        return not (rows and rows[0].step == operation.step and self._next_row(task, "next_step"))

    def _publish(self, task: _Task, operation: ops.Publish) -> None:
        self._finals[task.rank] = operation.value
        if self._published is not None:
            self._published(task.rank, operation)

    def _now(self, task: _Task, operation: ops.Now) -> float:
        row = self._next_row(task, "now")
        if row is None:
            raise RunError(
                f"the record does not fit: worker {task.rank} asks for a time that was not written down"
            )
        return row.end_s

    def _poll(self, task: _Task, operation: ops.Poll) -> bool:
        return self._next_row(task, "poll", operation.handle.number) is not None
