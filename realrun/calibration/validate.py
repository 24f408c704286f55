"""Predict and measure the same scenario, and put both side by side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from paceline.sim.config.files import write_atomically, write_json
from paceline.sim.devices import one_thread
from paceline.sim.errors import RunError, shorten
from paceline.sim.experiments.parity import compare_iterates
from paceline.sim.experiments.prepare import prepare, seeds_of
from paceline.sim.experiments.simulate import simulate_job
from paceline.sim.network import profile as profiles
from paceline.sim.network.build import build_network
from paceline.sim.network.profile import HostKind, Profile
from paceline.sim.records.comparison import Comparison, compare
from paceline.sim.records.folder import PROBES_FILE, PROFILE_FILE
from paceline.sim.records.run import Run
from paceline.sim.scenario.schema import Scenario, Stop, dump, over_transport, parse
from paceline.sim.schemes import find_scheme

from ..lab import Lab
from ..launch.cells import Result, RunRequest, check_fixed
from ..launch.length import with_length
from ..launch.processes import Processes
from . import measure

Say = Callable[[str], None]

_MOST_OVERRUNS = 0.01
"""Share of a run's gradients that may take longer than their time before the run does not count."""


@dataclass(frozen=True)
class Validation:
    """Predicted and measured runs of a scenario, and how they compare."""

    scenario: Scenario
    predicted: tuple[Run, ...]
    measured: tuple[Run, ...]
    comparison: Comparison


def with_step_limit(scenario: Scenario, steps: int | None) -> Scenario:
    """The scenario for both sides: gradients one by one, as real workers do; exactly ``steps`` if given."""
    changes: dict[str, object] = {"gradients": "looped"}
    if steps is not None:
        changes["stop"] = Stop(max_iterations=steps)
    return scenario.model_copy(update=changes)


def successful_run(result: Result) -> Run:
    """The run, unless it failed or its computations did not fit into their time.

    Raises:
        RunError: it is partial, or more than 1 % of the gradients took longer than the compute model says.
    """
    run = result.run
    if run.status == "partial":
        raise RunError(run.message)
    if result.overruns > _MOST_OVERRUNS * result.gradients:
        raise RunError(
            f"{shorten(run.label)}: {result.overruns} of {result.gradients} gradients took longer on this "
            "machine than the scenario's compute time; raise cluster.compute.time, or use fewer workers"
        )
    return run


def validate(
    scenario: Scenario, processes: Processes, profile: Profile, steps: int | None, say: Say
) -> Validation:
    """Simulate every scheme and seed with the profile, run each for real, compare.

    Args:
        scenario: what to predict and to measure.
        processes: where it is measured.
        profile: the factors to predict with.
        steps: of every run; None: to the target.
        say: called with a line before every real run.

    Raises:
        InputError: the scenario leaves open what has to be run, or cannot be run for real.
        RunError: a real run failed, or its computations did not fit into their time.
    """
    check_fixed(scenario)
    both = over_transport(with_step_limit(scenario, steps), profile.hosts.transport)
    text = dump(both)
    processes.shape(build_network(both.cluster.network, both.cluster.workers))
    warnings: list[str] = []
    predicted, measured, trajectories = [], [], []
    for seed in seeds_of(both):
        for number, entry in enumerate(both.schemes):
            with one_thread():  # as real workers, whose sums must have the same bits
                run = simulate_job(prepare(both, entry, seed), profile=profile, warn=warnings.append)
            predicted.append(run)
            say(f"{shorten(entry.label)}, seed {seed}: predicted {run.wall_clock_s:.2f} s, measuring")
            request = with_length(RunRequest(text, number, seed), both, entry, run)
            run = successful_run(processes.run(request))
            measured.append(run)
            if find_scheme(entry.name).in_step(entry.options):
                with one_thread():
                    trajectories.append(compare_iterates(prepare(both, entry, seed), run))
    unique = list(dict.fromkeys(warnings))
    free = {entry.label for entry in both.schemes if not find_scheme(entry.name).in_step(entry.options)}
    looped = both.gradients == "looped"  # as on real workers, which compute one by one
    comparison = compare(both.name, predicted, measured, unique, free, looped, trajectories)
    return Validation(both, tuple(predicted), tuple(measured), comparison)


def write_factors(folder: Path, profile: Profile, probes: measure.Measurements | None) -> None:
    """Add to a result folder what it was predicted with: the factors, and the probes that they are from.

    Raises:
        InputError: they cannot be written.
    """
    write_atomically(folder / PROFILE_FILE, profiles.dump(profile))
    if probes is not None:
        write_json(probes, folder / PROBES_FILE)


def hosts_of(scenario: Scenario, lab: bool) -> HostKind:
    """The kind of hosts that a real run of the scenario would have."""
    return measure.lab_hosts(scenario.lab.hosts, scenario.lab.queue) if lab else HostKind(kind="cluster")


def profile_for(scenario: Scenario, path: Path | None, hosts: HostKind) -> Profile | None:
    """The profile in ``path``, else that of the scenario, if it has one.

    Raises:
        InputError: it cannot be read, or is about another kind of hosts.
    """
    profile = profiles.load(path) if path is not None else scenario.cluster.profile
    if profile is not None:
        profiles.check_hosts(profile, hosts, str(path or "cluster.profile"))
    return profile


def processes_for(scenario: Scenario, lab: bool, probing: bool) -> Processes:
    """Processes for a scenario and for standard probes before it, in a lab or on this machine's loopback."""
    if not lab:
        return Processes()
    network = build_network(scenario.cluster.network, scenario.cluster.workers)
    standard = parse(measure.STANDARD).cluster
    if probing and standard.workers > network.num_hosts:
        network = build_network(standard.network, standard.workers)
    return Processes(lab=Lab(network, hosts=scenario.lab.hosts, queue=scenario.lab.queue))
