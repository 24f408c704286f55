"""Settings of a grid, and their runs side by side, so that shared work is computed once."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
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
from ...faults.timeline import CutOff
from ...network.profile import Profile
from ...records.run import Run
from ...records.summary import Tuned
from ...records.unfinished import NOTHING_KEPT, PartKind, Parts
from ...scenario.repeats import are_enough, max_repeats
from ...scenario.schema import Scenario
from ...training.scoring import KnownScores
from .. import prepare
from ..doubts import doubts
from ..jobs import ALONE, JobProcesses, PlannedRun, RunsProgress
from ..simulate import Progress, job_of, processes_for, report_steps, run_here
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
    runs: list[list[Run]] = [[] for _ in scenarios]
    if progress is not None and any(each.tune for each in scenarios):
        trials = sum(len(each.schemes) * each.tune.trials for each in scenarios if each.tune is not None)
        progress.begin("trial", trials, sum(each.num_kept("trial") for each in parts or ()))
    with one_thread():
        while any(planned := [next_trials(*each) for each in zip(scenarios, runs, strict=True)]):
            done = _side_by_side(planned, device, progress, None, parts, processes)
            for own, new in zip(runs, done, strict=True):
                own += new
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
    runs: list[list[Run]] = [[] for _ in scenarios]
    with one_thread():
        while True:
            planned = [_next_seed(*each) for each in zip(scenarios, runs, strict=True)]
            if not any(planned):
                return runs
            done = _side_by_side(planned, device, progress, warn, parts, processes)
            for own, new in zip(runs, done, strict=True):
                own += new


def _next_seed(scenario: Scenario, runs: Sequence[Run]) -> list[PlannedRun]:
    labels = [entry.label for entry in scenario.schemes]
    if are_enough(scenario.repeats, labels, runs):
        return []
    seed = prepare.seeds_of(scenario)[len(runs) // len(labels)]
    return [
        PlannedRun("run", number, scenario, entry, seed)
        for number, entry in enumerate(scenario.schemes, len(runs))
    ]


def _side_by_side(
    planned: Sequence[Sequence[PlannedRun]],
    device: torch.device | None,
    progress: RunsProgress | None,
    warn: Callable[[str], None] | None,
    parts: Sequence[Parts] | None,
    processes: JobProcesses,
) -> list[list[Run]]:
    """Runs of several scenarios: the first of each together, then the second of each, and so on."""
    parts = [NOTHING_KEPT] * len(planned) if parts is None else parts
    runs: list[list[Run]] = [[] for _ in planned]
    for place in range(max(map(len, planned), default=0)):
        column = _Column({row: own[place] for row, own in enumerate(planned) if place < len(own)}, parts)
        missing = column.missing()
        plain = [(job_of(each, device), each.scenario.cluster.profile) for each in missing]
        shared = share_training(plain, progress)
        for index, run in shared.items():
            column.keep(missing[index].kind, missing[index].number, run)
            if progress is not None:
                progress.complete(run.label)
        alone = [each for index, each in enumerate(missing) if index not in shared]
        here = partial(run_here, device, "auto")
        at_work = processes_for(device, processes)
        deque(at_work.run_all(alone, here, parts=column, progress=progress, warn=warn), maxlen=0)
        for row, run in column.runs.items():
            runs[row].append(run)
    return runs


class _Column:
    """Runs at one place in all scenarios, by the number of their scenario; ``runs`` has the complete ones."""

    def __init__(self, planned: Mapping[int, PlannedRun], parts: Sequence[Parts]) -> None:
        self._planned, self._parts = planned, parts
        kept = {
            row: parts[row].find(each.kind, each.number, each.entry.label, each.seed)
            for row, each in planned.items()
        }
        self.runs = {row: run for row, run in kept.items() if run is not None}

    def missing(self) -> list[PlannedRun]:
        return [replace(each, number=row) for row, each in self._planned.items() if row not in self.runs]

    def find(self, kind: PartKind, number: int, label: str, seed: int) -> Run | None:
        """None: kept runs are not ``missing``, and are not planned again."""
        return None

    def keep(self, kind: PartKind, number: int, run: Run) -> None:
        self.runs[number] = run
        self._parts[number].keep(kind, self._planned[number].number, run)


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
