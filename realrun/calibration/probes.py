"""Probes: programs that measure one kind of exchange at a time, on any driver; and what they yield.

A probe is an ordinary scheme. It runs unchanged on the event driver and on the cluster, so that calibration
compares like with like: both durations contain the driver's work around an operation. Every trial begins in
its slot, a time known to all workers beforehand, with nothing else in flight.
"""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from paceline.sim.config.limits import MAX_MODEL_BYTES, MAX_WORKERS
from paceline.sim.config.settings import Settings
from paceline.sim.drivers.event import EventDriver
from paceline.sim.drivers.job import Job
from paceline.sim.experiments.prepare import prepare
from paceline.sim.network.network import Network
from paceline.sim.network.network_settings import QueueName, TcpSettings, describe_hosts
from paceline.sim.network.profile import HostKind, MeasuredRange
from paceline.sim.program import operations as ops
from paceline.sim.program.pattern import Pattern
from paceline.sim.program.worker import Worker
from paceline.sim.records.run import Event
from paceline.sim.scenario.schema import Scenario
from paceline.sim.schemes.scheme import Scheme
from paceline.sim.traffic.streams import Streams

Key = tuple[int, str, int, int]
"""An operation: the number of its trial or coroutine, its name, worker, and its number among equal ones."""


class MeasuredOperation(NamedTuple):
    """The median duration of one operation, and its uncertainty; ``label`` is its kind, human-readable."""

    key: Key
    label: str
    median_s: float
    noise_s: float


@dataclass(frozen=True)
class Origin:
    """The origin of measurements, for the resulting profile.

    Attributes:
        measured_at: in ISO 8601.
        settings: TCP settings of the first host, as read back.
        what: the measured object, human-readable.
    """

    measured_at: str
    machine: str
    software: str
    hosts: HostKind
    settings: Mapping[str, str]
    workers: int
    what: str


def lab_hosts(tcp: TcpSettings | None = None, queue: QueueName = "fair") -> HostKind:
    """The kind of a lab's hosts, with this TCP (None: tuned) and these queues."""
    return HostKind(kind="lab", tuning=describe_hosts(tcp), queue=queue)


def hosts_of(scenario: Scenario, lab: bool) -> HostKind:
    """The kind of hosts of a real run of the scenario."""
    tcp = scenario.cluster.network.tcp
    if lab:
        return lab_hosts(tcp, scenario.cluster.network.queue)
    return HostKind(kind="cluster", tuning="" if tcp is None else describe_hosts(tcp))


def simulate_programs(job: Job) -> tuple[list[Event], MeasuredRange]:
    """The operations of a simulated run, and the range of its messages."""
    driver = EventDriver(job, [job.program(rank) for rank in range(job.workers)], job.scorer())
    outcome = driver.run()
    assert isinstance(driver.exchanges.transfers, Streams)
    traffic = driver.exchanges.transfers.traffic
    return outcome.events, MeasuredRange(
        smallest_bytes=int(traffic.smallest_bytes),
        largest_bytes=int(traffic.largest_bytes),
        in_flight=traffic.in_flight,
    )


def mad_s(values: Sequence[float]) -> float:
    """Median absolute deviation."""
    middle = statistics.median(values)
    return statistics.median(abs(value - middle) for value in values)


Kind = Literal[
    "message", "ready", "any", "burst", "pairs", "ring", "fan_in", "crowd", "all_reduce", "all_gather",
    "barrier", "gradient",
]  # fmt: skip
"""The exchange that a trial consists of:

``message``  0 sends to 1; both start at once.
``ready``    as ``message``, but the receive was posted long before.
``any``      as ``message``, but the receive takes a message from anybody.
``burst``    0 sends two messages to 1 at once.
``pairs``    0 and 1 exchange, 2 and 3, ...
``ring``     everybody exchanges with both neighbours.
``fan_in``   everybody sends to 0.
``crowd``    as ``fan_in``, but 0 notes when each message is there.
``all_reduce``, ``all_gather``, ``barrier``, ``gradient``: the operation of that name.
"""

NOMINAL_GRADIENT_S: Final = 0.02
_CROWDS: Final = 5
"""Trials of that kind: an evenness of shares takes more of them than a median."""

_SHORT_BYTES: Final = 200_000
"""The shortest messages of that kind: shorter ones are through before all have begun."""

_BYTES_PER_PARAMETER: Final = 64
"""Padding of values on the wire, as in validation: large tensors would cost fresh memory each time."""


class ProbeTrial(Settings):
    """One exchange, repeated as in the plan."""

    kind: Kind
    num_bytes: int = Field(ge=0, le=int(MAX_MODEL_BYTES))
    slot_s: float = Field(gt=0)


class ProbePlan(Settings):
    """Trials to measure, and their repeats.

    The whole list of trials is gone through ``repeats`` times, so that a disturbance of the machine hits one
    repeat of several trials, not all repeats of one.
    """

    workers: int = Field(ge=2, le=MAX_WORKERS)
    trials: tuple[ProbeTrial, ...]
    repeats: int = Field(ge=1)
    lead_s: float = Field(default=0.05, description="time before the first slot")

    @property
    def length_s(self) -> float:
        """Seconds that all of it takes, however fast the network is: slots are by its nominal rates."""
        return self.lead_s + self.repeats * sum(trial.slot_s for trial in self.trials)


def plan_for(network: Network, sizes: tuple[int, ...], repeats: int) -> ProbePlan:
    """Trials of every kind and size, in slots that are long enough on ``network``."""
    n = network.num_hosts
    latency_s = max(max(row) for row in network.latency_s)
    slowest = min((link.bandwidth_bytes_per_s for link in network.links), default=1e9)

    def slot_s(kind: Kind, num_bytes: int) -> float:
        bulk = {"ring": 2, "fan_in": n - 1, "crowd": n - 1, "all_reduce": 2, "burst": 2}.get(kind, 1)
        hops = {"all_reduce": 4 * n, "all_gather": 2 * n, "ready": 10, "any": 6, "barrier": 2 * n}.get(
            kind, 4
        )
        return 0.04 + 1.3 * (bulk * num_bytes / slowest + hops * (latency_s + 0.001))

    sized: tuple[Kind, ...] = ("message", "ready", "any", "burst", "pairs", "ring", "fan_in", "all_reduce")
    trials = [
        ProbeTrial(kind=kind, num_bytes=size, slot_s=slot_s(kind, size)) for size in sizes for kind in sized
    ]
    for size in sorted(
        {min((size for size in sizes if size >= _SHORT_BYTES), default=max(sizes)), max(sizes)}
    ):
        trials += [ProbeTrial(kind="crowd", num_bytes=size, slot_s=slot_s("crowd", size))] * _CROWDS
    trials += [ProbeTrial(kind="all_gather", num_bytes=8, slot_s=slot_s("all_gather", 8))]
    trials += [ProbeTrial(kind="barrier", num_bytes=0, slot_s=slot_s("barrier", 0))]
    trials += [ProbeTrial(kind="gradient", num_bytes=0, slot_s=2 * NOMINAL_GRADIENT_S)] * 5
    return ProbePlan(workers=n, trials=tuple(trials), repeats=repeats)


@lru_cache(maxsize=8)
def probe_scenario(plan: ProbePlan) -> Scenario:
    """The plan as the one scheme of a scenario without training; each run supplies its own network."""
    document = {
        "name": "probe",
        "workload": {"timing_only": True, "payload": f"{_BYTES_PER_PARAMETER} B"},
        "cluster": {
            "workers": plan.workers,
            "compute": {"time": f"{NOMINAL_GRADIENT_S} s"},
            "network": {"latency": "0 s", "transport": "gloo"},
        },
        "evaluate": {"every": "1000000000 steps"},
        "schemes": [{f"{__name__}:PROBE": {**plan.model_dump(mode="json"), "label": "probe"}}],
        "stop": {"max_iterations": plan.repeats * len(plan.trials)},
        "collectives": {"all_reduce": "gloo_ring"},
        "events": "all",
    }
    return Scenario.model_validate(document)


@lru_cache(maxsize=8)
def probe_job(plan: ProbePlan) -> Job:
    """The plan as a job for the simulator, but for the transfer of its messages."""
    scenario = probe_scenario(plan)
    return prepare(scenario, scenario.schemes[0], scenario.seed)


async def _probe(worker: Worker, plan: ProbePlan) -> None:
    begin_s = plan.lead_s
    async for k in worker.steps():
        trial = plan.trials[k % len(plan.trials)]
        now_s = await worker.now()
        await worker.sleep(max(0.0, begin_s - now_s))
        await _trial(worker, trial)
        begin_s += trial.slot_s
        await worker.publish(k, worker.start)


async def _trial(worker: Worker, trial: ProbeTrial) -> None:
    value = torch.zeros(-(-trial.num_bytes // _BYTES_PER_PARAMETER))
    roles = _ROLES[trial.kind]
    role = roles[min(worker.rank, len(roles) - 1)]
    if trial.kind == "ready" and worker.rank == 0:
        await worker.sleep(trial.slot_s / 3)
    if role is not None:
        await role(worker, value)


async def _at_once(worker: Worker, *operations: ops.Operation[Any]) -> None:
    handles = [await worker.begin(operation) for operation in operations]
    for handle in handles:
        await worker.wait(handle)


_Role = Callable[[Worker, Tensor], Awaitable[object]]


def _mix(sources_of: Callable[[int, int], Sequence[int]]) -> tuple[_Role]:
    """A mix of each worker with those that ``sources_of`` gives for its rank and their number."""

    def role(worker: Worker, value: Tensor) -> Awaitable[object]:
        n = worker.size
        sources = tuple(tuple(sources_of(rank, n)) for rank in range(n))
        weights = tuple(tuple(0.5 / len(row) for _ in row) for row in sources)
        return worker.mix(Pattern(own=(0.5,) * n, sources=sources, weights=weights), value)

    return (role,)


_MESSAGE: Final[tuple[_Role | None, ...]] = (
    lambda worker, value: worker.send(1, value),
    lambda worker, value: worker.receive(0, value),
    None,
)
_ROLES: Final[Mapping[Kind, tuple[_Role | None, ...]]] = {
    "message": _MESSAGE,
    "ready": _MESSAGE,
    "any": (
        lambda worker, value: worker.send(1, value, tag="any"),
        lambda worker, value: worker.receive(ops.ANY, value, tag="any"),
        None,
    ),
    "burst": (
        lambda worker, value: _at_once(worker, ops.Send(1, value, "a"), ops.Send(1, value, "b")),
        lambda worker, value: _at_once(worker, ops.Receive(0, value, "a"), ops.Receive(0, value, "b")),
        None,
    ),
    "pairs": _mix(lambda rank, n: [rank ^ 1] if rank ^ 1 < n else []),
    "ring": _mix(lambda rank, n: sorted({(rank - 1) % n, (rank + 1) % n})),
    "fan_in": _mix(lambda rank, n: range(1, n) if rank == 0 else []),
    "crowd": (
        lambda worker, value: _at_once(worker, *(ops.Receive(k, value) for k in range(1, worker.size))),
        lambda worker, value: worker.send(0, value),
    ),
    "all_reduce": (lambda worker, value: worker.all_reduce(value),),
    "all_gather": (lambda worker, value: worker.all_gather(value),),
    "barrier": (lambda worker, value: worker.barrier(),),
    "gradient": (lambda worker, value: worker.gradient(worker.start),),
}
"""Roles of ranks 0, 1, ... in a trial; all further ranks have the last one."""

PROBE: Final = Scheme("probe", _probe, ProbePlan, False, lambda options, workers: None)
