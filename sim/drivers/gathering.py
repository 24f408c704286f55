"""Collective operations in virtual time: everybody's inputs, the rounds, and the one result."""

from __future__ import annotations

from collections.abc import Callable

import torch

from sim import operations as ops
from sim.drivers.clock import Clock
from sim.drivers.pending import CollectiveRun, Pending
from sim.drivers.transfers import Transfers
from sim.evaluation import mean_model
from sim.job import Job
from sim.schedules import schedule_of

Tensor = torch.Tensor


class _Gathering:
    """The inputs of one collective operation, and its one result."""

    __slots__ = ("inputs", "last_s", "result", "taken")

    def __init__(self) -> None:
        self.inputs: dict[int, Tensor | None] = {}
        self.last_s = 0.0
        self.result: Tensor | None = None
        self.taken = 0


class Gatherings:
    """All collective operations of a run, matched by kind and by their number on each worker."""

    def __init__(
        self, job: Job, clock: Clock, transfers: Transfers, complete: Callable[[Pending], None]
    ) -> None:
        self._job = job
        self._clock = clock
        self._transfers = transfers
        self._complete = complete
        self._sequence: list[dict[str, int]] = [{} for _ in range(job.workers)]
        self._open: dict[tuple[str, int], _Gathering] = {}

    def begin(self, pending: Pending) -> None:
        """A worker joins its next collective of this kind."""
        operation, name, rank = pending.operation, pending.name, pending.task.rank
        number = self._sequence[rank].get(name, 0)
        self._sequence[rank][name] = number + 1
        gathering = self._open.setdefault((name, number), _Gathering())
        gathering.inputs[rank] = getattr(operation, "value", None)
        gathering.last_s = self._clock.now
        pending.ticket = number
        schedule = schedule_of(self._job, operation)
        pending.bytes = sum(size for r in schedule.rounds[rank] for _, size in r.sends)
        run = CollectiveRun(
            pending, schedule, rank, (name, number, 0), self._transfers, self._clock.at, self._finished
        )
        run.begin()

    def _finished(self, pending: Pending) -> None:
        """A worker has come through all rounds of its collective."""
        operation, key = pending.operation, (pending.name, pending.ticket)
        gathering = self._open[key]
        if gathering.result is None and not isinstance(operation, ops.Barrier):
            gathering.result = self._value(operation, gathering)
        pending.reply = gathering.result
        pending.peer_s = gathering.last_s
        gathering.taken += 1
        if gathering.taken == self._job.workers:
            del self._open[key]
            self._transfers.close((*key, 0))
        pending.ready_s = self._clock.now
        self._complete(pending)

    def _value(self, operation: ops.Operation[Tensor], gathering: _Gathering) -> Tensor | None:
        if isinstance(operation, ops.Broadcast):
            return gathering.inputs[operation.root]
        inputs: list[Tensor] = [gathering.inputs[r] for r in range(self._job.workers)]  # type: ignore[misc]
        if isinstance(operation, ops.AllGather):
            return torch.stack(inputs)
        return inputs[0] if self._job.problem is None else mean_model(inputs)
