"""Schemes run without a clock, on the values of all workers at once."""

from __future__ import annotations

from torch import Tensor

from paceline.sim.drivers.job import Job
from paceline.sim.drivers.lockstep.stacked import StackedRunner


def run_lockstep(job: Job) -> Tensor:
    """Run a synchronous scheme; return the last published values [n, d].

    Raises ``NotInLockstep`` for operations of single workers, ``RunError`` if the scheme raised or broke a
    rule.
    """
    run = StackedRunner(job)
    try:
        run.begin(0)
        return run.published
    finally:
        run.close(0)
