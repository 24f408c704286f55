"""One cell of a comparison: a scheme under a seed, for a given length. What the ranks are asked to run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

from paceline.sim.drivers.job import Job
from paceline.sim.errors import InputError
from paceline.sim.experiments.prepare import prepare, seeds_of
from paceline.sim.scenario.repeats import AutoRepeats
from paceline.sim.scenario.schema import Scenario, dump, parse

from ..driver.collect import RankResult
from ..driver.run import run_job
from ..group.group import Group
from ..transport.device import device_of


@dataclass(frozen=True)
class RunRequest:
    """A run to be made for real.

    Attributes:
        scenario: the text of the resolved scenario.
        entry: which of its schemes.
        seed: of the repeat.
        max_iterations, max_time_s: its length, which is fixed before it starts; None: no such limit.
    """

    scenario: str
    entry: int
    seed: int
    max_iterations: int | None = None
    max_time_s: float | None = None

    def to_json(self) -> str:
        """On one line."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(line: str | bytes) -> RunRequest:
        """The inverse of ``to_json``."""
        return RunRequest(**json.loads(line))


def run_requests(scenario: Scenario) -> list[RunRequest]:
    """All schemes under all seeds, for as long as the scenario says.

    Raises:
        InputError: the scenario does not fix how long a scheme runs.
    """
    check_fixed(scenario)
    stop = scenario.stop
    for entry in scenario.schemes:
        if stop.max_iterations is None and (stop.max_time is None or _synchronous(scenario, entry.label)):
            raise InputError(
                f"{entry.label}: a real run's length is fixed before it starts: give stop.max_iterations"
                + ("" if _synchronous(scenario, entry.label) else " or stop.max_time")
            )
    text = dump(scenario)
    return [
        RunRequest(text, number, seed, stop.max_iterations, stop.max_time)
        for seed in seeds_of(scenario)
        for number in range(len(scenario.schemes))
    ]


def check_fixed(scenario: Scenario) -> None:
    """Raise ``InputError`` unless it is known before any run what has to be run."""
    if isinstance(scenario.repeats, AutoRepeats):
        raise InputError("a real run needs a number of repeats: add --set repeats=5")
    if scenario.tune is not None:
        raise InputError(
            "values are tuned in simulation: run 'paceline simulate SCENARIO --out DIR', then give "
            "DIR/scenario.yaml, which holds the values chosen"
        )


def _synchronous(scenario: Scenario, label: str) -> bool:
    from paceline.sim.schemes import find_scheme

    return next(
        find_scheme(entry.name).in_step(entry.options) for entry in scenario.schemes if entry.label == label
    )


@lru_cache(maxsize=8)
def _scenario(text: str) -> Scenario:
    return parse(text)


def requested_job(cell: RunRequest, rank: int) -> Job:
    """The job of a cell, with its values where the backend of this rank wants them."""
    scenario = _scenario(cell.scenario)
    device = device_of(scenario.cluster.backend, rank)
    job = prepare(scenario, scenario.schemes[cell.entry], cell.seed, device)
    limit_s = float("inf") if cell.max_time_s is None else cell.max_time_s
    return replace(job, max_iterations=cell.max_iterations, max_time_s=limit_s)


def crashing(cell: RunRequest) -> frozenset[int]:
    """The ranks whose processes end before the run does, as the scenario plans it."""
    stragglers = _scenario(cell.scenario).cluster.stragglers
    return frozenset(rank for each in stragglers if each.crash for rank in each.workers or ())


def run_request(
    group: Group,
    cell: RunRequest,
    timeout_s: float,
    progress: Callable[[int], None] | None = None,
    **options: Any,
) -> RankResult:
    """Run a cell on a group; every rank calls this with the same cell. ``options`` as for ``run_job``."""
    backend = _scenario(cell.scenario).cluster.backend
    job = requested_job(cell, group.rank)
    return run_job(group, job, backend=backend, timeout_s=timeout_s, progress=progress, **options)


def fingerprint(text: str) -> str:
    """A short hash of a scenario's text, to compare what the ranks were given."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]
