"""Simulation of a scenario: every scheme, every seed; in lockstep where that is exact, else by events."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, Literal, get_args

import torch

from ..config.problems import format_message
from ..config.units import format_seconds
from ..devices import one_thread
from ..drivers.job import UNRECORDED, Job
from ..drivers.outcome import run_record
from ..errors import InputError, RunError, did_you_mean, shorten
from ..faults.outages import CutOff
from ..network.profile import Profile
from ..records.intervals import FEWEST
from ..records.run import Run
from ..records.summary import Tuned
from ..records.unfinished import NOTHING_KEPT, Parts, begin_parts, open_parts
from ..scenario.batches import batch_sizes
from ..scenario.repeats import AutoRepeats, are_enough, max_repeats
from ..scenario.schema import Scenario, dump
from ..schemes.common.local_steps import period_steps
from ..traffic.streams import Streams
from ..training.scoring import Scorer
from ..workloads import find_task
from .jobs import ALONE, JobProcesses, PlannedRun, RunsProgress
from .prepare import (
    check_queue,
    clock_only,
    over_profile,
    prepare,
    read_resolved,
    resolve,
    resolved_in,
    seeds_of,
)
from .tune import choose, next_trials

Progress = Callable[[str, int], None]
"""Called with a run's label and its workers' mean number of steps."""


Engine = Literal["auto", "event", "lockstep"]
"""Driver of the virtual clock; ``auto``: the lockstep driver exactly where it is exact."""

MOST_TRIED_STEPS: Final = 64
"""Most steps, of a possibly long cycle, after which the choice of an engine is predicted."""

ENGINES: Final[tuple[Engine, ...]] = get_args(Engine)


def engine_named(name: str) -> Engine:
    """Engine of that name; ``InputError`` if there is none."""
    for engine in ENGINES:
        if engine == name:
            return engine
    raise InputError(f"--engine {name}: {did_you_mean(name, ENGINES)}")


def simulate_job(
    job: Job,
    *,
    progress: Progress | None = None,
    profile: Profile | None = None,
    warn: Callable[[str], None] | None = None,
    engine: Engine = "auto",
    scorer_of: Callable[[Job], Scorer[torch.Tensor]] = Job.scorer,
) -> Run:
    """Run one job in virtual time; a failed run is kept as partial, with the reason.

    Args:
        progress: called as the run goes on.
        profile: correction factors; absent: the nominal cluster.
        warn: called with a sentence for every way in which the run left the profile's measured range.
        engine: driver of the clock.
        scorer_of: makes what takes the published models, before it begins.

    Raises:
        InputError: the lockstep driver is asked for where it is not exact, or the links' queue is the lab's.
    """
    check_queue(job.transfer.queue)
    job = over_profile(job, profile)
    try:
        return _simulate(job, progress, profile, warn, engine, scorer_of)
    except CutOff as cut:
        return _simulate(replace(job, max_time_s=cut.work_s), progress, profile, warn, engine, scorer_of)


def _simulate(
    job: Job,
    progress: Progress | None,
    profile: Profile | None,
    warn: Callable[[str], None] | None,
    engine: Engine,
    scorer_of: Callable[[Job], Scorer[torch.Tensor]],
) -> Run:
    reason = "the event driver is asked for"
    report = report_steps(job, progress)
    if engine != "event":
        from ..drivers.lockstep.exact import why_not
        from ..drivers.lockstep.lockstep_driver import LockstepDriver

        reason = why_not(job)
        if not reason:
            scorer = _begun_scorer(job, scorer_of)
            try:
                outcome = LockstepDriver(job, scorer, progress=report).run()
            except RunError as error:  # the event driver shows whether it is the scheme's own
                reason = str(error)
            else:
                return replace(run_record(job, outcome, scorer, "simulated"), engine="lockstep")
        if engine == "lockstep":
            raise InputError(f"--engine lockstep: {shorten(job.label)}: {reason}; use --engine auto")
    from ..drivers.event import EventDriver

    scorer = _begun_scorer(job, scorer_of)
    priced = profile is None  # whose range is that of messages
    if job.shrinks:
        from ..drivers.views import Views

        driver: Views | EventDriver = Views(job, scorer, progress=report, priced=priced)
    else:
        programs = [job.program(rank) for rank in range(job.workers)]
        driver = EventDriver(job, programs, scorer, progress=report, priced=priced)
    try:
        outcome = driver.run()
    except RunError as error:
        outcome = driver.outcome(format_message(error))
    transfers = driver.exchanges.transfers if isinstance(driver, EventDriver) else None
    if profile is not None and warn is not None and isinstance(transfers, Streams):
        for sentence in transfers.traffic.outside(profile.range):
            warn(f"{shorten(job.label)} leaves the range of the profile: {sentence}")
    return replace(run_record(job, outcome, scorer, "simulated"), engine="event", engine_reason=reason)


def engine_of(job: Job) -> tuple[Engine, str]:
    """Predict what ``auto`` is for a job from its first steps on the clock alone; and the reason."""
    from ..drivers.lockstep.exact import TRIED_STEPS, why_not
    from ..drivers.lockstep.lockstep_driver import LockstepDriver

    reason = why_not(job)
    if not reason:
        steps = min(job.scheme.cycle(job.options, job.units), MOST_TRIED_STEPS)
        short = replace(clock_only(job), max_iterations=max(steps, TRIED_STEPS))
        try:
            LockstepDriver(short, short.scorer()).run()
        except RunError as error:
            reason = str(error)
    return ("event", reason) if reason else ("lockstep", "")


def _begun_scorer(job: Job, scorer_of: Callable[[Job], Scorer[torch.Tensor]]) -> Scorer[torch.Tensor]:
    scorer = scorer_of(job)
    scorer.begin([job.start] * job.workers)
    return scorer


def report_steps(job: Job, progress: Progress | None) -> Callable[[int], None] | None:
    """Callback for the number of published steps; it calls ``progress`` with whole ones."""
    if progress is None:
        return None

    def report(published: int) -> None:
        if published % job.workers == 0:
            progress(job.label, published // job.workers)

    return report


@contextmanager
def begin(
    scenario: Scenario,
    device: torch.device,
    out: Path | None = None,
    *,
    force: bool = False,
    say: Callable[[str], None] = lambda _: None,
    command: str = "simulate",
) -> Iterator[tuple[Scenario, Parts]]:
    """Begin a simulation, or continue the one in ``out``: its scenario as first resolved, and its runs.

    Args:
        out: the result folder, which keeps each run as soon as it is complete; None: nothing is kept.
        force: whether older results may be replaced.
        say: called with notes for the user.
        command: whose runs may be continued.

    Raises:
        InputError: ``out`` is in use or taken, or the scenario cannot be resolved.
    """
    if out is None:
        yield resolve(scenario, device), NOTHING_KEPT
        return
    fits = partial(resolved_in, requested=scenario)
    command, text = f"{command} on {device.type}", lambda: dump(resolve(scenario, device))
    begin = partial(begin_parts, out, command, scenario.name, force, fits, text, say)
    with open_parts(out, begin, say) as parts:
        yield read_resolved(parts.scenario, scenario), parts


def simulate(
    scenario: Scenario,
    *,
    device: torch.device | None = None,
    progress: RunsProgress | None = None,
    parts: Parts = NOTHING_KEPT,
    warn: Callable[[str], None] | None = None,
    processes: JobProcesses = ALONE,
    engine: Engine = "auto",
) -> Iterator[Run]:
    """Simulate all schemes under all seeds, with one torch thread; yield the complete runs in order.

    Args:
        scenario: resolved, and its values chosen.
        device: of the gradients.
        parts: store of complete runs: those in it are not run again, new ones are kept there.
        warn: as for ``simulate_job``; called as well where the time of a gradient is extrapolated.
        processes: for the runs, which do not depend on their number.

    Raises:
        InputError: the lockstep driver is asked for where it is not exact.
    """
    labels = [entry.label for entry in scenario.schemes]
    runs: list[Run] = []
    if warn is not None:
        for sentence in doubts(scenario):
            warn(sentence)
    if progress is not None:
        progress.begin("run", len(labels) * max_repeats(scenario.repeats), parts.num_kept("run"))
    seeds = seeds_of(scenario)
    surely = FEWEST if isinstance(scenario.repeats, AutoRepeats) else len(seeds)
    with one_thread():
        while len(runs) < len(seeds) * len(labels) and not are_enough(scenario.repeats, labels, runs):
            done = len(runs) // len(labels)
            now = seeds[done : max(surely, done + 1)]
            pairs = [(seed, entry) for seed in now for entry in scenario.schemes]
            planned = [
                PlannedRun("run", number, scenario, entry, seed, parts)
                for number, (seed, entry) in enumerate(pairs, len(runs))
            ]
            here = partial(run_here, device, engine)
            at_work = processes_for(device, processes)
            for run in at_work.run_all(planned, here, progress=progress, warn=warn):
                runs.append(run)
                yield run


def processes_for(device: torch.device | None, processes: JobProcesses) -> JobProcesses:
    """Executor for runs on a device: a GPU of this machine does one run at a time."""
    return processes if device is None or device.type == "cpu" or processes.given else ALONE


def run_here(
    device: torch.device | None,
    engine: Engine,
    planned: PlannedRun,
    progress: Progress | None,
    warn: Callable[[str], None] | None,
) -> Run:
    """Do a planned run in this process; ``functools.partial`` with the first two is a ``jobs.RunHere``."""
    job, profile = job_of(planned, device), planned.scenario.cluster.profile
    return simulate_job(job, progress=progress, profile=profile, warn=warn, engine=engine)


def job_of(planned: PlannedRun, device: torch.device | None) -> Job:
    """Job of a run on the nominal cluster; trials keep no events, and measure no noise."""
    job = prepare(planned.scenario, planned.entry, planned.seed, device)
    return (
        replace(job, recording=UNRECORDED, scoring=replace(job.scoring, gradient_noise=None))
        if planned.kind == "trial"
        else job
    )


def choose_values(
    scenario: Scenario,
    *,
    device: torch.device | None = None,
    progress: RunsProgress | None = None,
    parts: Parts = NOTHING_KEPT,
    processes: JobProcesses = ALONE,
    engine: Engine = "auto",
) -> tuple[Scenario, list[Tuned]]:
    """Run the trials of ``tune``; return the scenario with each scheme's chosen values, and the trials.

    ``parts``, ``processes`` and ``engine`` are as for ``simulate``.
    """
    if scenario.tune is None:
        return scenario, []
    runs: list[Run] = []
    here, at_work = partial(run_here, device, engine), processes_for(device, processes)
    if progress is not None:
        progress.begin("trial", len(scenario.schemes) * scenario.tune.trials, parts.num_kept("trial"))
    with one_thread():
        while planned := next_trials(scenario, runs, parts):
            runs += at_work.run_all(planned, here, progress=progress)
    return choose(scenario, runs)


def doubts(scenario: Scenario) -> Iterator[str]:
    """Sentences about values of a valid scenario, without a full stop."""
    workload, compute, stop = scenario.workload, scenario.cluster.compute, scenario.stop
    sizes = batch_sizes(workload, scenario.cluster, scenario.seed)
    if compute.measured is not None:
        yield from filter(None, map(compute.measured.outside, sorted({*sizes})))
    gradient_s = workload.accumulate * (compute.time or 0.0)
    max_time_s = math.inf if stop.max_time is None else stop.max_time
    steps = min(stop.max_iterations or math.inf, max_time_s / gradient_s if gradient_s else math.inf)
    if steps < 1:
        yield (
            f"stop.max_time: {format_seconds(max_time_s)} is over before the first gradient, which takes "
            f"{format_seconds(gradient_s)}"
        )
    for number, entry in enumerate(scenario.schemes):
        period = period_steps(getattr(entry.options, "period", 0))
        if isinstance(period, int) and period > steps >= 1:
            yield f"schemes.{number}.period: {period:,} steps are more than the run's {steps:,.0f} at most"
    if workload.timing_only or workload.curves is not None:
        return
    task = find_task(workload.task)
    shards = 1 if workload.partition.kind == "replicated" else scenario.cluster.workers
    share = task.facts(workload.options, scenario.seed).num_examples / shards
    if workload.proxy_batch is None and max(sizes) > share:
        yield f"workload.batch_size: {max(sizes):,} is more than a worker's {share:,.0f} examples"
    target = stop.target
    if target is not None and target.value == task.range_of(target.metric)[target.metric not in task.falling]:
        yield f"stop.target.value: {target.value:g} is as good as {target.metric} can be; few runs get there"
