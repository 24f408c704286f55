"""Gradients under way in virtual time: when they end, and their values once somebody needs them."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ..program import operations as ops
from ..traffic.clock import Clock, WakeUpDelays
from ..training.gradients import Deferred, loss_given
from .failures import Failures
from .job import Job
from .tasks.clocked import Pending


class GradientsInFlight:
    """The gradients of all workers of a run.

    Args:
        job: of the run.
        clock, delays: virtual time, and how late its ends are noticed.
        failures: workers that begin a gradient anew.
        complete: called with a gradient at its end.

    Attributes:
        begun: number of gradients of each worker.
    """

    def __init__(
        self,
        job: Job,
        clock: Clock,
        delays: WakeUpDelays,
        failures: Failures,
        complete: Callable[[Pending], None],
    ) -> None:
        self._job, self._clock, self._delays, self._failures = job, clock, delays, failures
        self._complete = complete
        self._deferred = Deferred(job.problem) if job.problem else None
        self._received: dict[int, int] = {}
        self.begun = [0] * job.workers

    def next_s(self, rank: int) -> float:
        """Seconds of a worker's next gradient, including its whole forward pass."""
        return self._job.computing.duration_s(self._job.rank_of(rank), self.begun[rank])

    def begin(self, pending: Pending) -> None:
        """Begin a worker's next gradient; one that is stepped ends with its last segment."""
        operation: ops.Gradient = pending.operation  # type: ignore[assignment]
        place = pending.task.rank
        index, rank = self.begun[place], self._job.rank_of(place)
        took_s = (1 - pending.ahead) * self.next_s(place) / self._job.parts(operation)
        self.begun[place] += self._job.ends_batch(operation)
        pending.ticket = index
        if self._deferred is not None:
            pending.ticket = self._deferred.ask(rank, index, operation.point, operation.part)
        pending.ready_s = self._failures.end_s(place, index, self._clock.now, took_s)
        if pending.stepped:
            return
        pending.task.breakdown.computing(self._clock.now)
        late_s = self._delays.after_gradient_s(place, self.begun[place])
        self._clock.at(pending.ready_s + late_s, self._complete, pending)

    def value(self, pending: Pending) -> Tensor:
        """The value of a gradient; without training the point itself."""
        if pending.reply is None:
            if self._deferred is not None:
                pending.reply = self._deferred.take(pending.ticket)
            else:
                self._received[pending.task.rank] = pending.ticket
                pending.reply = pending.operation.point  # type: ignore[attr-defined]
        value: Tensor = pending.reply
        return value

    def loss(self, rank: int) -> Tensor:
        """The loss of the gradient whose value a worker has had last; raises ``SchemeError`` before one."""
        if self._deferred is not None:
            return loss_given(self._deferred.loss(self._job.rank_of(rank)), rank)
        received = self._received.get(rank)
        return loss_given(None if received is None else self._job.drawn_loss(rank, received), rank)
