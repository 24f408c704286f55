"""What calibration fits factors to: programs that were measured, and that the simulator can run too."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from paceline.sim.drivers.event import EventDriver
from paceline.sim.drivers.job import Job
from paceline.sim.network.network import Network
from paceline.sim.network.profile import HostKind, MeasuredRange
from paceline.sim.network.transfer import TransferModel
from paceline.sim.program.worker import Program
from paceline.sim.records.run import Event

Key = tuple[int, str, int, int]
"""Which operation: the number of its trial or coroutine, its name, worker, and which of several such ones."""


class MeasuredOperation(NamedTuple):
    """How long one operation lasts.

    Attributes:
        key: which one.
        label: its kind, human-readable.
        median_s: of how long it lasted each time.
        noise_s: how far off the median may be.
    """

    key: Key
    label: str
    median_s: float
    noise_s: float


@dataclass(frozen=True)
class Origin:
    """Where measurements are from, for the profile that they give.

    Attributes:
        measured_at: when, in ISO 8601.
        machine, software: on what and with what, human-readable.
        hosts: the kind of the hosts.
        settings: TCP settings of the first host, as read back.
        workers: how many there were.
        what: what was measured, human-readable.
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
        """Where the measurements are from."""

    def nominal(self) -> Network:
        """The network that was measured, as its user describes it."""

    def rows(self) -> Sequence[MeasuredOperation]:
        """What was measured: every operation once, over its repeats."""

    def predict(self, model: TransferModel) -> tuple[dict[Key, float], MeasuredRange]:
        """Seconds that each row lasts in a simulation with ``model``, and the range of its messages."""

    def wake_up_delays_s(self) -> Sequence[float]:
        """From when a gradient is due until the next operation starts, of every step that was measured."""

    def deviations_s(self, model: TransferModel) -> Sequence[float]:
        """By how much exchanges differ from their medians for no reason that ``model`` knows."""

    def uneven_s(self) -> Sequence[float]:
        """How much longer short messages took than others beside them on one link; none if not known."""

    def uneven_s_per_byte(self) -> Sequence[float]:
        """How much longer each byte of long ones took; none if not known."""

    def buffered_bytes(self) -> float:
        """The largest message that a sender's socket took at once; 0 if none is known of."""


def simulate_programs(job: Job, programs: list[Program]) -> tuple[list[Event], MeasuredRange]:
    """The operations of a simulated run, and the range of its messages."""
    driver = EventDriver(job, programs, job.scorer())
    outcome = driver.run()
    traffic = driver.traffic
    assert traffic is not None
    return outcome.events, MeasuredRange(
        smallest_bytes=int(traffic.smallest_bytes),
        largest_bytes=int(traffic.largest_bytes),
        in_flight=traffic.in_flight,
    )


def mad_s(values: Sequence[float]) -> float:
    """Median absolute deviation."""
    middle = statistics.median(values)
    return statistics.median(abs(value - middle) for value in values)
