"""Gradients on the wall clock.

A gradient is padded: it lasts as long as the compute model says, so that the real computation is hidden
inside, at a moment of its own for each worker. It is computed in a helper thread, so that services answer
meanwhile; or in the loop's own, without two changes of threads, where it is short and there is nothing else
that the loop could do. Then the loop goes on from within the backward pass, whenever that has made
a segment.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch
from torch import Tensor

from paceline.sim.errors import SchemeError
from paceline.sim.program import operations as ops
from paceline.sim.workloads.workload import Evaluated

from ..transport.device import CPU, SideStream
from ..transport.threads import CallResult
from .pending import ClusterPending
from .rank import Rank

_OVERRUN: Final = 1.01
"""A gradient that takes longer than this times its duration in the compute model counts as an overrun."""
_ROOM: Final = 4.0
"""The last rank's gradient begins this many times its real duration before it is due."""
_BRIEF_S: Final = 0.05
"""A gradient that takes longer than this is computed in a helper thread: the loop must answer meanwhile."""


def compute_offset_s(rank: int, workers: int, duration_s: float, took_s: float) -> float:
    """How long after its start a padded gradient is really computed.

    Anywhere within its time will do. Workers that share a machine and start together would all want its
    cores at that moment, and their messages with them, which is not what the scenario is about.

    Args:
        rank, workers: whose it is.
        duration_s: what the compute model says.
        took_s: what a gradient really takes.
    """
    return rank / workers * max(0.0, duration_s - _ROOM * took_s)


@dataclass(frozen=True, slots=True)
class SegmentReady:
    """What a helper thread reports of a gradient in flight: its segment that begins at ``start``."""

    pending: ClusterPending
    start: int


class Segments:
    """Puts the parts that a backward pass makes together to segments.

    Args:
        segments: (name, start, stop).
        on_segment: called with where a segment begins, its value [stop - start], and the loss.
    """

    def __init__(
        self, segments: Sequence[tuple[str, int, int]], on_segment: Callable[[int, Evaluated], None]
    ) -> None:
        self._spans = sorted((start, stop) for _, start, stop in segments)
        self._firsts = [start for start, _ in self._spans]
        self._on_segment = on_segment
        self._missing = [stop - start for start, stop in self._spans]

    def add(self, start: int, stop: int, so_far: Evaluated) -> None:
        """Elements [start, stop) of a gradient [d] are known; they may belong to several segments."""
        for number in range(bisect(self._firsts, start) - 1, len(self._spans)):
            first, end = self._spans[number]
            if first >= stop:
                break
            self._missing[number] -= min(stop, end) - max(start, first)
            if not self._missing[number]:
                self._on_segment(first, Evaluated(so_far.value[first:end], so_far.loss))


class Computing:
    """One worker's computations.

    Args:
        rank: the worker.
        took_s: what a gradient took before the run; 0: that is not known, and every one may take long.
        complete: called with an operation that is complete.
        catch_up: lets the loop do what can be done at once.
    """

    def __init__(
        self,
        rank: Rank,
        took_s: float,
        complete: Callable[[ClusterPending], None],
        catch_up: Callable[[], None],
    ) -> None:
        self._rank = rank
        self._job = rank.job
        self._loop = rank.loop
        self._timing = rank.log.timing
        self._took_s = took_s
        self._complete = complete
        self._catch_up = catch_up
        self._raised: BaseException | None = None
        self._may_stay = 0.0 < took_s <= _BRIEF_S and rank.job.start.device == CPU
        self._side_stream = SideStream(rank.job.start.device)
        self.loss: Tensor | None = None
        """That came with the latest gradient which the scheme has got."""

    @property
    def next_s(self) -> float:
        """What the compute model says that the worker's next gradient lasts."""
        return self._job.compute.duration_s(self._rank.number, self._timing.gradients)

    def begin_gradient(self, pending: ClusterPending) -> None:
        """Start the worker's next gradient."""
        operation: ops.Gradient = pending.operation  # type: ignore[assignment]
        index, duration_s = self._timing.gradients, self.next_s
        self._timing.gradients += 1
        pending.ready_s = pending.start_s + (1 - pending.ahead) * duration_s
        pending.version = operation.point._version
        pending.task.breakdown.computing(pending.start_s)
        self._loop.alarm(pending.ready_s, partial(self._pad_over, pending))
        pending.parts = {}
        if self._job.problem is None:
            pending.computed, pending.reply, pending.loss = True, operation.point, torch.zeros(1)
        else:
            self._rank.in_flight.add(pending)
            pending.compute = partial(self._begin, pending, index, operation.point)
            wait_s = compute_offset_s(
                self._rank.number, self._job.workers, pending.ready_s - pending.start_s, self._took_s
            )
            self._loop.alarm(pending.start_s + wait_s, partial(self.hurry, pending))

    def hurry(self, pending: ClusterPending) -> None:
        """Compute a gradient's value as soon as can be, unless that has begun."""
        compute, pending.compute = pending.compute, None
        if compute is not None:
            self._loop.alarm(self._loop.now, compute)  # after alarms that are due

    def _begin(self, pending: ClusterPending, index: int, point: Tensor) -> None:
        """From the loop: compute a gradient."""
        if not self._alone():
            self._rank.threads.run(pending, self._compute, pending, index, point, self._report)
            return
        self._rank.threads.call(pending, self._compute, pending, index, point, self._take_here)
        if self._raised is not None:
            raise self._raised

    def _alone(self) -> bool:
        """Whether nothing can happen here before a gradient that begins now is computed.

        A GPU's backward pass has a thread of its own: that would go on with the loop there.
        """
        return (
            self._may_stay
            and len(self._rank.in_flight) == 1
            and self._loop.next_s - self._loop.now > self._took_s
        )

    def _compute(
        self,
        pending: ClusterPending,
        index: int,
        point: Tensor,
        report: Callable[[ClusterPending, int, Evaluated], None],
    ) -> tuple[Evaluated, float]:
        """The gradient, and how long it took; its segments are reported during the backward pass."""
        assert self._job.problem is not None
        on_part = None
        if pending.handle is not None and len(self._job.segments) > 1:
            on_part = Segments(self._job.segments, partial(report, pending)).add
        gradient = partial(self._job.problem.gradient, self._rank.number, index, point, on_part)
        evaluated, took_s = self._side_stream.run(gradient)
        self._side_stream.hand_over(*evaluated)
        return evaluated, took_s

    def _take_here(self, pending: ClusterPending, start: int, part: Evaluated) -> None:
        """From within the backward pass, in the loop's thread: a segment is known."""
        if self._raised is None:
            try:
                self.take_segment(pending, start, part)
                self._catch_up()
            except BaseException as error:  # it is not the gradient's
                self._raised = error

    def _report(self, pending: ClusterPending, start: int, part: Evaluated) -> None:
        """In another thread, that of the backward pass: a segment is known."""
        self._side_stream.settle()
        self._side_stream.hand_over(*part)
        self._rank.threads.finished.put(CallResult(SegmentReady(pending, start), part, None))

    def take_segment(self, pending: ClusterPending, start: int, part: Evaluated) -> None:
        """The helper thread has a segment of the gradient, and with it the loss."""
        pending.parts[start], pending.loss = part
        self._resume(pending)

    def _resume(self, pending: ClusterPending) -> None:
        if pending.on_part is not None:
            resume, pending.on_part = pending.on_part, None
            resume()

    def take_gradient(self, pending: ClusterPending, evaluated: Evaluated, took_s: float) -> None:
        """The helper thread has the gradient."""
        if pending.operation.point._version != pending.version:  # type: ignore[attr-defined]
            raise SchemeError(
                f"worker {self._rank.number} wrote in place into a tensor whose gradient was in flight"
            )
        pending.computed, (pending.reply, pending.loss) = True, evaluated
        self._timing.compute_s += took_s
        self._took_s = max(self._took_s, took_s)
        if took_s > _OVERRUN * (pending.ready_s - pending.start_s):
            self._timing.overruns += 1
        self._resume(pending)
        if pending.padded:
            self._complete(pending)

    def _pad_over(self, pending: ClusterPending) -> None:
        pending.padded = True
        if pending.computed:
            self._complete(pending)

    def ended(self, pending: ClusterPending) -> None:
        """A gradient is complete: note how much later than due that was noticed."""
        now_s = self._loop.now
        pending.task.breakdown.computed(now_s)
        late_s = now_s - pending.ready_s
        self._timing.late_s += late_s
        self._timing.latest_s = max(self._timing.latest_s, late_s)

    def with_value(self, pending: ClusterPending, call: Callable[[Tensor], None]) -> None:
        """Call with a gradient's value, at once or when it has been computed; with it goes its loss."""
        if not pending.computed:
            pending.on_part = partial(self.with_value, pending, call)
            return
        self.loss = pending.loss
        call(pending.reply)

    def with_part(
        self, pending: ClusterPending, start: int, stop: int, call: Callable[[Tensor], None]
    ) -> None:
        """Call with a segment of a gradient, at once or when it is known; with it goes the loss."""
        if not pending.computed and start not in pending.parts:
            pending.on_part = partial(self.with_part, pending, start, stop, call)
            return
        self.loss = pending.loss
        call(pending.reply[..., start:stop] if pending.computed else pending.parts[start])
