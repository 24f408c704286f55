"""The settings of a grid, and their runs side by side, so that what they share is computed once."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch

from ...devices import one_thread
from ...errors import InputError, shorten
from ...records.run import Run
from ...records.summary import Tuned
from ...scenario.repeats import are_enough
from ...scenario.schema import Scenario
from .. import prepare
from ..jobs import PlannedRun
from ..simulate import Progress, job_of, trials_of
from ..tune import tune
from .shared import simulate_jobs

MAX_SETTINGS: Final = 10_000
"""Settings of one grid."""


def settings_of(grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """All combinations of a grid's values, the last key's values changing first.

    >>> settings_of({"a": [1, 2], "b": ["x", "y"]})[1]
    {'a': 1, 'b': 'y'}

    Raises:
        InputError: there are none, or too many.
    """
    for key, values in grid.items():
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise InputError(
                f"grid: {shorten(str(key))}: write a list of values, for example ['1 ms', '10 ms']"
            )
    number = math.prod(map(len, grid.values()))
    if not grid or number > MAX_SETTINGS:
        raise InputError(
            f"grid: it has {number if grid else 0:,} settings; from 1 to {MAX_SETTINGS:,} are possible"
        )
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def changes_of(setting: Mapping[str, Any]) -> list[str]:
    """A setting as ``dotted.key=value`` each.

    Raises:
        InputError: a value cannot stand in a scenario.
    """
    changes = []
    for key, value in setting.items():
        try:
            changes.append(f"{key}={json.dumps(value, allow_nan=False)}")
        except (TypeError, ValueError):
            text = shorten(repr(value))
            raise InputError(
                f"grid: {shorten(str(key))}: {text} is no value that can stand in a scenario"
            ) from None
    return changes


def resolve(scenarios: Sequence[Scenario], device: torch.device) -> list[Scenario]:
    """Resolve each scenario; what a gradient takes is measured once for all that measure the same.

    Raises:
        InputError: as ``prepare.resolve``.
    """
    resolved: list[Scenario] = []
    for scenario in scenarios:
        for before, known in zip(scenarios, resolved, strict=False):
            if before.workload == scenario.workload and before.cluster.compute == scenario.cluster.compute:
                cluster = scenario.cluster.model_copy(update={"compute": known.cluster.compute})
                scenario = scenario.model_copy(update={"cluster": cluster})
                break
        resolved.append(prepare.resolve(scenario, device))
    return resolved


def choose_values(
    scenarios: Sequence[Scenario], *, device: torch.device | None = None, progress: Progress | None = None
) -> tuple[list[Scenario], list[list[Tuned]]]:
    """Run the trials of ``tune`` of each scenario; the scenarios with their values, and what was tried."""
    trials = [trials_of(scenario) for scenario in scenarios]
    with one_thread():
        runs = [iter(each) for each in _side_by_side(trials, device, progress, None, None)]
    chosen = [
        tune(scenario, lambda *_, own=own: next(own)) for scenario, own in zip(scenarios, runs, strict=True)
    ]
    return [scenario for scenario, _ in chosen], [tuned for _, tuned in chosen]


def simulate(
    scenarios: Sequence[Scenario],
    *,
    device: torch.device | None = None,
    progress: Progress | None = None,
    complete: Callable[[], None] | None = None,
    warn: Callable[[str], None] | None = None,
) -> list[list[Run]]:
    """Simulate all schemes under all seeds in each scenario; its runs are those of ``simulate`` for it alone.

    Args:
        scenarios: resolved, and their values chosen.
        device: where gradients are computed.
        progress: called as runs go on.
        complete: called when a scheme under one seed is complete in all scenarios.
        warn: as for ``simulate_job``; called as well where the time of a gradient is extrapolated.
    """
    if warn is not None:
        for sentence in sorted({prepare.warn_of_extrapolation(scenario) for scenario in scenarios} - {""}):
            warn(sentence)
    runs: list[list[Run]] = [[] for _ in scenarios]
    with one_thread():
        while True:
            planned = [_next_seed(*each) for each in zip(scenarios, runs, strict=True)]
            if not any(planned):
                return runs
            for own, new in zip(runs, _side_by_side(planned, device, progress, complete, warn), strict=True):
                own += new


def _next_seed(scenario: Scenario, runs: Sequence[Run]) -> list[PlannedRun]:
    """The runs of all schemes under the next seed; none where those that are there are enough."""
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
    progress: Progress | None,
    complete: Callable[[], None] | None,
    warn: Callable[[str], None] | None,
) -> list[list[Run]]:
    """The runs of several scenarios: the first of each together, then the second of each, and so on."""
    runs: list[list[Run]] = [[] for _ in planned]
    for column in range(max(map(len, planned), default=0)):
        rows = [row for row, own in enumerate(planned) if column < len(own)]
        now = [planned[row][column] for row in rows]
        jobs = [(job_of(each, device), each.scenario.cluster.profile) for each in now]
        for row, run in zip(rows, simulate_jobs(jobs, progress=progress, warn=warn), strict=True):
            runs[row].append(run)
        if complete is not None:
            complete()
    return runs
