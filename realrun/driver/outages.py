"""Faults on the wall clock: a rank stops or kills itself, or has the lab cut it off, as the scenario says.

Killed ranks leave a note, and all of them checkpoints, in a folder of the launcher's, which begins the next
*life* of the run from there.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from paceline.sim.drivers.job import Job
from paceline.sim.errors import SchemeError
from paceline.sim.faults.outages import Churn, WorkerOutage, outage_of
from paceline.sim.program.worker import State

from ..lab import start
from .loop import Loop
from .rank_log import RankLog, decode, encode


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
    """

    folder: str = ""
    first_step: int = 0
    zero_s: float | None = None
    begun_s: float = -1.0
    struck: tuple[int, ...] = ()

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
        with torch.serialization.safe_globals([State]):
            path = Path(self.folder) / f"{self.first_step}.state-{rank}"
            kept, encoded, models = torch.load(path, weights_only=True)
        log = decode(*encoded)
        log.models = models
        log.rename_exchanges(f"before {self.first_step}: ")
        return kept, log


class Outages:
    """The outages of one rank; its alarms in ``loop`` are late by the time for which it was stopped."""

    def __init__(self, job: Job, rank: int, loop: Loop, life: Life) -> None:
        self._rank, self._loop, self._churn, self._life = rank, loop, job.churn, life
        self._in_time = iter(()) if job.churn is None else job.churn.outages(rank)
        self._await_next()

    def begin_step(self, step: int) -> None:
        """Fail at the beginning of a step, if that is planned."""
        churn = self._churn
        for fault, units in () if churn is None else zip(churn.faults, churn.units, strict=True):
            for workers in units if fault.at_step == step and step not in self._life.struck else ():
                if self._rank in workers:
                    self._fail(outage_of(fault, self._loop.now, workers), step)

    def _await_next(self) -> None:
        planned = next((each for each in self._in_time if each.at_s >= self._life.begun_s), None)
        if planned is not None:
            self._loop.alarm(planned.at_s, partial(self._fail_in_time, planned))

    def _fail_in_time(self, outage: WorkerOutage) -> None:
        self._fail(outage)
        self._await_next()

    def _fail(self, outage: WorkerOutage, step: int = -1) -> None:
        since_s = self._loop.now
        lasts_s = max(0.0, outage.back_s - since_s)
        if outage.how == "cut":
            start.tell_cut(lasts_s, outage.workers[0])
        elif outage.how == "stop":
            own = os.getpid()
            with subprocess.Popen(["sh", "-c", f"sleep {lasts_s:.6f}; kill -CONT {own}"]):
                os.kill(own, signal.SIGSTOP)
            self._loop.postpone(self._loop.now - since_s)
        else:
            note = {"zero_s": self._loop.zero_s, "over_s": outage.over_s, "step": step}
            (Path(self._life.folder) / f"killed-{self._rank}").write_text(json.dumps(note))
            os.kill(os.getpid(), signal.SIGKILL)
