"""Predict and measure one scenario, and compare both.

Where the order of arrival decides which models there are, milliseconds of the machine's own move the time to
the target by many per cent, in real runs and in simulated ones alike. So a measured value of such a scheme is
compared with the range of 30 simulated runs, and its mean over the repeats with their means.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Final

from paceline.sim.config.files import format_json
from paceline.sim.config.limits import MAX_STEPS
from paceline.sim.devices import one_thread
from paceline.sim.drivers.job import Job
from paceline.sim.errors import InputError, RunError, quote, shorten
from paceline.sim.experiments.costs.bounds import describe_schemes
from paceline.sim.experiments.parity import compare_iterates
from paceline.sim.experiments.prepare import check_queue, prepare, seeds_of, with_chosen, with_units
from paceline.sim.experiments.simulate import simulate_job
from paceline.sim.network import profile as profiles
from paceline.sim.network.build import build_network
from paceline.sim.network.network import Network
from paceline.sim.network.profile import HostKind, Profile
from paceline.sim.network.transport import AUTO_ALGORITHM, TRANSPORTS
from paceline.sim.records.comparison import (
    DEFAULT_TOLERANCE_PCT,
    Comparison,
    ErrorRow,
    MeanRow,
    Metric,
    Pair,
    Trajectory,
    compare,
    error_pct,
    judge,
    noise_rows,
)
from paceline.sim.records.folder import PROBES_FILE, PROFILE_FILE, VALIDATION_FILE, write_results
from paceline.sim.records.intervals import DRAWN_RUNS, of_runs
from paceline.sim.records.run import Run
from paceline.sim.records.scenario_facts import read_facts
from paceline.sim.scenario.parts import Stop
from paceline.sim.scenario.schema import Scenario, dump, over_transport, parse
from paceline.sim.schemes import find_scheme

from ..lab import Lab
from ..launch.cells import RankPool, Result, RunRequest, check_fixed, with_length
from ..launch.processes import Processes, check_faults, check_processes
from . import cluster_probes

Say = Callable[[str], None]

_MOST_OVERRUNS = 0.01
"""Largest share of a run's gradients over their time in a run that counts."""
DRAWS: Final = range(1_000, 1_000 + DRAWN_RUNS)
"""Seeds of the simulated runs."""


@dataclass
class Validation:
    """Predicted and measured runs of a scenario, so far, and at last their comparison.

    Attributes:
        measured: runs; the last one may have failed.
        repeated: a measured run, and another of the same scheme and draws.
        trajectories: of synchronous schemes.
    """

    scenario: Scenario
    profile: Profile | None
    predicted: list[Run] = field(default_factory=list)
    measured: list[Run] = field(default_factory=list)
    repeated: list[tuple[Run, Run]] = field(default_factory=list)
    trajectories: list[Trajectory] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    comparison: Comparison = field(init=False)

    def measure(self, ranks: RankPool, say: Say) -> None:
        """Predict and measure everything; raises ``RunError`` if a run fails, and keeps the runs so far."""
        text = dump(self.scenario)
        first: list[tuple[RunRequest, Run]] = []
        for seed in seeds_of(self.scenario):
            for number, entry in enumerate(self.scenario.schemes):
                with one_thread():  # as real workers, whose sums must have the same bits
                    job = prepare(self.scenario, entry, seed)
                    run = simulate_job(job, profile=self.profile, warn=self.warnings.append)
                self.predicted.append(run)
                say(f"{shorten(entry.label)}, seed {seed}: predicted {run.wall_clock_s:.2f} s, measuring")
                request = with_length(RunRequest(text, number, seed), self.scenario, entry, run)
                result = ranks.run(request)
                if result.run.status == "partial":
                    self.measured.append(result.run)
                self.measured.append(successful_run(result))
                if len(first) < len(self.scenario.schemes):
                    first.append((request, self.measured[-1]))
                if find_scheme(entry.name).in_step(entry.options):
                    with one_thread():
                        job = prepare(self.scenario, entry, seed)
                        self.trajectories.append(compare_iterates(job, self.measured[-1]))
        for request, before in first:
            say(f"{shorten(before.label)}, seed {before.seed}: measuring again, for the noise floor")
            self.repeated.append((before, successful_run(ranks.run(request))))

    def again(
        self, comparison: Comparison, free: Collection[str], profile: Profile, tolerance_pct: float
    ) -> dict[tuple[str, int], list[Run]]:
        """Label and seed -> further simulated runs of the ``free`` schemes beyond the tolerance."""
        noise = noise_rows(self.repeated)
        off = {
            *(cell["label"] for cell in comparison["cells"] if abs(cell["error_pct"]) > tolerance_pct),
            *(row["label"] for row in noise if abs(row["difference_pct"]) > tolerance_pct),
        }
        runs = {}
        for entry, seed in product(self.scenario.schemes, seeds_of(self.scenario)):
            if entry.label in off.intersection(free):
                with one_thread():
                    job = prepare(self.scenario, entry, seed)
                    runs[entry.label, seed] = [simulate_again(job, profile, draw) for draw in DRAWS]
        return runs


def other_wake_ups(job: Job, seed: int) -> Job:
    """``job`` on the same machine with wake-up delays drawn under another seed."""
    return replace(job, transfer=replace(job.transfer, seed=seed))


def simulate_again(job: Job, profile: Profile, seed: int) -> Run:
    """Simulate the job with other wake-up delays, and with factors drawn from the profile's uncertainty."""
    return simulate_job(other_wake_ups(job, seed), profile=profile.drawn(seed))


def with_chance(
    comparison: Comparison, measured: Iterable[Run], again: Mapping[tuple[str, int], Sequence[Run]]
) -> Comparison:
    """Add ranges over the further simulated runs ``again`` (by label and seed), and means over repeats."""
    cells: list[ErrorRow] = []
    drawn: dict[tuple[str, Metric], list[tuple[ErrorRow, list[float]]]] = defaultdict(list)
    real = {(run.label, run.seed): run for run in measured}
    for cell in comparison["cells"]:
        key = cell["label"], cell["seed"]
        values = [
            other["predicted"]
            for run in again.get(key, ())
            for other in Pair(run, real[key]).cells()
            if other["metric"] == cell["metric"]
        ]
        cells.append({**cell, "simulated_s": of_runs(values)} if values else cell)
        if values:
            drawn[cell["label"], cell["metric"]].append((cell, values))
    means = []
    for (label, metric), repeats in drawn.items():
        if len(repeats) > 1:
            sets = [fmean(each) for each in zip(*(values for _, values in repeats), strict=False)]
            predicted, value = (fmean(cell[key] for cell, _ in repeats) for key in ("predicted", "measured"))
            means.append(
                MeanRow(
                    label=label, metric=metric, predicted=predicted, measured=value,
                    error_pct=error_pct(predicted, value), simulated_s=of_runs(sets),
                )
            )  # fmt: skip
    return {**comparison, "cells": cells, "means": means}


def with_step_limit(scenario: Scenario, steps: int | None) -> Scenario:
    """The scenario for both sides: gradients one by one, as on real workers; exactly ``steps`` if given."""
    changes: dict[str, object] = {"gradients": "looped"}
    if steps is not None:
        changes["stop"] = Stop(max_iterations=steps)
    return scenario.model_copy(update=changes)


def successful_run(result: Result) -> Run:
    """The run; ``RunError`` if partial, or if more than 1 % of its gradients took longer than modelled."""
    run = result.run
    if run.status == "partial":
        raise RunError(run.message)
    overruns = [timing.overruns for timing in result.timings]
    gradients = sum(timing.gradients for timing in result.timings)
    if sum(overruns) > _MOST_OVERRUNS * gradients:
        slowest = overruns.index(max(overruns))
        raise RunError(
            f"{shorten(run.label)}: {sum(overruns)} of {gradients} gradients took longer on this "
            f"machine than the scenario's compute time, {max(overruns)} of them on worker {slowest}; raise "
            "cluster.compute.time, or use fewer workers"
        )
    return run


def check_options(scenario: Scenario, steps: int | None, tolerance_pct: float) -> None:
    """Raise ``InputError`` unless the scenario fixes all runs, and ``steps`` and tolerance are positive."""
    check_fixed(scenario)
    check_queue(scenario.cluster.network.queue)
    if steps is not None and not 1 <= steps <= MAX_STEPS:
        raise InputError(f"--steps {shorten(steps)}: a run has from 1 to {MAX_STEPS:,} steps")
    if not 0 < tolerance_pct < math.inf:
        raise InputError(f"--tolerance {tolerance_pct:g}: must be more than 0 per cent")


def validate(
    scenario: Scenario,
    ranks: RankPool,
    profile: Profile | None,
    steps: int | None,
    say: Say,
    tolerance_pct: float = DEFAULT_TOLERANCE_PCT,
) -> Validation:
    """Simulate every scheme and seed with the profile, run each for real, compare.

    All schemes run under the first seed, then all under the next one, so that a bad minute does not hit one
    of them alone; at the end all under the first seed again, for the noise floor. The first failed real run
    is the last.

    Args:
        profile: the factors for the prediction; None: constants of the transport.
        steps: of every run; None: to the target.
        say: called with a line before every real run.
        tolerance_pct: see ``judge``.

    Raises:
        InputError: the scenario leaves open what to run, or has no real run; a number is out of range.
        RunError: there is no real run at all.
    """
    check_options(scenario, steps, tolerance_pct)
    transport = scenario.cluster.backend if profile is None else profile.hosts.transport
    both = over_transport(with_units(with_step_limit(scenario, steps)), transport)
    if ranks.lab:
        ranks.lab.reconfigure(build_network(both.cluster.network, both.cluster.workers))
    done = Validation(both, profile)
    forced = both.collectives.all_reduce
    if forced not in (AUTO_ALGORITHM, "hierarchical", *TRANSPORTS[both.cluster.network.transport].choices):
        done.warnings.append(
            f"the prediction has the all-reduce {quote(forced)}, and real runs their library's own"
        )
    failure = ""
    try:
        done.measure(ranks, say)
    except RunError as error:
        if not done.measured:
            raise
        failure = str(error)
    free = {entry.label for entry in both.schemes if not find_scheme(entry.name).in_step(entry.options)}
    looped = both.gradients == "looped"  # as on real workers, which compute one by one
    comparison = compare(
        both.name, done.predicted, done.measured, list(dict.fromkeys(done.warnings)), free, looped,
        done.trajectories,
    )  # fmt: skip
    if profile is not None:
        comparison = with_chance(
            comparison, done.measured, done.again(comparison, free, profile, tolerance_pct)
        )
    done.comparison = judge(comparison, done.repeated, tolerance_pct, failure)
    done.comparison["transport"] = read_facts(dump(with_chosen(both, both.schemes))).transport
    return done


def write(
    validation: Validation,
    out: Path,
    force: bool,
    profile: Profile | None,
    probes: cluster_probes.Measurements | None,
) -> None:
    """Write a result folder with both sides' runs, their comparison, profile and probes, if any.

    Raises ``InputError`` if ``out`` exists (``force`` replaces a result folder), or cannot be written.
    """
    scenario = validation.scenario
    added = {VALIDATION_FILE: json.dumps(validation.comparison, indent=1, allow_nan=False) + "\n"}
    if profile is not None:
        added[PROFILE_FILE] = profiles.dump(profile)
    if probes is not None:
        added[PROBES_FILE] = format_json(probes)
    runs = [*validation.predicted, *validation.measured]
    write_results(
        out, dump(scenario), scenario.name, runs, force=force, facts=describe_schemes(scenario), added=added
    )


def exit_status(validation: Validation) -> int:
    """1 if the verdict is ``fail`` or a prediction failed; 0 if it is ``pass`` or ``noisy``."""
    failed = any(run.status == "partial" for run in validation.predicted)
    return 1 if failed or validation.comparison["verdict"]["outcome"] == "fail" else 0


def lab_of(scenario: Scenario, network: Network) -> Lab:
    """A lab with the scenario's hosts and queues, which emulates ``network``."""
    settings = scenario.cluster.network
    return Lab(network, tcp=settings.tcp, queue=settings.queue)


def profile_for(scenario: Scenario, path: Path | None, hosts: HostKind) -> Profile | None:
    """The profile in ``path``, else that of the scenario, if it has one.

    Raises ``InputError`` if it cannot be read, or is about another kind of hosts.
    """
    profile = profiles.load(path) if path is not None else scenario.cluster.profile
    if profile is not None:
        profiles.check_hosts(profile, hosts, str(path or "cluster.profile"))
    return profile


def processes_for(scenario: Scenario, lab: bool, probing: bool) -> Processes:
    """Processes for a scenario and for standard probes before it, in a lab or on this machine's loopback."""
    check_processes(scenario.cluster.workers)
    check_faults(scenario, lab)
    if not lab:
        return Processes()
    network = build_network(scenario.cluster.network, scenario.cluster.workers)
    standard = parse(cluster_probes.STANDARD).cluster
    if probing and standard.workers > network.num_hosts:
        network = build_network(standard.network, standard.workers)
    return Processes(lab=lab_of(scenario, network))
