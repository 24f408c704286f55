"""The clocks of a job's workers, moved by operations that all workers do together."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

import numpy as np
from torch import Tensor

from ... import seeds
from ...collectives.sends import Sends
from ...compute.model import ComputeModel
from ...errors import NotInLockstep
from ...program import operations as ops
from ...program.encoding import message_bytes
from ...records.run import INSTANT, UNTIMED_ENCODING
from ...seeds import Floats, Integers
from ...traffic.placing import Placed
from ...training.scoring import Scorer
from ..job import Job
from ..outcome import Outcome
from .accounts import Counts, StackedAccounts, StackedOperation
from .collectives import CollectiveTimes
from .messages import MixTimes
from .published import PublishedRows, PublishedSteps

STRIP: Final = 32
"""Gradients per strip of rows [n], transposed from rows by worker; a strip fits into a cache."""


class Durations:
    """Durations of all workers' gradients, in order."""

    def __init__(self, model: ComputeModel, workers: int) -> None:
        self._model = model
        self._ranks = range(workers)
        self._taken = 0
        self._steady: Floats | None = None if model.varies else model.blocks_s(self._ranks, 0)[:, 0].copy()
        self._block = self._strip = np.empty((0, workers))

    def next_s(self) -> Floats:
        """Seconds of the next gradient on each worker [n]."""
        if self._steady is not None:
            return self._steady
        number, offset = divmod(self._taken, seeds.BLOCK)
        if offset == 0:
            self._block = self._model.blocks_s(self._ranks, number)
        if offset % STRIP == 0:
            self._strip = np.ascontiguousarray(self._block[:, offset : offset + STRIP].T)
        self._taken += 1
        durations_s: Floats = self._strip[offset % STRIP]
        return durations_s


class LockstepClock:
    """The times of all workers of a job, and their consequences: accounts, scores, the end.

    Attributes:
        messages: sent so far.
        work: messages, of which a collective counts as few for each member, as in ``EventDriver.work``.
        refusal: why the event driver is needed after all; "" so far.
    """

    def __init__(self, job: Job, scorer: Scorer[Tensor]) -> None:
        n = job.workers
        self._job = job
        self._limit_s = job.max_time_s
        self._may_be_cut = may_be_cut = scorer.scores or self._limit_s < math.inf
        self._accounts = StackedAccounts(n, job.event_log(), may_be_cut)
        self._steps = PublishedSteps(job, scorer, may_be_cut)
        self._durations = Durations(job.computing, n)
        self._mixes = MixTimes(job.transfer, may_be_cut)
        self._collectives = CollectiveTimes(job)
        self._now_s: Floats = np.zeros(n)
        self._sent = Counts()
        self._done = 0
        self._begun: dict[int, StackedOperation] = {}  # by handle, until waited for
        self.messages = self.work = 0
        self.refusal = ""

    @property
    def over(self) -> bool:
        """Whether a score has ended the run."""
        return self._steps.over_s < math.inf

    def published(self) -> Iterator[tuple[float, int]]:
        """Each worker's current time and bytes sent."""
        return zip(self._now_s.tolist(), self._sent.of_all(self._job.workers).tolist(), strict=True)

    # --- operations that take time --------------------------------------------------------------

    def complete(self, operation: ops.Operation[Any]) -> None:
        """Advance to the end of an operation that all workers await; ``NotInLockstep`` ends lockstep here."""
        if isinstance(operation, ops.Gradient):
            end_s = self._now_s + self._durations.next_s()
            self._enter("gradient", self._now_s, end_s, self._now_s, self._now_s, blocks=False)
        elif isinstance(operation, ops.Encode):
            took_s = self._job.encode_s(operation)
            if took_s is None:
                now_s = self._now_s
                self._enter(UNTIMED_ENCODING, now_s, now_s, now_s, now_s, blocks=False)
                return
            end_s = self._now_s + np.asarray(took_s)
            self._enter("encode", self._now_s, end_s, self._now_s, self._now_s, blocks=False)
        elif isinstance(operation, ops.Evaluate):
            end_s = self._now_s + operation.duration_s
            self._enter("evaluate", self._now_s, end_s, self._now_s, self._now_s, blocks=False)
        elif isinstance(operation, ops.Sleep):
            end_s = self._now_s + operation.duration_s
            self._enter("sleep", self._now_s, end_s, end_s, end_s)
        else:
            end_s = self._exchange(operation, handle=-1).end_s
        self._now_s = end_s

    def collectives(self, operation: ops.Operation[Any]) -> Iterator[tuple[Placed, tuple[float, ...]]]:
        """The collectives that all workers are about to join, and each one's joining times."""
        with suppress(NotInLockstep):  # which is raised when they join
            for each in self._collectives.joined(operation, self._now_s):
                yield each.placed, each.ready_s

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
        self._enter(
            "wait", self._now_s, end_s, begun.peer_s, begun.known_s, peer=begun.peer, handle=begun.handle
        )
        self._now_s = end_s

    def _exchange(self, operation: Any, handle: int) -> StackedOperation:
        name, begin_s = ops.name_of(type(operation)), self._now_s
        blocks = handle < 0
        if isinstance(operation, ops.Mix):
            self.check_one_begun()
            self._collectives.check_idle(begin_s)
            num_bytes = message_bytes(_row(operation.value), self._job.bytes_per_parameter)
            mixed = self._mixes.times(operation.pattern, begin_s, num_bytes)
            self.messages += len(mixed.sends.source)
            self.work += len(mixed.sends.source)
            self._sent = self._sent.plus(mixed.num_bytes)
            return self._enter(
                name, begin_s, mixed.end_s, mixed.peer_s, mixed.known_s, blocks, mixed.num_bytes, mixed.peer,
                handle, sends=mixed.sends,
            )  # fmt: skip
        collected = self._collectives.times(operation, begin_s)
        self.messages += collected.messages
        self.work += collected.work
        self._sent = self._sent.plus(collected.num_bytes)
        return self._enter(
            name, begin_s, collected.end_s, collected.last_s, None, blocks, collected.num_bytes,
            in_half=ops.adds_in_half(operation), sends=collected.sends,
        )  # fmt: skip

    def _enter(
        self,
        name: str,
        start_s: Floats,
        end_s: Floats,
        peer_s: Floats,
        known_s: Floats | None,
        blocks: bool = True,
        num_bytes: int | Integers = 0,
        peer: int | Integers = -1,
        handle: int = -1,
        in_half: bool = False,
        sends: Sends | None = None,
    ) -> StackedOperation:
        entry = StackedOperation(
            name, self._done, start_s, end_s, peer_s, known_s, blocks, num_bytes, peer, handle, in_half,
            sends,
        )  # fmt: skip
        self._accounts.add(entry)
        return entry

    # --- steps ----------------------------------------------------------------------------------

    def next_step(self, step: int, goes_on: bool) -> bool:
        """Whether this job needs another step, if the scheme ``goes_on``."""
        if not goes_on:
            now_s = self._now_s
            self._accounts.add(StackedOperation("next_step", step, now_s, now_s, now_s, now_s, blocks=False))
        is_over = self._may_be_cut and float(self._now_s.min()) > self._limit_s
        return goes_on and not self.over and not is_over

    def publish(self, published: PublishedRows) -> None:
        """Take a publication of all workers."""
        if self._begun:
            raise NotInLockstep("an exchange is under way from one step to the next")
        self._done = published.operation.step + 1
        self._steps.add(self._now_s, self._sent, published)
        if not self._may_be_cut or self._steps.may_wait:
            return
        earliest_s = float(self._now_s.min())
        if not self._steps.hand_over(min(earliest_s, self._limit_s), earliest_s):
            self._accounts.settle(min(earliest_s, self._limit_s))

    def outcome(self) -> Outcome:
        """The outcome of the run, once it needs no further operation."""
        last_s = float(self._now_s.max())
        if self._steps.over_s == math.inf:
            self._steps.hand_over(min(last_s, self._limit_s), last_s, is_last=True)
        wall_s = min(self._steps.over_s, self._limit_s, last_s)
        # A score ends the run after everything that happens at its instant.
        instant_s = wall_s / (1 - INSTANT) if wall_s == self._steps.over_s else wall_s
        if wall_s < last_s:
            self._accounts.cut(wall_s, instant_s)
        else:
            self._accounts.settle(last_s)
        finals, leader, steps, pace = self._steps.finals(instant_s)
        return Outcome(
            wall_s=wall_s,
            breakdowns=self._accounts.breakdowns(steps, self._now_s, instant_s),
            finals=finals,
            leader=leader,
            events=self._accounts.events(),
            status="completed",
            pace=pace,
            step_ends_s=self._steps.ends_s,
        )


def _row(value: Any) -> Any:
    return value[0] if isinstance(value, Tensor) else value.row(0)
