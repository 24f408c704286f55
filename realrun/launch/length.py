"""Lengths of real runs: fixed before they begin, by the scenario or by a prediction."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from paceline.sim.drivers.job import UNRECORDED
from paceline.sim.experiments.prepare import prepare
from paceline.sim.experiments.simulate import simulate_job
from paceline.sim.network.build import build_network
from paceline.sim.records.run import Run
from paceline.sim.scenario.entries import SchemeEntry
from paceline.sim.scenario.schema import Scenario, over_transport
from paceline.sim.schemes import find_scheme

from .cells import RunRequest, run_requests

LENGTH_MARGIN: Final = 1.2
"""Ratio of a real run's steps, or time, to those of its prediction."""


def with_length(request: RunRequest, scenario: Scenario, entry: SchemeEntry, predicted: Run) -> RunRequest:
    """The request with the length of its prediction, and a margin.

    A synchronous scheme gets a number of steps: ``LENGTH_MARGIN`` times those of the worker furthest ahead at
    the prediction's end, rounded up to whole multiples of ``evaluate.every`` and then of the scheme's period.
    An asynchronous one gets a time, after which its workers stop where they are. ``stop.max_iterations``
    limits each worker on both sides; without a target it is the length as it stands. ``predicted`` was
    simulated to the target or to the scenario's limits.
    """
    limit = scenario.stop.max_iterations
    if scenario.stop.target is None and limit is not None:
        return replace(request, max_iterations=limit, max_time_s=None)
    scheme, cluster = find_scheme(entry.name), scenario.cluster
    if scheme.in_step(entry.options):
        last = predicted.evaluations[-1].steps if predicted.evaluations else ()
        steps = math.ceil(LENGTH_MARGIN * max(predicted.iterations, *last, 0))
        units = scheme.units(entry.options, build_network(cluster.network, cluster.workers))
        for whole in (scenario.evaluate.every, scheme.cycle(entry.options, units)):
            steps = max(1, math.ceil(steps / whole)) * whole
        return replace(request, max_iterations=steps if limit is None else min(steps, limit), max_time_s=None)
    needed_s = predicted.time_to_target_s or predicted.wall_clock_s
    return replace(request, max_iterations=limit, max_time_s=LENGTH_MARGIN * needed_s)


def with_lengths(scenario: Scenario, progress: Callable[[str, int], None] | None = None) -> list[RunRequest]:
    """The requests of a scenario with lengths predicted for the backend of the real runs.

    ``stop.max_iterations`` is the length where given; otherwise each run is simulated first.
    """
    if scenario.stop.max_iterations is not None:
        return run_requests(scenario)
    bounded = scenario.model_copy(update={"stop": scenario.stop.model_copy(update={"max_iterations": 1})})
    carried = over_transport(scenario, scenario.cluster.backend)
    requests = []
    for request in run_requests(bounded):
        entry = scenario.schemes[request.entry]
        job = prepare(carried, entry, request.seed)
        run = simulate_job(
            replace(job, recording=UNRECORDED), progress=progress, profile=carried.cluster.profile
        )
        requests.append(with_length(request, scenario, entry, run))
    return requests
