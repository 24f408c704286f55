"""The clocks of workers, moved by operations that all workers do together.

Jobs that differ in speeds alone are moved at once: times are [jobs, n], each job a row.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ... import seeds
from ...compute.model import ComputeModel
from ...errors import NotInLockstep
from ...network.transport import AUTO_ALGORITHM
from ...program import operations as ops
from ...program.encoding import message_bytes
from ...records.run import INSTANT, UNTIMED_ENCODING
from ...seeds import Floats, Integers
from ...traffic.placing import Placed
from ...traffic.selection import BY_PRICE
from ...training.scoring import Scorer
from ..job import Job
from ..outcome import Outcome
from .accounts import StackedAccounts, StackedOperation
from .collective_times import CollectiveTimes
from .messages import MixTimes
from .published import PublishedRows, PublishedSteps

STRIP: Final = 32
"""Gradients per strip of rows [n], transposed from rows by worker; a strip fits into a cache."""


class Durations:
    """Durations of all workers' gradients, in order, for jobs in rows."""

    def __init__(self, models: Sequence[ComputeModel], workers: int) -> None:
        self._models = models
        self._ranks = range(workers)
        self._taken = 0
        self._steady: Floats | None = None
        if not any(model.varies for model in models):
            self._steady = self._blocks_s(0)[..., 0].copy()
        self._block = self._strip = np.empty((0, len(models), workers))

    def _blocks_s(self, number: int) -> Floats:
        return np.stack([model.blocks_s(self._ranks, number) for model in self._models])

    def next_s(self) -> Floats:
        """Seconds of the next gradient on each worker [jobs, n]."""
        if self._steady is not None:
            return self._steady
        number, offset = divmod(self._taken, seeds.BLOCK)
        if offset == 0:
            self._block = self._blocks_s(number)
        if offset % STRIP == 0:
            self._strip = np.ascontiguousarray(np.moveaxis(self._block[..., offset : offset + STRIP], -1, 0))
        self._taken += 1
        durations_s: Floats = self._strip[offset % STRIP]
        return durations_s


class LockstepClock:
    """The times of all workers of jobs ``moved_alike``, and the consequences: accounts, scores, the end.

    Attributes:
        messages: sent so far by each job.
        work: messages, of which a collective counts as few for each member, as in ``EventDriver.work``.
        refusal: why the event driver is needed after all; "" so far.
        running: rows of the jobs that go on.
        outcomes: by row, of those that have ended.
    """

    def __init__(self, jobs: Sequence[Job], scorers: Sequence[Scorer[Tensor]]) -> None:
        n = jobs[0].workers
        self._job = jobs[0]
        self._limit_s = np.array([job.max_time_s for job in jobs])
        self._may_be_cut = may_be_cut = _may_be_cut(jobs[0], scorers[0])
        self._accounts = StackedAccounts((len(jobs), n), jobs[0].recording.log(), may_be_cut)
        self._steps = PublishedSteps(jobs, scorers, may_be_cut)
        self._durations = Durations([job.computing for job in jobs], n)
        self._mixes = MixTimes([job.transfer for job in jobs], may_be_cut)
        self._collectives = CollectiveTimes(jobs)
        self._now_s: Floats = np.zeros((len(jobs), n))
        self._sent: Integers = np.zeros(n, np.int64)  # bytes, by each worker of every job
        self._done = 0
        self._begun: dict[int, StackedOperation] = {}  # by handle, until waited for
        self.messages = self.work = 0
        self.refusal = ""
        self.running: Integers = np.arange(len(jobs))
        self.outcomes: dict[int, Outcome] = {}
        self.end_others(self.running[~self._over])

    @property
    def _over(self) -> NDArray[np.bool_]:
        """Whether a score has ended each of the running jobs."""
        return self._steps.over_s[self.running] < math.inf

    def published(self) -> Iterator[tuple[float, int]]:
        """Each worker's current time and bytes sent, in the first job."""
        return zip(self._now_s[0].tolist(), self._sent.tolist(), strict=True)

    # --- operations that take time --------------------------------------------------------------

    def complete(self, operation: ops.Operation[Any]) -> None:
        """Advance to the end of an operation that all workers await; ``NotInLockstep`` ends lockstep here."""
        now_s, name = self._now_s, ops.name_of(type(operation))
        took_s: float | Tensor | Floats | None
        if isinstance(operation, ops.Gradient):
            took_s = self._durations.next_s()
        elif isinstance(operation, ops.Encode):
            if (took_s := self._job.encode_s(operation)) is None:
                name, took_s = UNTIMED_ENCODING, 0.0
        elif isinstance(operation, ops.Evaluate | ops.SpendRound | ops.Sleep):
            took_s = operation.duration_s
        else:
            self._now_s = self._exchange(operation, handle=-1).end_s
            return
        self._now_s = now_s + np.asarray(took_s)
        sleeps = isinstance(operation, ops.Sleep)
        peer_s = self._now_s if sleeps else now_s
        self._accounts.add(StackedOperation(name, self._done, now_s, self._now_s, peer_s, peer_s, sleeps))

    def collectives(self, operation: ops.Operation[Any]) -> Iterator[tuple[Placed, tuple[float, ...]]]:
        """The collectives that workers of a single job are about to join, and each one's joining times."""
        with suppress(NotInLockstep):  # which is raised when they join
            for each in self._collectives.joined(operation, self._now_s) if len(self._now_s) == 1 else ():
                yield each.on_each.each[0], tuple(each.ready_s[0].tolist())

    def check_one_begun(self) -> None:
        """Raise ``NotInLockstep`` if a started exchange has not been waited for."""
        if self._begun:
            raise NotInLockstep("several exchanges are under way at once on each worker")

    def start(self, operation: ops.Mix, handle: int) -> None:
        """Begin a mix on all workers, which they wait for by this handle."""
        self._begun[handle] = self._exchange(operation, handle)

    def wait(self, handle: int) -> None:
        """Advance each worker to the end of its started mix."""
        begun = self._begun.pop(handle)
        end_s = np.maximum(self._now_s, begun.end_s)
        waited = StackedOperation(
            "wait", self._done, self._now_s, end_s, begun.peer_s, begun.known_s, peer=begun.peer,
            handle=handle,
        )  # fmt: skip
        self._accounts.add(waited)
        self._now_s = end_s

    def _exchange(self, operation: Any, handle: int) -> StackedOperation:
        if isinstance(operation, ops.Mix):
            self.check_one_begun()
            self._collectives.check_idle(self._now_s)
            num_bytes = message_bytes(_row(operation.value), self._job.bytes_per_parameter)
            entry, messages, work = self._mixes.times(
                operation.pattern, self._now_s, num_bytes, self._done, handle
            )
        else:
            entry, messages, work = self._collectives.times(operation, self._now_s, self._done)
        self.messages += messages
        self.work += work
        self._sent = self._sent + entry.num_bytes
        self._accounts.add(entry)
        return entry

    # --- steps ----------------------------------------------------------------------------------

    def next_step(self, step: int, goes_on: bool) -> Integers:
        """Rows of the running jobs that need another step, if the scheme ``goes_on``."""
        if not goes_on:
            now_s = self._now_s
            self._accounts.add(StackedOperation("next_step", step, now_s, now_s, now_s, now_s, blocks=False))
            return self.running[:0]
        is_late = (self._now_s.min(axis=1) > self._limit_s)[self.running]
        is_over = self._over | (is_late & self._may_be_cut)
        needing: Integers = self.running[~is_over]
        return needing

    def end_others(self, rows: Integers) -> None:
        """Let the jobs in ``rows`` go on alone; the other running ones have ended."""
        ended = self.running[~np.isin(self.running, rows)]
        self.outcomes |= {row: self._outcome(row) for row in ended.tolist()}
        self._steps.forget(ended)
        self.running = rows

    def publish(self, published: PublishedRows) -> None:
        """Take a publication of all workers."""
        if self._begun:
            raise NotInLockstep("an exchange is under way from one step to the next")
        self._done = published.operation.step + 1
        self._steps.add(self._now_s, self._sent, published)
        if not self._may_be_cut:
            return
        earliest_s = self._now_s.min(axis=1)
        until_s = np.minimum(earliest_s, self._limit_s)
        for row in self.running.tolist():
            self._steps.hand_over(row, float(until_s[row]), float(earliest_s[row]))
        self._steps.forget(self.running[:0])
        # A job that is over is cut off at an instant that may lie before.
        settled_s = np.full(len(until_s), math.inf)
        settled_s[self.running] = np.where(self._over, -math.inf, until_s[self.running])
        self._accounts.settle(settled_s)

    def _outcome(self, row: int) -> Outcome:
        now_s, limit_s = self._now_s[row], float(self._limit_s[row])
        last_s = float(now_s.max())
        if self._steps.over_s[row] == math.inf:
            self._steps.hand_over(row, min(last_s, limit_s), last_s)
        over_s = float(self._steps.over_s[row])
        wall_s = min(over_s, limit_s, last_s)
        # A score ends the run after everything that happens at its instant.
        instant_s = wall_s / (1 - INSTANT) if wall_s == over_s else wall_s
        accounts = self._accounts.of_job(row)
        if wall_s < last_s:
            accounts.cut(wall_s, instant_s)
        else:
            accounts.settle(last_s)
        finals, leader, steps, pace = self._steps.finals(row, instant_s)
        return Outcome(
            wall_s=wall_s,
            breakdowns=accounts.breakdowns(steps, now_s, instant_s),
            finals=finals,
            leader=leader,
            events=accounts.events(),
            status="completed",
            pace=pace,
            step_ends_s=[float(each[row]) for each in self._steps.ends_s],
        )


def moved_alike(job: Job, scorer: Scorer[Tensor]) -> Hashable:
    """All in which jobs with the same mathematics must agree to be moved at once; else an object of its own.

    They may differ in compute times, latencies, bandwidths and limits of time, where links are not shared.
    """
    chosen, all_reduce = job.collectives.chosen.names, job.collectives.all_reduce
    open_yet = all_reduce == AUTO_ALGORITHM and not chosen
    by_price = BY_PRICE in chosen.values() or (open_yet and job.scheme.collectives(job.options))
    if job.transfer.sharing != "none" or by_price:
        return object()
    names = [each.name for each in fields(job.transfer) if each.name != "network"]
    return (
        tuple(getattr(job.transfer, name) for name in names), all_reduce, tuple(chosen.items()),
        job.recording, _may_be_cut(job, scorer),
        job.compute.compute.encoding,
    )  # fmt: skip


def _may_be_cut(job: Job, scorer: Scorer[Tensor]) -> bool:
    return scorer.scores or job.max_time_s < math.inf


def _row(value: Any) -> Any:
    return value[0] if isinstance(value, Tensor) else value.row(0)
