"""Gradients on the wall clock.

A gradient is padded to its duration in the compute model; the real computation is hidden inside, at a moment
of its own for each worker. It runs in a helper thread, so that services answer meanwhile; or, without two
thread switches, in the loop's own where it is short and nothing else could happen. Then the loop resumes at
within the backward pass, after each segment.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from torch import Tensor

from paceline.sim.errors import SchemeError
from paceline.sim.program import operations as ops
from paceline.sim.workloads.workload import Evaluated

from ..transport.connections import CallResult
from ..transport.device import CPU, SideStream
from .rank_state import ClusterPending, Rank

_OVERRUN: Final = 1.01
"""Ratio to its duration in the compute model above which a gradient counts as an overrun."""
_ROOM: Final = 4.0
"""Lead of the last rank's gradient before it is due, in multiples of its real duration."""
_BRIEF_S: Final = 0.05
"""Longest gradient computed in the loop's own thread, which must keep answering."""


def compute_offset_s(rank: int, workers: int, duration_s: float, took_s: float) -> float:
    """Stagger the real computation (``took_s``) in a padded gradient: ranks share the machine's cores."""
    return rank / workers * max(0.0, duration_s - _ROOM * took_s)


@dataclass(frozen=True, slots=True)
class SegmentReady:
    """A helper thread's report of a gradient's segment that begins at ``start``."""

    pending: ClusterPending
    start: int


class Segments:
    """Assembles the parts made by a backward pass into ``segments`` (name, start, stop).

    ``on_segment`` is called with the index of a segment's first element, its value [stop - start], and the
    loss.
    """

    def __init__(
        self, segments: Sequence[tuple[str, int, int]], on_segment: Callable[[int, Evaluated], None]
    ) -> None:
        self._spans = sorted((start, stop) for _, start, stop in segments)
        self._firsts = [start for start, _ in self._spans]
        self._on_segment = on_segment
        self._missing = [stop - start for start, stop in self._spans]

    def add(self, start: int, stop: int, so_far: Evaluated) -> None:
        """Add elements [start, stop) of a gradient [d]; they may belong to several segments."""
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
        took_s: duration of a gradient before the run; 0: unknown, and every one may take long.
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
        self._timing = rank.log.timing
        self._took_s = took_s
        self._complete = complete
        self._catch_up = catch_up
        self._raised: BaseException | None = None
        self._may_stay = 0.0 < took_s <= _BRIEF_S and rank.job.start.device == CPU
        self._side_stream = SideStream(rank.job.start.device)
        self.loss: Tensor | None = None
        """Loss of the latest gradient that the scheme has received."""

    @property
    def next_s(self) -> float:
        """Duration of the worker's next gradient in the compute model."""
        return self._rank.job.compute.duration_s(self._rank.log.rank, self._timing.gradients)

    def begin_gradient(self, pending: ClusterPending) -> None:
        """Begin the worker's next gradient."""
        operation: ops.Gradient = pending.operation  # type: ignore[assignment]
        index, duration_s = self._timing.gradients, self.next_s / self._rank.job.parts(operation)
        self._timing.gradients += self._rank.job.ends_batch(operation)
        pending.ready_s = pending.start_s + (1 - pending.ahead) * duration_s
        pending.version = operation.point._version
        if not pending.stepped:
            pending.task.breakdown.computing(pending.start_s)
            self._rank.loop.alarm(pending.ready_s, partial(self._pad_over, pending))
        pending.parts = {}
        if self._rank.job.problem is None:
            pending.computed, pending.reply = True, operation.point
            pending.loss = self._rank.job.drawn_loss(self._rank.number, index)
        else:
            self._rank.in_flight.add(pending)
            pending.compute = partial(self._begin, pending, index, operation)
            wait_s = compute_offset_s(
                self._rank.number, self._rank.job.workers, pending.ready_s - pending.start_s, self._took_s
            )
            self._rank.loop.alarm(pending.start_s + wait_s, partial(self.hurry, pending))

    def hurry(self, pending: ClusterPending) -> None:
        """Compute a gradient's value as soon as possible, unless that has begun."""
        compute, pending.compute = pending.compute, None
        if compute is not None:
            self._rank.loop.alarm(self._rank.loop.now, compute)  # after alarms that are due

    def _begin(self, pending: ClusterPending, index: int, operation: ops.Gradient) -> None:
        # Nothing else can happen here before a gradient that begins now is computed. Not on a GPU, whose
        # backward pass has a thread of its own, which would continue the loop there.
        alone = len(self._rank.in_flight) == 1 and self._rank.loop.next_s - self._rank.loop.now > self._took_s
        if not (self._may_stay and alone):
            self._rank.threads.run(pending, self._compute, pending, index, operation, self._report)
            return
        self._rank.threads.call(pending, self._compute, pending, index, operation, self._take_here)
        if self._raised is not None:
            raise self._raised

    def _compute(
        self,
        pending: ClusterPending,
        index: int,
        operation: ops.Gradient,
        report: Callable[[ClusterPending, int, Evaluated], None],
    ) -> tuple[Evaluated, float]:
        """The gradient and its real duration; reports segments during the backward pass."""
        assert self._rank.job.problem is not None
        on_part = None
        if pending.handle is not None and len(self._rank.job.layers.segments) > 1:
            on_part = Segments(self._rank.job.layers.segments, partial(report, pending)).add
        problem, number = self._rank.job.problem.of_part(index, operation.part)
        gradient = partial(problem.gradient, self._rank.log.rank, number, operation.point, on_part)
        evaluated, took_s = self._side_stream.run(gradient)
        self._side_stream.hand_over(*evaluated)
        return evaluated, took_s

    def _take_here(self, pending: ClusterPending, start: int, part: Evaluated) -> None:
        """Take a segment within the backward pass, in the loop's thread."""
        if self._raised is None:
            try:
                self.take_segment(pending, start, part)
                self._catch_up()
            except BaseException as error:  # not the gradient's own error
                self._raised = error

    def _report(self, pending: ClusterPending, start: int, part: Evaluated) -> None:
        """Report a segment from the backward pass's thread."""
        self._side_stream.settle()
        self._side_stream.hand_over(*part)
        self._rank.threads.finished.put(CallResult(SegmentReady(pending, start), part, None))

    def take_segment(self, pending: ClusterPending, start: int, part: Evaluated) -> None:
        """Take a segment of the gradient, and with it the loss, from the helper thread."""
        pending.parts[start], pending.loss = part
        self._resume(pending)

    def _resume(self, pending: ClusterPending) -> None:
        if pending.on_part is not None:
            resume, pending.on_part = pending.on_part, None
            resume()

    def take_gradient(self, pending: ClusterPending, evaluated: Evaluated, took_s: float) -> None:
        """Take the complete gradient from the helper thread."""
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
        """Note the lateness of a complete gradient."""
        now_s = self._rank.loop.now
        pending.task.breakdown.computed(now_s)
        late_s = now_s - pending.ready_s
        self._timing.late_s += late_s
        self._timing.latest_s = max(self._timing.latest_s, late_s)

    def with_value(self, pending: ClusterPending, call: Callable[[Tensor], None]) -> None:
        """Call with a gradient's value, at once or when it has been computed; ``loss`` is set with it."""
        if not pending.computed:
            pending.on_part = partial(self.with_value, pending, call)
            return
        self.loss = pending.loss
        call(pending.reply)

    def with_part(
        self, pending: ClusterPending, start: int, stop: int, call: Callable[[Tensor], None]
    ) -> None:
        """Call with a segment of a gradient, at once or when it is known; ``loss`` is set with it."""
        if not pending.computed and start not in pending.parts:
            pending.on_part = partial(self.with_part, pending, start, stop, call)
            return
        self.loss = pending.loss
        call(pending.reply[..., start:stop] if pending.computed else pending.parts[start])
