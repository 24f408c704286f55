"""The data for fitting factors: measured programs that the simulator can run too."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from paceline.sim.drivers.event import EventDriver
from paceline.sim.drivers.job import Job
from paceline.sim.network.network import Network
from paceline.sim.network.network_settings import QueueName
from paceline.sim.network.profile import HostKind, MeasuredRange
from paceline.sim.network.stock_tcp import TcpSettings, describe_hosts
from paceline.sim.network.transfer import TransferModel
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
        complete: the measurements suffice to tell all factors apart.
    """

    measured_at: str
    machine: str
    software: str
    hosts: HostKind
    settings: Mapping[str, str]
    workers: int
    what: str
    complete: bool


class CalibrationData(Protocol):
    """One set of measurements of a cluster."""

    @property
    def origin(self) -> Origin:
        """The origin of the measurements."""

    def nominal(self) -> Network:
        """The measured network, as its user describes it."""

    def rows(self) -> Sequence[MeasuredOperation]:
        """The measured operations, each once, over its repeats."""

    def predict(self, model: TransferModel) -> tuple[dict[Key, float], MeasuredRange]:
        """Seconds of each row in a simulation with ``model``, and the range of its messages."""

    def wake_up_delays_s(self) -> Sequence[float]:
        """Delays from a due gradient to the next operation, of every measured step."""

    def deviations_s(self, model: TransferModel) -> Sequence[float]:
        """Deviations of exchanges from their medians that ``model`` does not explain."""

    def uneven_s(self) -> Sequence[float]:
        """Excess durations of short messages over others beside them on one link; none if unknown."""
        return ()

    def uneven_s_per_byte(self) -> Sequence[float]:
        """Excess durations of long ones, per byte; none if unknown."""
        return ()

    def buffered_bytes(self) -> float:
        """The largest message accepted at once by a sender's socket; 0 if none is known."""
        return 0.0


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
    assert isinstance(driver.transfers, Streams)
    traffic = driver.transfers.traffic
    return outcome.events, MeasuredRange(
        smallest_bytes=int(traffic.smallest_bytes),
        largest_bytes=int(traffic.largest_bytes),
        in_flight=traffic.in_flight,
    )


def mad_s(values: Sequence[float]) -> float:
    """Median absolute deviation."""
    middle = statistics.median(values)
    return statistics.median(abs(value - middle) for value in values)
