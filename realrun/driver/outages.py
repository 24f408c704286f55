"""Faults on the wall clock: a rank stops itself, or has the lab cut it off, when the scenario says so."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from functools import partial
from heapq import merge
from itertools import repeat
from typing import Final

from paceline.sim.drivers.job import Job
from paceline.sim.faults.outages import WorkerOutage, outage_of, outages_of
from paceline.sim.faults.settings import Fault

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
        self._loop = loop
        self._at_steps: dict[int, list[tuple[Fault, int]]] = {}
        streams: list[Iterator[tuple[WorkerOutage, int]]] = []
        for number, fault in enumerate(job.churn.faults if job.churn is not None else ()):
            site = job.transfer.network.site_of[rank]
            if fault.sites is not None:
                units = tuple(map(job.transfer.network.sites.index, fault.sites))
                unit, group = site, job.workers + site
            else:
                units, unit, group = fault.workers or tuple(range(job.workers)), rank, rank
            if unit not in units or job.churn is None:
                continue
            streams.append(zip(outages_of(fault, job.churn.seed, number, units.index(unit)), repeat(group)))
            if fault.at_step is not None:
                self._at_steps.setdefault(fault.at_step, []).append((fault, group))
        self._in_time = merge(*streams)
        self._await_next()

    def begin_step(self, step: int) -> None:
        """Fail at the beginning of a step, if that is planned."""
        for fault, group in self._at_steps.pop(step, ()):
            self._fail(outage_of(fault, self._loop.now), group)

    def _await_next(self) -> None:
        if (planned := next(self._in_time, None)) is not None:
            self._loop.alarm(planned[0].at_s, partial(self._fail_in_time, *planned))

    def _fail_in_time(self, outage: WorkerOutage, group: int) -> None:
        self._fail(outage, group)
        self._await_next()

    def _fail(self, outage: WorkerOutage, group: int) -> None:
        since_s = self._loop.now
        if outage.how == "cut":
            start.tell_cut(outage.back_s - since_s, group)
        elif outage.how == "stop":
            own = os.getpid()
            waking = ["sh", "-c", f"sleep {max(0.0, outage.back_s - since_s):.6f}; kill -CONT {own}"]
            with subprocess.Popen(waking):
                os.kill(own, signal.SIGSTOP)
            self._loop.postpone(self._loop.now - since_s)
