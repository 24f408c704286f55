"""Simulate a scenario: every scheme under every seed on the event driver."""

from __future__ import annotations

from collections.abc import Callable

import torch

from sim.drivers.event import EventDriver
from sim.drivers.outcome import run_record
from sim.errors import RunError
from sim.job import Job
from sim.prepare import prepare, seeds_of
from sim.records import Run
from sim.scenario import Scenario

Progress = Callable[[str, int], None]
"""Called with a run's label and the mean number of steps done."""


def simulate_job(job: Job, *, permute_seed: int | None = None, progress: Progress | None = None) -> Run:
    """Run one job in virtual time; a run that fails is kept as partial, with the reason."""
    scorer = job.scorer()
    scorer.begin([job.start] * job.workers)
    report = None
    if progress is not None:
        told = progress

        def report(published: int) -> None:
            if published % job.workers == 0:
                told(job.label, published // job.workers)

    driver = EventDriver(
        job, [job.program(r) for r in range(job.workers)], scorer, permute_seed=permute_seed, progress=report
    )
    try:
        outcome = driver.run()
    except RunError as error:
        outcome = driver.outcome(str(error))
    return run_record(job, outcome, scorer, "simulated")


def simulate(
    scenario: Scenario,
    *,
    device: torch.device | None = None,
    progress: Progress | None = None,
    finished: Callable[[Run], None] | None = None,
) -> list[Run]:
    """Simulate all schemes under all seeds, with one torch thread.

    ``finished`` sees every run as soon as it is complete, so that an interrupted simulation keeps it.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    runs = []
    try:
        for seed in seeds_of(scenario):
            for entry in scenario.schemes:
                run = simulate_job(prepare(scenario, entry, seed, device), progress=progress)
                runs.append(run)
                if finished is not None:
                    finished(run)
    finally:
        torch.set_num_threads(threads)
    return runs
