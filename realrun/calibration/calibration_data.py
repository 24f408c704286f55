"""The data for fitting factors: measured programs that the simulator can run too."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from paceline.sim.drivers.event import EventDriver
from paceline.sim.drivers.job import Job
from paceline.sim.network.network_settings import QueueName, TcpSettings, describe_hosts
from paceline.sim.network.profile import HostKind, MeasuredRange
from paceline.sim.records.run import Event
from paceline.sim.scenario.schema import Scenario
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
