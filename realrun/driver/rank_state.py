"""State of one rank of a run: its event loop, operations in flight, and its life under faults.

A rank stops or kills itself, or has the lab cut it off, as the scenario says. Killed ranks leave a note, and
all of them checkpoints, in a folder of the launcher's, which begins the next *life* of the run from there.
Under ``on_fault: shrink`` it is a view, entered with what ranks have in memory.
"""

from __future__ import annotations

import heapq
import json
import math
import os
import signal
import subprocess
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from typing_extensions import override

from paceline.sim.drivers.job import Job
from paceline.sim.drivers.membership import AVERAGING, Resumed, healers_of, tensors_of
from paceline.sim.drivers.tasks.runner import InFlight
from paceline.sim.errors import SchemeError
from paceline.sim.faults.outages import Churn, WorkerOutage, outage_of
from paceline.sim.program import operations as ops
from paceline.sim.program.worker import State

from ..group.store import Control
from ..lab import protocol
from ..transport.connections import ThreadPool
from ..transport.rank_transport import Transport
from .rank_log import Exchange, RankLog, decode, encode
from .watchdog import Watchdog

Call = Callable[[], None]

_T = TypeVar("_T")


class Loop:
    """The calls and alarms of one rank, in one thread; ``zero_s``: the run's start, on ``time.monotonic``."""

    def __init__(self, zero_s: float) -> None:
        self.zero_s = zero_s
        self._ready: deque[Call] = deque()
        self._alarms: list[tuple[float, int, Call]] = []
        self._num_alarms = 0

    @property
    def now(self) -> float:
        """Seconds since the run began; negative before that."""
        return time.monotonic() - self.zero_s

    def soon(self, call: Call) -> None:
        """Queue a call behind those already waiting, and before all alarms."""
        self._ready.append(call)

    def at(self, time_s: float, callback: Callable[[_T], None], value: _T) -> None:
        """Call ``callback(value)`` at ``time_s``, or soon if that has passed."""
        if time_s <= self.now:
            self.soon(partial(callback, value))
        else:
            self.alarm(time_s, partial(callback, value))

    def alarm(self, time_s: float, call: Call) -> None:
        """Make a call at ``time_s`` or as soon after it as possible, in the order of due times."""
        self._num_alarms += 1
        heapq.heappush(self._alarms, (time_s, self._num_alarms, call))

    def postpone(self, by_s: float) -> None:
        """Put off all alarms."""
        self._alarms = [(time_s + by_s, number, call) for time_s, number, call in self._alarms]

    def ready(self) -> Call | None:
        """Pop the next call that does not wait for a time."""
        return self._ready.popleft() if self._ready else None

    def due(self, now_s: float) -> Call | None:
        """Pop the next alarm if it is due."""
        return heapq.heappop(self._alarms)[2] if self._alarms and self._alarms[0][0] <= now_s else None

    @property
    def next_s(self) -> float:
        """Time of the next alarm."""
        return self._alarms[0][0] if self._alarms else float("inf")


def patience_s(churn: Churn | None) -> float:
    """Seconds that a wait may last longer because of faults."""
    faults = churn.faults if churn is not None else ()
    # Twice, as a rank counts as silent after half the limit.
    return 2 * sum(max(fault.back_after, fault.detect) for fault in faults)


def saved_every(job: Job) -> int:
    """Steps from one checkpoint of a real run to the next; 0: there are none."""
    churn = job.churn
    checkpoint = churn.checkpoint if churn is not None and churn.policy == "restart" else None
    return checkpoint.every if checkpoint is not None and isinstance(checkpoint.every, int) else 0


@dataclass(frozen=True)
class Life:
    """A run from its beginning, or from a checkpoint, until a worker is killed or it ends.

    Attributes:
        folder: of checkpoints and notes; "": there are none.
        first_step: number of steps before it.
        zero_s: start of the run, on ``time.monotonic``; None: it starts with this life.
        begun_s: earliest start of this life, in seconds since that of the run.
        struck: steps at whose beginning workers have been killed.
        view, members, hold_s: its number, who takes part ((): all), and when it ends for one that is back.
        exchanges, able: of the view before: after how many ranks resume, and those that can.
    """

    folder: str = ""
    first_step: int = 0
    zero_s: float | None = None
    begun_s: float = -1.0
    struck: tuple[int, ...] = ()
    view: int = 0
    members: tuple[int, ...] = ()
    exchanges: int = 0
    able: tuple[int, ...] = ()
    hold_s: float = math.inf

    @property
    def killed(self) -> bool:
        """Whether a worker was killed as planned."""
        return any(Path(self.folder).glob("killed-*"))

    def left_behind(self, rank: int) -> RankLog | None:
        """The log of a rank that was killed; None: it never was."""
        path = Path(self.folder) / f"log-{rank}"
        return _read(path)[1] if path.exists() else None

    def last_checkpoint(self, workers: int) -> int:
        """Steps before the last checkpoint that all workers have written; 0: there is none."""
        written = Counter(int(path.stem) for path in Path(self.folder).glob("*.state-*"))
        return max((steps for steps, number in written.items() if number == workers), default=0)

    def save(self, steps: int, workers: int, kept: tuple[Any, ...], log: RankLog) -> None:
        """Write a checkpoint of one rank, whole or not at all; remove those before the last complete one."""
        if not kept:
            raise SchemeError("the scheme has to publish what it resumes from: publish(k, x, kept=(x, ...))")
        path = Path(self.folder) / f"{steps}.part-{log.rank}"
        torch.save((kept, encode(log), log.models), path)
        path.rename(path.with_suffix(f".state-{log.rank}"))
        last = self.last_checkpoint(workers)
        for older in Path(self.folder).glob(f"*.state-{log.rank}"):
            if int(older.stem) < last:
                older.unlink()

    def load(self, rank: int) -> tuple[tuple[Any, ...], RankLog]:
        """What a rank resumes from, and its log up to there."""
        return _read(Path(self.folder) / f"{self.first_step}.state-{rank}")


def _read(path: Path) -> tuple[tuple[Any, ...], RankLog]:
    with torch.serialization.safe_globals([State]):
        kept, encoded, models = torch.load(path, weights_only=True)
    return kept, replace(decode(*encoded), models=models)


@dataclass
class Standing:
    """What a rank has in memory to resume from in the next view.

    Attributes:
        job, log: of the whole run.
        states: by the number of exchanges in the present view.
        exchanges, exchanging: that number, and whether there was one since the last step.
        healers: in the present view, who is healed -> by whom.
    """

    job: Job
    log: RankLog
    states: dict[int, Resumed]
    exchanges: int = 0
    exchanging: bool = False
    healers: dict[int, int] = field(default_factory=dict)

    def enter(self, life: Life) -> None:
        """Begin a view. Who heals leaves shapes and numbers in the folder; values follow by message."""
        self.states = {0: self.states[life.exchanges]} if self.states else {}
        self.exchanges, self.exchanging = 0, False
        self.healers = healers_of(self.job, life.members, life.able)
        if self.log.rank in self.healers.values():
            state, empty = self.states[0], lambda each: each.new_zeros(()).expand(each.shape)
            shells = tree_map_only(torch.Tensor, empty, state.kept)
            torch.save((state.step, state.gradients, shells), Path(life.folder) / f"shells-{self.log.rank}")

    def note(self, operation: ops.Operation[Any]) -> None:
        """Note an exchange that begins or is waited for."""
        of = operation.handle if isinstance(operation, ops.Wait) else operation
        self.exchanging |= type(of.operation if isinstance(of, ops.Start | ops.Handle) else of) in AVERAGING

    def publish(self, end: ops.Publish) -> None:
        """Note the end of a step."""
        self.exchanges, self.exchanging = self.exchanges + self.exchanging, False
        self.states[self.exchanges] = Resumed(end.step + 1, end.kept, self.log.timing.gradients)
        # Nobody is that many exchanges behind: each needs those of others, and these those of further ones.
        self.states.pop(self.exchanges - 2 * self.job.workers, None)

    async def main(self, job: Job, life: Life, place: int) -> None:
        """The main coroutine in the view with ``job``: heal others or be healed, and resume."""
        for healed, healer in self.healers.items():
            if healer == self.log.rank:
                kept = job.scheme.split(self.states[0].kept)
                self.states[0] = replace(self.states[0], kept=kept)
                await ops.Send(job.ranks.index(healed), self._payload(kept), "heal")
            elif healed == self.log.rank:
                with torch.serialization.safe_globals([State]):
                    step, done, shells = torch.load(Path(life.folder) / f"shells-{healer}", weights_only=True)
                message = await ops.Receive(job.ranks.index(healer), self._payload(shells), "heal")
                self.states[0] = Resumed(step, _filled(shells, message.value), done)
        state = self.states[0]
        self.log.timing.gradients = state.gradients
        await job.program(place, first_step=state.step, kept=state.kept).main

    def _payload(self, kept: tuple[Any, ...]) -> torch.Tensor:
        return torch.cat([each.flatten() for each in tensors_of(kept or (self.job.start,))])


def _filled(shells: Any, value: torch.Tensor) -> Any:
    parts = iter(torch.split(value, [each.numel() for each in tensors_of(shells)] or [value.numel()]))
    return tree_map_only(torch.Tensor, lambda each: next(parts).view(each.shape).to(each), shells)


class Outages:
    """The outages of one rank; its alarms in ``loop`` are late by the time for which it was stopped."""

    def __init__(self, job: Job, log: RankLog, loop: Loop, life: Life) -> None:
        self._log, self._loop, self._churn, self._life = log, loop, job.churn, life
        self._begun_s = max([life.begun_s, *(until_s for _, until_s in log.away)])
        self._in_time = iter(()) if job.churn is None else job.churn.outages(log.rank)
        self._await_next()

    def begin_step(self, step: int) -> None:
        """Fail at the beginning of a step, if that is planned."""
        churn = self._churn
        for fault, units in () if churn is None else zip(churn.faults, churn.units, strict=True):
            for workers in units if fault.at_step == step and step not in self._life.struck else ():
                if self._log.rank in workers:
                    self._fail(outage_of(fault, self._loop.now, workers), step)

    def _await_next(self) -> None:
        planned = next((each for each in self._in_time if each.at_s >= self._begun_s), None)
        if planned is not None:
            self._loop.alarm(planned.at_s, partial(self._fail_in_time, planned))

    def _fail_in_time(self, outage: WorkerOutage) -> None:
        self._fail(outage)
        self._await_next()

    def _fail(self, outage: WorkerOutage, step: int = -1) -> None:
        since_s = self._loop.now
        lasts_s = max(0.0, outage.back_s - since_s)
        if outage.how == "cut":
            protocol.tell_cut(lasts_s, outage.workers[0])
        elif outage.how == "stop":
            own = os.getpid()
            with subprocess.Popen(["sh", "-c", f"sleep {lasts_s:.6f}; kill -CONT {own}"]):
                os.kill(own, signal.SIGSTOP)
            self._loop.postpone(self._loop.now - since_s)
        else:
            zero_s, folder = self._loop.zero_s, Path(self._life.folder)
            if self._churn is not None and self._churn.policy == "shrink":
                self._log.away.append((since_s, math.inf))
                torch.save(((), encode(self._log), self._log.models), folder / f"log-{self._log.rank}")
            note = {"rank": self._log.rank, "zero_s": zero_s, "over_s": outage.over_s, "step": step}
            (folder / f"killed-{self._log.rank}").write_text(json.dumps(note))
            os.kill(os.getpid(), signal.SIGKILL)


class ClusterPending(InFlight):
    """An operation that takes time, from its start to its completion."""

    exchange = Exchange()
    compute: Callable[[], None] | None = None  # begins a gradient's computation, until it has begun
    computed = False  # the gradient's value is known
    padded = False  # the gradient's duration in the compute model has passed
    parts: dict[int, Tensor]  # known segments of a gradient, by first element
    on_part: Callable[[], None] | None = None  # a waiter for a segment or for the gradient
    result: Callable[[], Any] | None = None  # reply of a completed exchange

    @override
    def lasts_like(self, cause: InFlight) -> None:
        super().lasts_like(cause)
        if isinstance(cause, ClusterPending):
            self.exchange = cause.exchange


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank of a run; helper threads or collectives report on its operations ``in_flight``."""

    job: Job
    number: int
    transport: Transport
    threads: ThreadPool
    control: Control
    watchdog: Watchdog
    loop: Loop
    log: RankLog
    whole: Job  # of all workers
    life: Life
    standing: Standing | None  # where the living go on without who fails
    in_flight: set[ClusterPending] = field(default_factory=set)
    died_s: dict[int, float] = field(default_factory=dict)  # who is known to have died, and since when
