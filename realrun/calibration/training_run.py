"""Runs of training as calibration data: from users' own loops, and from result folders.

The simulator runs the measured scheme, with gradients as long as they were there. An operation's duration
counts from the moment at which all workers that it needs are there: their arrival times differ from step to
step, and would hide the network's part. Of each operation the median over the steps is compared, without the
first step, in which connections and allocations are made.
"""

from __future__ import annotations

import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
import torch

from paceline.sim.compute.attached import MAX_RECORDED_STEPS, AttachedRun
from paceline.sim.compute.compute_settings import Compute, Trace
from paceline.sim.compute.model import ComputeModel
from paceline.sim.config.yaml_file import validate_document
from paceline.sim.drivers.job import Job, JobCollectives, JobLayers, Scoring
from paceline.sim.errors import InputError, PacelineError, quote, shorten
from paceline.sim.experiments.prepare import prepare
from paceline.sim.network.build import build_network
from paceline.sim.network.network import Network, free_network
from paceline.sim.network.profile import MeasuredRange
from paceline.sim.network.transport import TransferModel
from paceline.sim.program import operations as ops
from paceline.sim.program.averaging import COLLECTIVES
from paceline.sim.records.folder import SUMMARY_FILE, read_results, runs_of
from paceline.sim.records.run import Event, Run
from paceline.sim.scenario.entries import SchemeEntry
from paceline.sim.scenario.schema import Scenario, parse
from paceline.sim.schemes import find_scheme
from paceline.sim.training.optimizer import NullOptimizer

from ..group.hosts import machine, software
from ..lab import kernel
from .probes import (
    Key,
    MeasuredOperation,
    Origin,
    hosts_of,
    mad_s,
    simulate_programs,
)

_MAX_ELEMENTS: Final = 4096
"""Size of a simulated model: enough for shards of it to have their share."""
_MAX_REPEATS: Final = 20
"""Largest number of simulations of every exchange: there it takes about as long each time."""
_QUANTILES: Final = 200
"""Number of quantiles at which measured and simulated deviations are compared."""
_MIN_STEPS: Final = 5
"""Least number of steps for a meaningful median."""
_MAX_RUNS: Final = 3
"""Largest number of fitted runs of each scheme: more would tell little more, and cost time."""
_EXCHANGES: Final = frozenset(map(ops.name_of, (ops.Mix, ops.Send, ops.Receive, *COLLECTIVES)))
_WAITS: Final = frozenset(map(ops.name_of, (ops.Wait, ops.WaitAny)))
_COUNT_TOLERANCE: Final = 0.2
"""Largest relative difference between a run and its simulation in the number of a kind of exchange."""
_SIZE_TOLERANCE: Final = 0.01
"""Largest relative difference in the mean size of a kind of exchange, beside _SIZE_SLACK_BYTES."""
_SIZE_SLACK_BYTES: Final = 64


def record_of(run: Run, job: Job, scheme: SchemeEntry) -> AttachedRun | None:
    """Calibration data of a run with all events; None if some worker has not done a step."""
    gradients = [e.worker for e in run.events if e.operation == "gradient"]
    steps = min(MAX_RECORDED_STEPS, min(gradients.count(worker) for worker in range(job.workers)))
    if steps == 0:
        return None
    return AttachedRun(
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=machine(),
        software=software(),
        hosts=tuple(each.host for each in run.machines),
        settings=kernel.send_buffer_setting(),
        scheme=scheme.model_dump(mode="json"),
        workers=job.workers,
        seed=job.seed,
        steps=steps,
        parameters=job.start.numel(),
        bytes_per_parameter=job.bytes_per_parameter,
        moments=len(job.optimizer.init(job.start).moments),
        round_s=round_s(run.events),
        rows=tuple(
            astuple(event)
            for event in run.events
            if event.step < steps
            or (event.task > 0 and event.step == steps)  # services go on after the last step
        ),
    )


@dataclass(frozen=True, eq=False)
class TrainingRun:
    """The record in ``path`` of a run, and the scenario with the network of its cluster.

    Its messages do not begin together, so that unevenness is unknown; the hosts' settings have the size of a
    socket's buffer. ``where`` says how it was run, human-readable. Raises ``InputError`` where record
    and scenario do not match, or the run was too short.
    """

    record: AttachedRun
    scenario: Scenario
    path: Path
    in_lab: bool = False
    where: str = "in a training loop"

    def __post_init__(self) -> None:
        there, here = self.scenario.cluster.workers, self.record.workers
        if there != here:
            raise InputError(f"{self.path}: has {here} workers, but the nominal cluster has {there}")
        if self.record.steps < _MIN_STEPS:
            raise InputError(f"{self.path}: has {self.record.steps} steps; at least {_MIN_STEPS} are needed")
        if not self._measured:
            raise InputError(f"{self.path}: nothing was exchanged in its {self.record.steps} steps")

    @property
    def origin(self) -> Origin:
        """The origin of the record."""
        record = self.record
        (scheme,) = record.scheme
        return Origin(
            record.made, record.machine, record.software, hosts_of(self.scenario, self.in_lab),
            record.settings, record.workers,
            f"{record.steps} steps of {scheme} {self.where}, {record.workers} workers",
        )  # fmt: skip

    @cached_property
    def nominal(self) -> Network:
        """The network that the run had, as its user describes it."""
        return build_network(self.scenario.cluster.network, self.record.workers)

    def rows(self) -> list[MeasuredOperation]:
        """The exchanges, each once, over its repeats."""
        return [
            MeasuredOperation(
                key, key[1], statistics.median(values), 1.86 * mad_s(values) / len(values) ** 0.5
            )
            for key, values in self._measured.items()
        ]

    def predict(self, model: TransferModel) -> tuple[dict[Key, float], MeasuredRange]:
        """Seconds of each row in a simulation with ``model``, and the range of its messages.

        Raises ``InputError`` if the simulated exchanges differ from the measured ones.
        """
        events, measured = self._simulated(model)
        lasted = exchanges_s(events)
        return {key: statistics.median(lasted.get(key, [0.0])) for key in self._measured}, measured

    def deviations_s(self, model: TransferModel) -> list[float]:
        """Deviations of exchanges from their medians, less simulated ones, at equal quantiles.

        Crossing exchanges take longer than others: the simulator knows that.
        """
        was, now = (
            np.quantile(deviations_s(events), (np.arange(_QUANTILES) + 0.5) / _QUANTILES)
            for events in (self._events, self._simulated(model)[0])
        )
        return [float(value) for value in was - now]

    def wake_up_delays_s(self) -> list[float]:
        """Seconds of each step but the first beyond its gradient and exchanges, by worker, in order."""
        return [*_beside_s(self._events).values()]

    @cached_property
    def _events(self) -> list[Event]:
        return self.record.events

    @cached_property
    def _steps(self) -> int:
        """Number of steps that contain every exchange _MAX_REPEATS times."""
        seen: dict[Key, list[int]] = defaultdict(list)
        for (step, key), _ in _exchanges(self._events):
            seen[key].append(step)
        return min(self.record.steps, 1 + max(sorted(steps)[:_MAX_REPEATS][-1] for steps in seen.values()))

    @cached_property
    def _measured(self) -> dict[Key, list[float]]:
        return exchanges_s(self._events)

    def _simulated(self, model: TransferModel) -> tuple[list[Event], MeasuredRange]:
        network = self.scenario.cluster.network
        transfer = replace(
            model, network=self.nominal, sharing=network.sharing, seed=self.record.seed,
            queue=network.queue, tcp=network.tcp,
        )  # fmt: skip
        try:
            events, measured = simulate_programs(replace(self._job, transfer=transfer))
        except PacelineError as error:
            raise InputError(f"{self.path}: its simulation failed: {error}") from error
        self._check_alike(events)
        return events, measured

    @cached_property
    def _job(self) -> Job:
        """The job that was run, as seen by the scheme: on one site."""
        record = self.record
        entry = validate_document(SchemeEntry, record.scheme, f"{self.path}: scheme")
        num_elements = min(record.parameters, _MAX_ELEMENTS)
        trace = Trace.model_construct(workers=record.gradients_s())
        return Job(
            scheme=find_scheme(entry.name),
            options=entry.options,
            label=entry.label or entry.name,
            workers=record.workers,
            seed=record.seed,
            start=torch.zeros(num_elements),
            optimizer=NullOptimizer(record.moments),
            problem=None,
            task=None,
            bytes_per_parameter=record.bytes_per_parameter * record.parameters / num_elements,
            compute=ComputeModel(Compute.model_construct(trace=trace), (), record.seed),
            transfer=TransferModel(free_network(record.workers)),
            collectives=JobCollectives("gloo_ring"),
            layers=JobLayers((("model", 0, num_elements),)),
            scoring=Scoring(sys.maxsize),
            max_iterations=self._steps,
        )

    def _check_alike(self, events: Iterable[Event]) -> None:
        did, now = (_amounts(each, self._steps) for each in (self._events, events))
        for operation, (count, num_bytes) in did.items():
            simulated_count, simulated_bytes = now.get(operation, (0, 0.0))
            apart = abs(simulated_bytes - num_bytes) > _SIZE_TOLERANCE * num_bytes + _SIZE_SLACK_BYTES
            if apart or abs(simulated_count - count) > _COUNT_TOLERANCE * count:
                raise InputError(
                    f"{self.path}: the run did {count} {operation} of {num_bytes:.0f} bytes on average, its "
                    f"simulation {simulated_count} of {simulated_bytes:.0f}; calibrate on a scheme that "
                    "neither decides by values nor sends a gradient in parts"
                )


def _beside_s(events: Iterable[Event]) -> dict[tuple[int, int], float]:
    """Worker and step, in order -> seconds beyond its gradient and exchanges; not of the first step."""
    begun: dict[int, dict[int, float]] = defaultdict(dict)
    busy_s: dict[tuple[int, int], float] = defaultdict(float)
    for e in events:
        awaited = e.handle == -1 or e.operation in _WAITS
        if e.task == 0 and (awaited or e.operation == "gradient"):
            begun[e.worker][e.step] = min(begun[e.worker].get(e.step, e.start_s), e.start_s)
            busy_s[e.worker, e.step] += (e.end_s - e.start_s) * awaited
    return {
        (worker, a): max(0.0, at[b] - at[a] - busy_s[worker, a])
        for worker, at in sorted(begun.items())
        for a, b in pairwise(sorted(at))
        if a > 0
    }


def round_s(events: Sequence[Event]) -> float | None:
    """By how many seconds steps with an average last longer besides gradient and exchange than others do.

    Medians are compared: an outer step, and what else follows an average until the next gradient. None where
    every step averages, or none does.
    """
    awaited = [e for e in events if e.task == 0 and (e.handle == -1 or e.operation in _WAITS)]
    averages = {(e.worker, e.step) for e in awaited if e.operation in _EXCHANGES | _WAITS}
    beside_s: dict[bool, list[float]] = {True: [], False: []}
    for place, value in _beside_s(events).items():
        beside_s[place in averages].append(value)
    if not all(beside_s.values()):
        return None
    return max(0.0, statistics.median(beside_s[True]) - statistics.median(beside_s[False]))


def exchanges_s(events: Iterable[Event]) -> dict[Key, list[float]]:
    """Seconds of every exchange from the arrival of all its workers to its end; not of the first step."""
    lasted: dict[Key, list[float]] = defaultdict(list)
    for (_, key), value in _exchanges(events):
        lasted[key].append(value)
    return dict(sorted(lasted.items()))


def deviations_s(events: Iterable[Event]) -> list[float]:
    """Deviations of exchanges from their medians.

    A deviation common to all workers at a step counts with its mean: drawn for each of them alone it would
    make everybody wait for the slowest.
    """
    events = list(events)
    common_s = statistics.fmean(
        statistics.fmean(values) - statistics.median(values) for values in exchanges_s(events).values()
    )
    together: dict[tuple[int, int, str, int], list[float]] = defaultdict(list)
    for (step, (task, operation, _, part)), value in _exchanges(events):
        together[step, task, operation, part].append(value)
    return [
        value - middle + common_s
        for values in together.values()
        for middle in [statistics.median(values)]
        for value in values
    ]


def _exchanges(events: Iterable[Event]) -> Iterator[tuple[tuple[int, Key], float]]:
    """Step, key and seconds of every exchange, from the arrival of all its workers to its end.

    Exchanges of services are not numbered within a step: their number depends on other workers.
    """
    parts: dict[tuple[int, int, int, str], int] = defaultdict(int)
    for e in sorted(events, key=lambda e: (e.step, e.worker, e.task, e.handle)):
        if e.operation in _EXCHANGES and e.step > 0:
            place = (e.step, e.worker, e.task, e.operation)
            part = parts[place] if e.task == 0 else 0
            parts[place] += 1
            key = (e.task, e.operation, e.worker, part)
            yield (e.step, key), max(0.0, e.end_s - max(e.start_s, e.peer_s))


def _amounts(events: Iterable[Event], steps: int) -> dict[str, tuple[int, float]]:
    """Operation -> number of them in main coroutines in these steps, and the mean of their bytes."""
    sent: dict[str, list[int]] = defaultdict(list)
    for e in events:
        if e.operation in _EXCHANGES and e.task == 0 and e.step < steps:
            sent[e.operation].append(e.bytes)
    return {operation: (len(sizes), statistics.fmean(sizes)) for operation, sizes in sent.items()}


def load_runs(folder: Path, say: Callable[[str], None]) -> list[TrainingRun]:
    """Load the first few measured runs of each scheme in a result folder; ``say`` why a scheme is left out.
    ``InputError`` without a usable run.
    """
    results = read_results(folder)
    scenario = parse(results.scenario, str(folder / "scenario.yaml"))
    if scenario.cluster.workers < 2:
        raise InputError(f"{folder}: one worker alone exchanges nothing")
    measured = [run for run in runs_of(results) if run.source == "measured"]
    if not measured:
        raise InputError(
            f"{folder} holds predictions alone, and calibration is about what was measured: give the folder "
            "of a realrun, of a validate, or a file of 'paceline probe' or paceline.attach"
        )
    measured_at = datetime.fromtimestamp((folder / SUMMARY_FILE).stat().st_mtime, UTC)
    taken: list[TrainingRun] = []
    problems: dict[str, str] = {}
    seen: Counter[str] = Counter()
    for run in measured:
        if run.label in problems or seen[run.label] == _MAX_RUNS:
            continue
        seen[run.label] += 1
        try:
            taken.append(_training_run(run, scenario, folder, measured_at.isoformat(timespec="seconds")))
        except InputError as error:
            problems[run.label] = str(error)
    if not taken:
        raise InputError(next(iter(problems.values())))
    for label, why in problems.items():
        say(f"{shorten(label)} is left out: {why}")
    return taken


def _training_run(run: Run, scenario: Scenario, folder: Path, measured_at: str) -> TrainingRun:
    """A run as calibration data, if the simulator can repeat it."""
    entry = next((each for each in scenario.schemes if each.label == run.label), None)
    if entry is None:
        raise InputError(f"{folder}: its scenario has no scheme {quote(run.label)}")
    if not run.events:
        raise InputError(f"{folder}: {shorten(run.label)} has no events; run it with 'events: all'")
    if run.hosts.get("transport", "gloo") != "gloo":
        raise InputError(f"{folder}: was run over {run.hosts['transport']}; factors are fitted to gloo alone")
    record = record_of(run, prepare(scenario, entry, run.seed), entry)
    if record is None:
        raise InputError(f"{folder}: a worker of {shorten(run.label)} has not done a step")
    there = {
        "made": measured_at,
        "machine": ", ".join(dict.fromkeys(machine.host for machine in run.machines)) or "not recorded",
        "software": run.hosts.get("software", "not recorded"),
        "settings": {name: value for name, value in run.hosts.items() if name.startswith("net.")},
    }
    in_lab = run.hosts.get("kind") == "lab"
    taken = TrainingRun(record.model_copy(update=there), scenario, folder, in_lab, "for real")
    taken.predict(TransferModel(taken.nominal, announcement=1.0, streams=True))  # raises where they differ
    return taken
