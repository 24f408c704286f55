"""Faults on the wall clock: a rank stops itself, or has the lab cut it off, when the scenario says so."""

from __future__ import annotations

import os
import signal
import subprocess
from functools import partial
from typing import Final

from paceline.sim.drivers.job import Job
from paceline.sim.faults.outages import WorkerOutage, outage_of

from ..lab import start
from .loop import Loop

_PATIENCE: Final = 2
"""Time limit of a wait, in outages, beside that without any: after half of it a rank counts as silent."""


def patience_s(job: Job) -> float:
    """Seconds that a wait may last longer because of faults."""
    faults = job.churn.faults if job.churn is not None else ()
    return _PATIENCE * sum(max(fault.back_after, fault.detect) for fault in faults)


class Outages:
    """The outages of one rank; its alarms in ``loop`` are late by the time for which it was stopped."""

    def __init__(self, job: Job, rank: int, loop: Loop) -> None:
        self._rank, self._loop, self._churn = rank, loop, job.churn
        self._in_time = iter(()) if job.churn is None else job.churn.outages(rank)
        self._await_next()

    def begin_step(self, step: int) -> None:
        """Fail at the beginning of a step, if that is planned."""
        churn = self._churn
        for fault, units in () if churn is None else zip(churn.faults, churn.units, strict=True):
            for workers in units if fault.at_step == step else ():
                if self._rank in workers:
                    self._fail(outage_of(fault, self._loop.now, workers))

    def _await_next(self) -> None:
        if (planned := next(self._in_time, None)) is not None:
            self._loop.alarm(planned.at_s, partial(self._fail_in_time, planned))

    def _fail_in_time(self, outage: WorkerOutage) -> None:
        self._fail(outage)
        self._await_next()

    def _fail(self, outage: WorkerOutage) -> None:
        since_s = self._loop.now
        lasts_s = max(0.0, outage.back_s - since_s)
        if outage.how == "cut":
            start.tell_cut(lasts_s, outage.workers[0])
        elif outage.how == "stop":
            own = os.getpid()
            with subprocess.Popen(["sh", "-c", f"sleep {lasts_s:.6f}; kill -CONT {own}"]):
                os.kill(own, signal.SIGSTOP)
            self._loop.postpone(self._loop.now - since_s)
