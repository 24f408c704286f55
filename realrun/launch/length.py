"""How long real runs are to be: fixed before they start, by the scenario or by a simulation of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from paceline.sim.experiments.prepare import prepare
from paceline.sim.experiments.simulate import simulate_job
from paceline.sim.scenario.schema import Scenario

from .cells import RunRequest, run_requests

LENGTH_MARGIN = 1.2
"""A real run goes on for this much longer than the simulated one took to its target."""


def with_lengths(scenario: Scenario, progress: Callable[[str, int], None] | None = None) -> list[RunRequest]:
    """The runs of a scenario with their lengths.

    ``stop.max_iterations`` is the length where it is given. Otherwise each run is simulated first: a
    synchronous scheme then gets ``MARGIN`` times the steps that it needed, an asynchronous one as much time.
    """
    if scenario.stop.max_iterations is not None:
        return run_requests(scenario)
    bounded = scenario.model_copy(update={"stop": scenario.stop.model_copy(update={"max_iterations": 1})})
    cells = []
    for cell in run_requests(bounded):
        job = prepare(scenario, scenario.schemes[cell.entry], cell.seed)
        run = simulate_job(replace(job, record_events=False), progress=progress)
        if job.synchronous:
            length = replace(
                cell, max_iterations=max(1, math.ceil(LENGTH_MARGIN * run.iterations)), max_time_s=None
            )
        else:
            length = replace(cell, max_iterations=None, max_time_s=LENGTH_MARGIN * run.wall_clock_s)
        cells.append(length)
    return cells
