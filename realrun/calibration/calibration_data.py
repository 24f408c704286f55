"""What calibration fits factors to: programs that were measured, and that the simulator can run too."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
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
    """What one operation takes.

    Attributes:
        key: which one.
        label: its kind, for people.
        median_s: of what it took each time.
        noise_s: how far off that may be.
    """

    key: Key
    label: str
    median_s: float
    noise_s: float


class CalibrationData(Protocol):
    """One set of measurements of a cluster."""

    @property
    def made(self) -> str:
        """When."""

    @property
    def machine(self) -> str:
        """On what, for people."""

    @property
    def software(self) -> str:
        """With what, for people."""

    @property
    def hosts(self) -> HostKind:
        """On what kind of hosts."""

    @property
    def settings(self) -> Mapping[str, str]:
        """Of the hosts, as read back."""

    @property
    def workers(self) -> int:
        """How many there were."""

    @property
    def what(self) -> str:
        """What was measured, for people."""

    @property
    def tells_all(self) -> bool:
        """Whether it is enough to tell all factors apart."""

    def nominal(self) -> Network:
        """The network that was measured, as its user describes it."""

    def rows(self) -> Sequence[MeasuredOperation]:
        """What was measured."""

    def predict(self, model: TransferModel) -> tuple[dict[Key, float], MeasuredRange]:
        """What the simulator says that each row takes, and the range of its messages."""

    def lateness_s(self) -> Sequence[float]:
        """From when a gradient is due until the next operation starts."""

    def deviations_s(self, model: TransferModel) -> Sequence[float]:
        """By how much exchanges differ from their medians for no reason that ``model`` knows."""

    def taken_bytes(self) -> float:
        """The largest message that a sender was rid of at once."""


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
