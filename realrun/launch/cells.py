"""Run requests, one scheme under one seed for a given length each, and their results."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Protocol

from pydantic import TypeAdapter

from paceline.sim.drivers.job import Job
from paceline.sim.errors import InputError, shorten
from paceline.sim.experiments.costs.bounds import describe_schemes
from paceline.sim.experiments.prepare import prepare, seeds_of
from paceline.sim.network.network import Network
from paceline.sim.records.run import Run
from paceline.sim.records.unfinished import NOTHING_KEPT, Parts, open_parts
from paceline.sim.scenario.repeats import AutoRepeats
from paceline.sim.scenario.schema import Scenario, dump, over_transport, parse
from paceline.sim.schemes import find_scheme

from ..driver.collect import RankResult
from ..driver.rank_log import Timing
from ..driver.run import run_job
from ..group.group import Group
from ..lab.protocol import Statistics
from ..transport.device import device_of


@dataclass(frozen=True)
class RunRequest:
    """A run to be made for real.

    Attributes:
        scenario: the text of the resolved scenario.
        entry: which of its schemes.
        seed: of the repeat.
        max_iterations, max_time_s: its length, which is fixed before it starts; None: no such limit.
        draws: the seed of its computing times; None: ``seed``.
    """

    scenario: str
    entry: int
    seed: int
    max_iterations: int | None = None
    max_time_s: float | None = None
    draws: int | None = None

    @property
    def workers(self) -> int:
        """How many ranks it takes."""
        return _parsed(self.scenario).cluster.workers

    @property
    def connects_anew(self) -> bool:
        """Whether connections of the run before would still have its windows: hosts have a stock TCP."""
        return _parsed(self.scenario).cluster.network.tcp is not None

    @property
    def crashing(self) -> frozenset[int]:
        """The ranks whose processes end before the run does, as the scenario plans it."""
        stragglers = _parsed(self.scenario).cluster.stragglers
        return frozenset(rank for each in stragglers if each.crash for rank in each.workers or ())


@dataclass(frozen=True)
class Result:
    """A run that has ended.

    Attributes:
        run: its record; ``partial`` where it failed, ``message`` says why.
        timings: how well each worker kept to the compute model.
    """

    run: Run
    timings: tuple[Timing, ...]

    @property
    def gradients(self) -> int:
        """How many gradients the workers computed."""
        return sum(timing.gradients for timing in self.timings)

    @property
    def overruns(self) -> int:
        """How many of them took longer than their time in the compute model by more than 1 %."""
        return sum(timing.overruns for timing in self.timings)


class RankPool(Protocol):
    """Processes that do one real run after another: started for it, or those of a job."""

    @property
    def settings(self) -> tuple[Mapping[str, str], ...]:
        """A lab's settings of each host, as read back; () without a lab."""

    def statistics(self) -> Statistics | None:
        """What a lab's switch did since its network was last changed; None without a lab."""

    def shape(self, network: Network) -> None:
        """Have a lab emulate another network between runs; elsewhere the network is what it is.

        Raises:
            InputError: ``network`` has more hosts than the lab.
        """

    def run(self, request: RunRequest, progress: Callable[[int], None] | None = None) -> Result:
        """Have as many processes as the request has workers do one run.

        Args:
            request: what to run.
            progress: called with the number of steps that rank 0 has done, now and then.

        Raises:
            InputError: the request cannot be run for real.
            RunError: it failed so early that there is no record of it.
        """


REQUEST: Final = TypeAdapter(RunRequest)
RESULT: Final = TypeAdapter(Result)
"""Requests and results as JSON, both ways."""


def run_requests(scenario: Scenario) -> list[RunRequest]:
    """All schemes under all seeds, for as long as the scenario says.

    Raises:
        InputError: the scenario does not fix how long a scheme runs.
    """
    check_fixed(scenario)
    stop = scenario.stop
    for entry in scenario.schemes:
        synchronous = find_scheme(entry.name).in_step(entry.options)
        if stop.max_iterations is None and (stop.max_time is None or synchronous):
            raise InputError(
                f"{shorten(entry.label)}: a real run's length is fixed before it starts: give "
                "stop.max_iterations" + ("" if synchronous else " or stop.max_time")
            )
    text = dump(scenario)
    return [
        RunRequest(text, number, seed, stop.max_iterations, stop.max_time)
        for seed in seeds_of(scenario)
        for number in range(len(scenario.schemes))
    ]


@contextmanager
def keep_runs(
    scenario: Scenario, command: str, out: Path | None, force: bool, say: Callable[[str], None]
) -> Iterator[Parts]:
    """Keep the measured runs of a command in ``out``, if anywhere; arguments and errors as ``open_parts``."""
    if out is None:
        yield NOTHING_KEPT
        return
    text = dump(over_transport(scenario, scenario.cluster.backend))
    with open_parts(
        out, command, scenario.name, force, lambda kept: kept == text, lambda: text, say
    ) as parts:
        yield replace(parts, facts=describe_schemes(scenario, with_bounds=False))


def check_fixed(scenario: Scenario) -> None:
    """Raise ``InputError`` unless it is known before any run what has to be run."""
    if isinstance(scenario.repeats, AutoRepeats):
        raise InputError("a real run needs a number of repeats: add --set repeats=5")
    if scenario.tune is not None:
        raise InputError(
            "values are tuned in simulation: run 'paceline simulate SCENARIO --out DIR', then give "
            "DIR/scenario.yaml, which holds the values chosen"
        )


@lru_cache(maxsize=8)
def _parsed(text: str) -> Scenario:
    return parse(text)


def with_draws(job: Job, seed: int) -> Job:
    """``job`` with computing times drawn under another seed; data and everything else stay."""
    return replace(job, compute=replace(job.compute, seed=seed))


def requested_job(request: RunRequest, rank: int) -> Job:
    """The job of a request, with its values where the backend of this rank wants them."""
    scenario = _parsed(request.scenario)
    device = device_of(scenario.cluster.backend, rank)
    job = prepare(scenario, scenario.schemes[request.entry], request.seed, device)
    limit_s = float("inf") if request.max_time_s is None else request.max_time_s
    job = replace(job, max_iterations=request.max_iterations, max_time_s=limit_s)
    return job if request.draws is None else with_draws(job, request.draws)


def run_request(
    group: Group,
    request: RunRequest,
    timeout_s: float,
    progress: Callable[[int], None] | None = None,
    **options: Any,
) -> RankResult:
    """Run what is requested on a group; every rank calls this alike. ``options`` as for ``run_job``.

    Raises:
        InputError: it cannot be run for real.
        RunError: a rank did not come to the start, or the backend does not connect them.
    """
    backend = _parsed(request.scenario).cluster.backend
    job = requested_job(request, group.rank)
    return run_job(group, job, backend=backend, timeout_s=timeout_s, progress=progress, **options)


def fingerprint(text: str) -> str:
    """A short hash of a scenario's text, to compare what the ranks were given."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]
