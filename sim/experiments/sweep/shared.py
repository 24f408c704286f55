"""Jobs with equal computations under different clocks, run together: one training for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...drivers.job import Job
from ...drivers.lockstep.driver import LockstepDriver, same_mathematics
from ...drivers.lockstep.exact import why_not
from ...drivers.outcome import run_record
from ...errors import RunError
from ...network.profile import Profile
from ...records.run import Run
from ...training.scoring import KnownScores
from ..prepare import over_profile
from ..simulate import Progress, report_steps


def share_training(
    jobs: Sequence[tuple[Job, Profile | None]], progress: Progress | None = None
) -> dict[int, Run]:
    """Run together those jobs that run in lockstep and compute the same.

    Their workers are trained once, for as long as one of the jobs goes on, under a clock for each.

    Returns:
        Index -> its run; all others have to be run one by one.
    """
    placed = [job if profile is None else over_profile(job, profile) for job, profile in jobs]
    waiting = [index for index, job in enumerate(placed) if not why_not(job)]
    runs: dict[int, Run] = {}
    while waiting:
        first = placed[waiting[0]]
        together = [index for index in waiting if same_mathematics(first, placed[index])]
        waiting = [index for index in waiting if index not in together]
        shared = _run_together([placed[index] for index in together], progress)
        runs |= {index: run for index, run in zip(together, shared, strict=True) if run is not None}
    return runs


def _run_together(jobs: Sequence[Job], progress: Progress | None) -> list[Run | None]:
    """The runs of jobs that compute the same; None where one has to be run by itself."""
    known, problem = KnownScores(), jobs[0].problem
    scorers = [job.scorer() for job in jobs]
    workload = None if problem is None else known.remembering(problem.workload)
    for job, scorer in zip(jobs, scorers, strict=True):
        scorer.workload, scorer.known = workload, known
        scorer.begin([job.start] * job.workers)
    first, *others = zip(jobs, scorers, strict=True)
    driver = LockstepDriver(*first, *others, progress=report_steps(jobs[0], progress))
    try:
        outcomes = driver.run_all()
    except RunError:  # run alone, each job shows whether the error is the scheme's own
        return [None] * len(jobs)
    return [
        None if outcome is None else replace(run_record(job, outcome, scorer, "simulated"), engine="lockstep")
        for job, outcome, scorer in zip(jobs, outcomes, scorers, strict=True)
    ]
