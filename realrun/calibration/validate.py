"""Predict and measure the same scenario, and put both side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from paceline.sim.errors import RunError
from paceline.sim.experiments.prepare import prepare, seeds_of
from paceline.sim.experiments.simulate import simulate_job
from paceline.sim.network import profile as profiles
from paceline.sim.network.build import build_network
from paceline.sim.network.profile import HostKind, Profile
from paceline.sim.records import comparison as compare
from paceline.sim.records.run import Run
from paceline.sim.scenario.entries import SchemeEntry
from paceline.sim.scenario.schema import Scenario, Stop, dump, parse
from paceline.sim.schemes import find_scheme

from ..launch.cells import check_fixed
from ..launch.pool import Answer, Pool
from . import measure

BEYOND: Final = 1.2
"""A measured run goes on to this multiple of the predicted time or steps to the target."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Validation:
    """What was predicted, what was measured, and how they compare."""

    scenario: Scenario
    predicted: tuple[Run, ...]
    measured: tuple[Run, ...]
    comparison: compare.Comparison


def with_step_limit(scenario: Scenario, steps: int | None) -> Scenario:
    """The scenario for both sides: gradients one by one, as real workers do; exactly ``steps`` if given."""
    changes: dict[str, object] = {"gradients": "looped"}
    if steps is not None:
        changes["stop"] = Stop(max_iterations=steps)
    return scenario.model_copy(update=changes)


def measured_stop(scenario: Scenario, entry: SchemeEntry, predicted: Run) -> dict[str, object]:
    """How long the real run goes on, fixed before it starts: changes to the scenario, and a horizon.

    A synchronous scheme gets a number of steps, an asynchronous one a time.
    """
    stop = scenario.stop
    if stop.target is None and stop.max_iterations is not None:
        return {"max_iterations": stop.max_iterations}
    if find_scheme(entry.name).in_step(entry.options):
        steps = predicted.iterations * (BEYOND if predicted.reached_target else 1)
        every = scenario.evaluate.every
        return {"max_iterations": max(1, math.ceil(steps / every)) * every}
    time_s = (predicted.time_to_target_s or predicted.wall_clock_s) * BEYOND
    return {"max_time_s": time_s}


def request(scenario: Scenario, number: int, seed: int, stop: dict[str, object]) -> dict[str, object]:
    """What to ask a pool for."""
    limit = stop.get("max_iterations")
    asked = scenario.model_copy(
        update={
            "stop": scenario.stop.model_copy(
                update={"max_iterations": limit, "max_time": stop.get("max_time_s")}
            )
        }
    )
    found: dict[str, object] = {"scenario": dump(asked), "scheme": number, "seed": seed}
    return found


def successful_run(answer: Answer) -> Run:
    """The run, unless its computations did not fit into their time.

    Raises:
        RunError: more than 1 % of the gradients took longer than the compute model says.
    """
    if answer.overruns > 0.01 * answer.gradients:
        raise RunError(
            f"{answer.run.label}: {answer.overruns} of {answer.gradients} gradients took longer on this "
            "machine than the scenario's compute time; raise cluster.compute.time, or use fewer workers"
        )
    return answer.run


def validate(scenario: Scenario, pool: Pool, profile: Profile, steps: int | None, say: Say) -> Validation:
    """Simulate every scheme and seed with the profile, run each for real, compare."""
    check_fixed(scenario)
    both = with_step_limit(scenario, steps)
    pool.shape(build_network(both.cluster.network, both.cluster.workers))
    warnings: list[str] = []
    predicted, measured = [], []
    for seed in seeds_of(both):
        for number, entry in enumerate(both.schemes):
            run = simulate_job(prepare(both, entry, seed), profile=profile, warn=warnings.append)
            predicted.append(run)
            say(f"{entry.label}, seed {seed}: predicted {run.wall_clock_s:.2f} s, measuring")
            measured.append(
                successful_run(
                    pool.run(
                        both.cluster.workers, request(both, number, seed, measured_stop(both, entry, run))
                    )
                )
            )
    unique = list(dict.fromkeys(warnings))
    free = {entry.label for entry in both.schemes if not find_scheme(entry.name).in_step(entry.options)}
    return Validation(
        both, tuple(predicted), tuple(measured), compare.compare(both.name, predicted, measured, unique, free)
    )


def hosts_of(scenario: Scenario, lab: bool) -> HostKind:
    """What kind of hosts a real run of the scenario would have."""
    return measure.lab_hosts(scenario.lab.hosts, scenario.lab.queue) if lab else HostKind(kind="cluster")


def profile_for(scenario: Scenario, path: Path | None, hosts: HostKind) -> Profile | None:
    """The profile in ``path``, else that of the scenario, if it has one.

    Raises:
        InputError: it cannot be read, or is about another kind of hosts.
    """
    found = profiles.load(path) if path is not None else scenario.cluster.profile
    if found is not None:
        profiles.check_hosts(found, hosts, str(path or "cluster.profile"))
    return found


@contextmanager
def open_pool(scenario: Scenario, lab: bool, probing: bool) -> Iterator[Pool]:
    """Processes for a scenario, and for standard probes before it."""
    network = build_network(scenario.cluster.network, scenario.cluster.workers)
    standard = parse(measure.STANDARD).cluster
    if probing and standard.workers > network.num_hosts:
        network = build_network(standard.network, standard.workers)
    with Pool(network, lab=lab, hosts=scenario.lab.hosts, queue=scenario.lab.queue) as pool:
        yield pool
