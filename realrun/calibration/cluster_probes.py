"""Measure a cluster with probes; the measurements record their origin."""

from __future__ import annotations

import json
import math
import os
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Final

import torch
from pydantic import Field

from paceline.sim.compute.timing import timer_of, typical_times_s
from paceline.sim.config import files
from paceline.sim.config.limits import MAX_TIME_S
from paceline.sim.config.settings import Settings
from paceline.sim.config.yaml_file import validate_document
from paceline.sim.devices import one_thread
from paceline.sim.errors import InputError, RunError, shorten
from paceline.sim.network.build import build_network
from paceline.sim.network.network import Network
from paceline.sim.network.network_settings import NetworkSettings, QueueName, TcpSettings
from paceline.sim.network.profile import HostKind, MeasuredRange
from paceline.sim.network.transport import TransferModel
from paceline.sim.program.encoding import Codec, Qsgd, TopK, decoded, encode
from paceline.sim.records.run import Event, Run
from paceline.sim.scenario.schema import Scenario, parse

from ..group.hosts import machine, software
from ..launch.cells import RankPool, run_requests
from .probes import (
    Key,
    MeasuredOperation,
    Origin,
    ProbePlan,
    mad_s,
    plan_for,
    probe_job,
    probe_scenario,
    simulate_programs,
)

MEASUREMENTS_VERSION: Final = 1
MESSAGE_SIZES_BYTES: Final = (64, 4_096, 65_536, 262_144, 1_048_576, 4_194_304)
"""Sizes of the probes' messages, in bytes; those of models are between them."""

REPEATS: Final = 7
"""Measured repeats of every operation, after a first one that does not count."""
STANDARD: Final = """
name: lab-probe
seed: 0
workload: {task: quadratic, optimizer: {lr: 0.1}, timing_only: true, payload: 1 MB}
cluster:
  workers: 4
  compute: {time: 20 ms}
  network: {latency: 5 ms, bandwidth: 1 Gbit/s}
schemes: [all_reduce]
stop: {max_iterations: 10}
"""
"""The one setting at which the lab is calibrated, as in ``scenarios/lab/probe.yaml``."""

_TRAINING_STEPS: Final = 400
"""Steps of each worker, on top of the probes: enough that a stall of the machine gets no undue weight."""
_TRAINING: Final = """
name: training
workload: {{task: digits-mlp, batch_size: 32, optimizer: {{lr: 0.1, momentum: 0.9}}}}
cluster: {{workers: {workers}, compute: {{time: 20 ms}}, network: {{latency: 1 ms}}}}
evaluate: {{every: 1000 steps}}
schemes: [{{local_sgd: {{period: 1000}}}}]
stop: {{max_iterations: {steps}}}
gradients: looped
"""
_SMALL_BYTES: Final = 65_536
"""Largest exchange whose duration varies by what happens on the hosts, not by its size."""
_COUNTED: Final = frozenset({"gradient", "mix", "all_reduce", "all_gather", "barrier", "send", "receive"})
_ENCODED_ELEMENTS: Final = 2**18
_CODECS: Final[Mapping[str, Codec]] = {"qsgd": Qsgd(), "top_k": TopK(share=0.01)}
_Rate = Annotated[float, Field(gt=0)]
_Seconds = Annotated[float, Field(ge=0, le=MAX_TIME_S)]


class Duration(Settings):
    """Seconds of one operation of one trial on one worker, in every repeat but the first."""

    trial: int
    operation: str
    worker: int
    part: int
    values_s: tuple[_Seconds, ...] = Field(min_length=1)

    @property
    def key(self) -> Key:
        """Key of the operation."""
        return self.trial, self.operation, self.worker, self.part

    @property
    def median_s(self) -> float:
        """Median over the repeats."""
        return statistics.median(self.values_s)


class Measurements(Settings):
    """The file that ``paceline probe`` writes."""

    version: int
    made: str
    machine: str
    software: str
    hosts: HostKind
    settings: dict[str, str] = Field(description="of the hosts, as read back")
    load: tuple[float, float] = Field(description="processes that wanted to run, before and after")
    switch: dict[str, float] = Field(description="what a lab's switch did")
    network: dict[str, Any] = Field(description="nominal, as in the scenario")
    plan: ProbePlan
    encoding: dict[str, _Rate] = Field(default={}, description="bytes a second, by codec")
    durations: tuple[Duration, ...] = Field(min_length=1)
    steps_s: tuple[_Seconds, ...] = Field(
        min_length=1, description="of training: from when a gradient was due until the next operation started"
    )

    @property
    def _settings(self) -> NetworkSettings:
        return NetworkSettings.model_validate_json(json.dumps(self.network))  # from a file: lists, not tuples

    @property
    def nominal(self) -> Network:
        """The measured network, as in the scenario."""
        return build_network(self._settings, self.plan.workers)

    @property
    def origin(self) -> Origin:
        """The origin of the probes; their trials were chosen to tell all factors apart."""
        n = self.plan.workers
        return Origin(
            self.made, self.machine, self.software, self.hosts, self.settings, n, f"probes of {n} workers"
        )  # fmt: skip

    def rows(self) -> list[MeasuredOperation]:
        """Every operation but the gradients, which are the machine's and not the network's."""
        rows = []
        for d in self.durations:
            if d.operation != "gradient":
                trial = self.plan.trials[d.trial]
                label = f"{trial.kind} {trial.num_bytes} {d.operation}"
                rows.append(MeasuredOperation(d.key, label, d.median_s, mad_s(d.values_s)))
        return rows

    def predict(self, model: TransferModel) -> tuple[dict[Key, float], MeasuredRange]:
        """Seconds of each operation of the plan in a simulation, and the range of its messages."""
        tcp = self._settings.tcp
        first = 0 if tcp is None else 1  # as when measuring: windows are open from an earlier repeat
        plan = self.plan.model_copy(update={"repeats": 1 + first})
        queue = self.hosts.queue or "fair"
        transfer = replace(model, network=self.nominal, tcp=tcp, queue=queue)
        job = replace(probe_job(plan), transfer=transfer)
        events, measured = simulate_programs(job)
        lasted = durations(events, len(plan.trials), skip=first)
        return {key: values[0] for key, values in lasted.items()}, measured

    def wake_up_delays_s(self) -> tuple[float, ...]:
        """Wake-up delays of the training steps."""
        return self.steps_s

    def deviations_s(self, model: TransferModel) -> list[float]:
        """Deviations of small exchanges from their medians; each is alone, so no model explains them."""
        return [
            value - d.median_s
            for d in self.durations
            if d.operation in ("receive", "mix") and self.plan.trials[d.trial].num_bytes <= _SMALL_BYTES
            for value in d.values_s
        ]

    def uneven_s(self) -> list[float]:
        """Excess durations of short messages over others that came to the same host at once."""
        sizes = self._crowds
        return self._longer_s(min(sizes)) if len(sizes) > 1 else []

    def uneven_s_per_byte(self) -> list[float]:
        """Excess durations of long ones, per byte."""
        sizes = self._crowds
        return [longer_s / max(sizes) for longer_s in self._longer_s(max(sizes))] if sizes else []

    @property
    def _crowds(self) -> set[int]:
        """Sizes of messages sent to one host at once."""
        return {trial.num_bytes for trial in self.plan.trials if trial.kind == "crowd"}

    def _longer_s(self, num_bytes: int) -> list[float]:
        links = self.nominal.links
        if not links:
            return []
        alone_s = num_bytes / min(link.bandwidth_bytes_per_s for link in links)
        round_trip_s = 2 * max(max(row) for row in self.nominal.latency_s)
        crowds: dict[int, list[tuple[float, ...]]] = defaultdict(list)
        for d in self.durations:
            trial = self.plan.trials[d.trial]
            if trial.kind == "crowd" and trial.num_bytes == num_bytes and d.operation == "receive":
                crowds[d.trial].append(d.values_s)
        return [
            alone_s * (1 / share - 1)
            for messages in crowds.values()
            for ends_s in zip(*messages, strict=True)
            for share in shares_of([end_s - round_trip_s for end_s in ends_s])
            if share > 0
        ]

    def buffered_bytes(self) -> float:
        """The largest message to a posted receive that took less than half the time of its bytes."""
        rate = min((link.bandwidth_bytes_per_s for link in self.nominal.links), default=math.inf)
        sends = [d for d in self.durations if d.operation == "send"]
        sizes = [(self.plan.trials[d.trial], d.median_s) for d in sends]
        taken = [t.num_bytes for t, s in sizes if t.kind == "ready" and s < 0.5 * t.num_bytes / rate]
        return float(max(taken, default=0))


def check_probed(scenario: Scenario) -> None:
    """Raise ``InputError`` if a scenario's network cannot be probed."""
    if scenario.cluster.workers < 2:
        raise InputError("a probe needs at least two workers")
    if scenario.cluster.backend != "gloo":
        raise InputError(
            f"probes are of gloo: over {scenario.cluster.backend} there are no factors to fit yet, and "
            "predictions take the constants of network.transport; leave cluster.backend out to probe gloo"
        )


def plan_of(scenario: Scenario, repeats: int = REPEATS) -> ProbePlan:
    """What ``measure`` probes of a scenario's network."""
    network = build_network(scenario.cluster.network, scenario.cluster.workers)
    return plan_for(network, MESSAGE_SIZES_BYTES, repeats + 1)


def measure(ranks: RankPool, hosts: HostKind, scenario: Scenario, repeats: int = REPEATS) -> Measurements:
    """Probe a network, and measure some steps of training in it.

    Every operation is measured ``repeats`` times, after a first one that does not count. ``RunError``: a
    failed run.
    """
    plan = plan_of(scenario, repeats)
    lab = ranks.lab
    if lab:
        lab.reconfigure(build_network(scenario.cluster.network, scenario.cluster.workers))
    before = os.getloadavg()[0]
    run = _run(ranks, probe_scenario(plan))
    switch = asdict(lab.statistics()) if lab else {}
    steps_s = training_steps_s(scenario, ranks)
    return Measurements(
        version=MEASUREMENTS_VERSION,
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=machine(),
        software=software(),
        hosts=hosts,
        settings=dict(lab.settings[0]) if lab else {},
        load=(before, os.getloadavg()[0]),
        switch={name: float(value) for name, value in switch.items()},
        network=scenario.cluster.network.model_dump(mode="json"),
        plan=plan,
        encoding=encoding_rates(),
        durations=tuple(
            Duration(trial=key[0], operation=key[1], worker=key[2], part=key[3], values_s=tuple(values))
            for key, values in durations(run.events, len(plan.trials), skip=1).items()
        ),
        steps_s=steps_s,
    )


def encoding_rates() -> dict[str, float]:
    """One core's rates of encoding and decoding, as in ``cluster.compute.encoding``, in bytes/s.

    Measured are codes of 8 bits and the largest hundredth of a value in single precision.
    """
    value = torch.randn(_ENCODED_ELEMENTS, generator=torch.Generator().manual_seed(0))
    uniform = torch.rand(_ENCODED_ELEMENTS, generator=torch.Generator().manual_seed(1))
    rates = {}
    with one_thread():
        for name, codec in _CODECS.items():
            encoded = encode(codec, value, lambda: uniform)
            runs = (partial(encode, codec, value, lambda: uniform), partial(decoded, encoded))
            came = codec.share if isinstance(codec, TopK) else 1.0
            rates[name] = (1 + came) * value.nbytes / sum(typical_times_s(runs, timer_of(value.device)))
    return rates


def shares_of(lasted_s: Sequence[float]) -> list[float]:
    """Weights, of mean 1, with which messages of one size have shared a link, from their end times.

    All k begin together. One whose weight is greater than the next one's by a share of x, and that m others
    outlast, ends earlier than that one by x m / k of the time that all of them take; to first order in x.

    >>> [round(share, 3) for share in shares_of([2.97, 3.0, 3.0])]
    [1.01, 0.995, 0.995]
    """
    k = len(lasted_s)
    order = sorted(range(k), key=lasted_s.__getitem__)
    whole_s = lasted_s[order[-1]]
    relative = [0.0] * k
    for place, (earlier, later) in enumerate(pairwise(order)):
        left = k - 1 - place
        relative[later] = relative[earlier] - (lasted_s[later] - lasted_s[earlier]) / whole_s * k / left
    mean = statistics.fmean(relative)
    return [1 + each - mean for each in relative]


def _run(ranks: RankPool, scenario: Scenario) -> Run:
    """The real run of a scenario with one scheme and one seed, to its end."""
    (request,) = run_requests(scenario)
    run = ranks.run(request).run
    if run.status != "completed":
        raise RunError(f"{scenario.name}: the run did not come to its end: {run.message}")
    return run


def training_steps_s(scenario: Scenario, ranks: RankPool) -> tuple[float, ...]:
    """Seconds of a training step without exchanges beyond its gradient's time; not of the first step.

    ``scenario`` gives the number of workers. Raises ``RunError`` if the training on ``ranks`` failed.
    """
    training = parse(_TRAINING.format(workers=scenario.cluster.workers, steps=_TRAINING_STEPS))
    run = _run(ranks, training)
    starts: dict[int, list[float]] = defaultdict(list)
    for event in run.events:
        if event.operation == "gradient":
            starts[event.worker].append(event.start_s)
    due_s = training.cluster.compute.time or 0.0
    return tuple(
        max(0.0, later - earlier - due_s)
        for times in starts.values()
        for earlier, later in pairwise(times[1:])
    )


def durations(events: Iterable[Event], num_trials: int, skip: int = 0) -> dict[Key, list[float]]:
    """Seconds of every operation of the trials, in all repeats but the first ``skip``."""
    lasted: dict[Key, list[float]] = defaultdict(list)
    parts: dict[tuple[int, int, str], int] = defaultdict(int)
    for event in sorted(events, key=lambda e: (e.step, e.worker, e.handle)):
        if event.operation in _COUNTED and event.step >= skip * num_trials:
            place = (event.step, event.worker, event.operation)
            key = (event.step % num_trials, event.operation, event.worker, parts[place])
            parts[place] += 1
            lasted[key].append(event.end_s - event.start_s)
    return dict(sorted(lasted.items()))


def validate_measurements(data: dict[str, Any], path: Path) -> Measurements:
    """Measurements in a file's JSON ``data``; ``InputError`` if damaged, invalid or of another version."""
    measurements = files.as_model(Measurements, data, path, MEASUREMENTS_VERSION)
    for number, duration in enumerate(measurements.durations):
        if duration.median_s == 0:  # no basis for a relative error
            text = f"says that {shorten(duration.operation)} took no time; probe again"
            raise InputError(f"{path}: durations.{number}: {text}")
    validate_document(NetworkSettings, measurements.network, f"{path}: network")
    plan = measurements.plan
    ranks = {d.worker for d in measurements.durations}
    trials = {d.trial for d in measurements.durations}
    if ranks != set(range(plan.workers)) or not trials <= set(range(len(plan.trials))):
        raise InputError(f"{path}: its durations are not those of its plan; probe again")
    return measurements


def standard(tcp: TcpSettings | None, queue: QueueName = "fair") -> Scenario:
    """The standard setting, on hosts with this TCP (None: tuned) and links with these queues."""
    return on_hosts(parse(STANDARD), tcp, queue)


def on_hosts(scenario: Scenario, tcp: TcpSettings | None, queue: QueueName = "fair") -> Scenario:
    """A scenario on hosts with this TCP (None: tuned) and links with these queues."""
    hosts = {"hosts": "tuned" if tcp is None else "stock", "tcp": tcp, "queue": queue}
    network = scenario.cluster.network.model_copy(update=hosts)
    cluster = scenario.cluster.model_copy(update={"network": network})
    return scenario.model_copy(update={"cluster": cluster})
