"""Settings of a grid, and their runs side by side, so that shared work is computed once."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import torch

from ...compute.compute_settings import Compute
from ...config.tracking import track
from ...devices import one_thread
from ...drivers.job import Job
from ...drivers.lockstep.exact import why_not
from ...drivers.lockstep.lockstep_driver import LockstepDriver, same_mathematics
from ...drivers.outcome import run_record
from ...errors import RunError
from ...faults.outages import CutOff
from ...network.profile import Profile
from ...records.run import Run
from ...records.summary import Tuned
from ...records.unfinished import NOTHING_KEPT, Parts
from ...scenario.repeats import are_enough, max_repeats
from ...scenario.schema import Scenario
from ...training.scoring import KnownScores
from .. import prepare
from ..jobs import ALONE, JobProcesses, PlannedRun, RunsProgress
from ..simulate import Progress, doubts, job_of, processes_for, report_steps, run_here
from ..tune import choose, next_trials

_TOGETHER: Final = 64
"""Settings resolved at once."""


def resolve(scenarios: Sequence[Scenario], device: torch.device) -> list[Scenario]:
    """Resolve each scenario, in their order; equal measurements of gradients are done once.

    Scenarios with equal training are resolved in a row, because few data sets are kept in memory. Raises as
    ``prepare.resolve``.
    """
    alike: dict[Hashable, list[int]] = {}
    for number, scenario in enumerate(scenarios):
        alike.setdefault((scenario.workload, scenario.cluster.workers, scenario.seed), []).append(number)
    measured: dict[Hashable, Compute] = {}
    resolved = list(scenarios)
    parts = [own[i : i + _TOGETHER] for own in alike.values() for i in range(0, len(own), _TOGETHER)]
    starts = {part[0]: part for part in parts}
    for begin in track("resolving setting", list(itertools.chain.from_iterable(parts))):
        own, numbers = [], starts.get(begin, [])
        for number in numbers:
            scenario, compute = scenarios[number], scenarios[number].cluster.compute
            key = scenario.workload, compute
            if compute.measured is not None and key not in measured:
                measured[key] = prepare.resolve(scenario, device).cluster.compute
            cluster = scenario.cluster.model_copy(update={"compute": measured.get(key, compute)})
            own.append(scenario.model_copy(update={"cluster": cluster}))
        for number, each in zip(numbers, prepare.resolve_each(own, device), strict=True):
            resolved[number] = each
    return resolved


def choose_values(
    scenarios: Sequence[Scenario],
    *,
    device: torch.device | None = None,
    progress: RunsProgress | None = None,
    parts: Sequence[Parts] | None = None,
    processes: JobProcesses = ALONE,
) -> tuple[list[Scenario], list[list[Tuned]]]:
    """Run the trials of ``tune`` of each scenario; return the scenarios with their values, and the trials.

    ``parts`` (of each scenario) and ``processes`` are as for ``simulate``.
    """
    if progress is not None and any(each.tune for each in scenarios):
        trials = sum(len(each.schemes) * each.tune.trials for each in scenarios if each.tune is not None)
        progress.begin("trial", trials, sum(each.num_kept("trial") for each in parts or ()))
    runs = _in_rounds(next_trials, scenarios, parts, device, progress, None, processes)
    chosen = [choose(*each) for each in zip(scenarios, runs, strict=True)]
    return [scenario for scenario, _ in chosen], [tuned for _, tuned in chosen]


def simulate(
    scenarios: Sequence[Scenario],
    *,
    device: torch.device | None = None,
    progress: RunsProgress | None = None,
    warn: Callable[[str], None] | None = None,
    parts: Sequence[Parts] | None = None,
    processes: JobProcesses = ALONE,
) -> list[list[Run]]:
    """Simulate all schemes under all seeds in each scenario; its runs are those of ``simulate`` for it alone.

    Arguments are as for that; ``parts`` of each scenario, ``processes`` for runs that share no training.
    """
    if warn is not None:
        for sentence in sorted({each for scenario in scenarios for each in doubts(scenario)}):
            warn(sentence)
    if progress is not None:
        most = sum(len(each.schemes) * max_repeats(each.repeats) for each in scenarios)
        progress.begin("run", most, sum(each.num_kept("run") for each in parts or ()))
    return _in_rounds(_next_seed, scenarios, parts, device, progress, warn, processes)


def _next_seed(scenario: Scenario, runs: Sequence[Run], parts: Parts) -> list[PlannedRun]:
    labels = [entry.label for entry in scenario.schemes]
    if are_enough(scenario.repeats, labels, runs):
        return []
    seed = prepare.seeds_of(scenario)[len(runs) // len(labels)]
    return [
        PlannedRun("run", number, scenario, entry, seed, parts)
        for number, entry in enumerate(scenario.schemes, len(runs))
    ]


def _in_rounds(
    plan: Callable[[Scenario, Sequence[Run], Parts], Sequence[PlannedRun]],
    scenarios: Sequence[Scenario],
    parts: Sequence[Parts] | None,
    device: torch.device | None,
    progress: RunsProgress | None,
    warn: Callable[[str], None] | None,
    processes: JobProcesses,
) -> list[list[Run]]:
    """Runs of several scenarios, each planned after those before: in a round the first of all together."""
    runs: list[list[Run]] = [[] for _ in scenarios]
    stores = parts or [NOTHING_KEPT] * len(scenarios)
    at_work, here = processes_for(device, processes), partial(run_here, device, "auto")
    with one_thread():
        while any(planned := [plan(*each) for each in zip(scenarios, runs, stores, strict=True)]):
            done: dict[PlannedRun, Run] = {}
            for column in itertools.zip_longest(*planned):
                there = [each for each in column if each is not None]
                done |= {each: run for each in there if (run := each.find()) is not None}
                missing = [each for each in there if each not in done]
                plain = [(job_of(each, device), each.scenario.cluster.profile) for each in missing]
                for index, run in share_training(plain, progress).items():
                    done[missing[index]] = run
                    missing[index].keep(run)
                    if progress is not None:
                        progress.complete(run.label)
                alone = [each for each in missing if each not in done]
                done |= zip(alone, at_work.run_all(alone, here, progress=progress, warn=warn), strict=True)
            for own, new in zip(runs, planned, strict=True):
                own += [done[each] for each in new]
    return runs


def share_training(
    jobs: Sequence[tuple[Job, Profile | None]], progress: Progress | None = None
) -> dict[int, Run]:
    """Run together those jobs that run in lockstep and compute the same.

    Their workers are trained once, until the last job ends, under a clock for each.

    Returns:
        Index -> its run; all others have to be run one by one.
    """
    placed = [prepare.over_profile(job, profile) for job, profile in jobs]
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
        if scorer.noise is not None and scorers[0].noise is not None:
            scorer.noise.known = scorers[0].noise.known
        scorer.begin([job.start] * job.workers)
    first, *others = zip(jobs, scorers, strict=True)
    driver = LockstepDriver(*first, *others, progress=report_steps(jobs[0], progress))
    try:
        outcomes = driver.run_all()
    except RunError:  # run alone, each job shows whether the error is the scheme's own
        return [None] * len(jobs)
    runs: list[Run | None] = []
    for job, outcome, scorer in zip(jobs, outcomes, scorers, strict=True):
        try:
            run = None if outcome is None else run_record(job, outcome, scorer, "simulated")
        except CutOff:  # run alone, it ends earlier
            run = None
        runs.append(run and replace(run, engine="lockstep"))
    return runs
