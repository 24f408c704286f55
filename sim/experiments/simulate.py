"""Simulate a scenario: every scheme under every seed on the event driver."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from ..config.problems import format_message
from ..devices import one_thread
from ..drivers.event import EventDriver
from ..drivers.job import Job
from ..drivers.outcome import run_record
from ..errors import RunError, shorten
from ..network.profile import Profile
from ..records.run import Run
from ..records.summary import Tuned
from ..records.unfinished import NOTHING_KEPT, Parts, open_parts
from ..scenario.entries import SchemeEntry
from ..scenario.repeats import are_enough
from ..scenario.schema import Scenario, dump
from .prepare import over_profile, prepare, resolve, resolved_in, seeds_of, warn_of_extrapolation
from .tune import tune

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
        job = over_profile(job, profile)
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
        outcome = driver.outcome(format_message(error))
    if profile is not None and warn is not None and driver.traffic is not None:
        for sentence in driver.traffic.outside(profile.range):
            warn(f"{shorten(job.label)} leaves the range of the profile: {sentence}")
    return run_record(job, outcome, scorer, "simulated")


@contextmanager
def begin(
    scenario: Scenario,
    device: torch.device,
    out: Path | None = None,
    *,
    force: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Iterator[tuple[Scenario, Parts]]:
    """Begin a simulation, or go on with the one that ``out`` holds.

    Args:
        scenario: what to simulate.
        device: where gradients are computed.
        out: the result folder, which keeps each run as soon as it is complete; None: nothing is kept.
        force: whether older results may be replaced.
        say: called with what the user should know.

    Returns:
        A context manager that gives the scenario as it was resolved when the simulation was first begun,
        before values are tuned, and the complete runs.

    Raises:
        InputError: ``out`` is in use or taken, or the scenario cannot be resolved.
    """
    if out is None:
        yield resolve(scenario, device), NOTHING_KEPT
        return
    command = f"simulate on {device.type}"

    def resolved_again(text: str) -> bool:
        return resolved_in(text, scenario) is not None

    def text() -> str:
        return dump(resolve(scenario, device))

    with open_parts(out, command, scenario.name, force, resolved_again, text, say) as parts:
        resolved = resolved_in(parts.scenario, scenario)
        assert resolved is not None
        yield resolved, parts


def simulate(
    scenario: Scenario,
    *,
    device: torch.device | None = None,
    progress: Progress | None = None,
    parts: Parts = NOTHING_KEPT,
    warn: Callable[[str], None] | None = None,
) -> Iterator[Run]:
    """Simulate all schemes under all seeds, with one torch thread; yields each run when it is complete.

    What ``parts`` has is not run again, and what is new is kept there. ``warn`` is as for ``simulate_job``,
    and is called as well where the time of a gradient is extrapolated.
    """
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
                run = parts.find("run", len(runs), entry.label, seed)
                if run is None:
                    run = simulate_job(
                        prepare(scenario, entry, seed, device),
                        progress=progress,
                        profile=scenario.cluster.profile,
                        warn=warn,
                    )
                    parts.keep("run", len(runs), run)
                runs.append(run)
                yield run


def choose_values(
    scenario: Scenario,
    *,
    device: torch.device | None = None,
    progress: Progress | None = None,
    parts: Parts = NOTHING_KEPT,
) -> tuple[Scenario, list[Tuned]]:
    """Run the trials of ``tune``; the scenario with the values chosen for each scheme, and what was tried.

    What ``parts`` has is not run again, and what is new is kept there.
    """
    numbers = itertools.count()

    def run(plain: Scenario, entry: SchemeEntry, seed: int) -> Run:
        number = next(numbers)
        trial = parts.find("trial", number, entry.label, seed)
        if trial is None:
            job = replace(prepare(plain, entry, seed, device), record_events=False)
            trial = simulate_job(job, progress=progress, profile=plain.cluster.profile)
            parts.keep("trial", number, trial)
        return trial

    with one_thread():
        return tune(scenario, run)
