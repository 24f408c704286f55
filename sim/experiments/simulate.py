"""Simulate a scenario: every scheme under every seed on the event driver."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ..devices import one_thread
from ..drivers.event import EventDriver
from ..drivers.job import Job
from ..drivers.outcome import run_record
from ..errors import InputError, RunError, shorten
from ..network.profile import GLOO_ALL_REDUCE, Profile
from ..records import folder as result_folder
from ..records.run import Run
from ..records.summary import Tuned
from ..scenario.entries import SchemeEntry
from ..scenario.repeats import are_enough
from ..scenario.schema import Scenario, parse
from .prepare import is_resolved_from, prepare, seeds_of, warn_of_extrapolation
from .tune import fits, tune, with_chosen

Progress = Callable[[str, int], None]
"""Called with a run's label and the mean number of steps that its workers have done."""


def simulate_job(
    job: Job,
    *,
    permute_seed: int | None = None,
    progress: Progress | None = None,
    profile: Profile | None = None,
    warn: Callable[[str], None] | None = None,
) -> Run:
    """Run one job in virtual time; a run that fails is kept as partial, with the reason.

    Args:
        job: what to run.
        permute_seed: see ``Clock``.
        progress: called as the run goes on.
        profile: correction factors; absent: the nominal cluster.
        warn: called with a sentence for every way in which the run left the profile's measured range.
    """
    if profile is not None:
        job = replace(job, transfer=profile.transfer(job.transfer), all_reduce=GLOO_ALL_REDUCE)
    scorer = job.scorer()
    scorer.begin([job.start] * job.workers)
    report = None
    if progress is not None:
        call = progress

        def report(published: int) -> None:
            if published % job.workers == 0:
                call(job.label, published // job.workers)

    driver = EventDriver(
        job, [job.program(r) for r in range(job.workers)], scorer, permute_seed=permute_seed, progress=report
    )
    try:
        outcome = driver.run()
    except RunError as error:
        outcome = driver.outcome(str(error))
    if profile is not None and warn is not None and driver.traffic is not None:
        for sentence in driver.traffic.outside(profile.range):
            warn(f"{shorten(job.label)} leaves the range of the profile: {sentence}")
    return run_record(job, outcome, scorer, "simulated")


def simulate(
    scenario: Scenario,
    *,
    device: torch.device | None = None,
    progress: Progress | None = None,
    done: Collection[Run] = (),
    warn: Callable[[str], None] | None = None,
) -> Iterator[Run]:
    """Simulate all schemes under all seeds, with one torch thread; yields each run when it is complete.

    ``done`` are runs of this scenario that are there already, and are not repeated. ``warn`` is as for
    ``simulate_job``, and is called as well where the time of a gradient is extrapolated.
    """
    known = {(run.label, run.seed): run for run in done}
    labels = [entry.label for entry in scenario.schemes]
    runs: list[Run] = []
    beyond = warn_of_extrapolation(scenario)
    if beyond and warn is not None:
        warn(beyond)
    with one_thread():
        for seed in seeds_of(scenario):
            if are_enough(scenario.repeats, labels, runs):
                break
            for entry in scenario.schemes:
                run = known.get((entry.label, seed)) or simulate_job(
                    prepare(scenario, entry, seed, device),
                    progress=progress,
                    profile=scenario.cluster.profile,
                    warn=warn,
                )
                runs.append(run)
                yield run


@dataclass(frozen=True)
class Unfinished:
    """What an interrupted simulation has left: its scenario as resolved, complete runs, and its tuning."""

    scenario: Scenario
    runs: list[Run]
    tuning: list[Tuned]


def find_unfinished(folder: Path, scenario: Scenario) -> Unfinished | None:
    """Read what an interrupted simulation of ``scenario`` has left in a folder; None for anything else."""
    try:
        results = result_folder.read_results(folder)
        resolved = parse(results.scenario, str(folder))
    except InputError:
        return None
    runs = result_folder.runs_of(results)
    tuned = results.summary.get("tuning", [])
    same = fits(tuned, scenario) and is_resolved_from(resolved, with_chosen(scenario, tuned))
    complete = are_enough(scenario.repeats, [entry.label for entry in scenario.schemes], runs)
    if not same or complete or any(run.source != "simulated" for run in runs):
        return None
    return Unfinished(resolved, [run for run in runs if run.status != "partial"], tuned)


def choose_values(
    scenario: Scenario, *, device: torch.device | None = None, progress: Progress | None = None
) -> tuple[Scenario, list[Tuned]]:
    """Run the trials of ``tune``; the scenario with the values chosen for each scheme, and what was tried."""

    def run(plain: Scenario, entry: SchemeEntry, seed: int) -> Run:
        job = replace(prepare(plain, entry, seed, device), record_events=False)
        return simulate_job(job, progress=progress, profile=plain.cluster.profile)

    with one_thread():
        return tune(scenario, run)
