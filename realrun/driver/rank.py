"""State shared by the parts of one rank's driver."""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.sim.drivers.job import Job

from ..group.store import Control
from ..transport.threads import ThreadPool
from ..transport.transport import Transport
from .loop import Loop
from .pending import ClusterPending
from .rank_log import RankLog
from .watchdog import Watchdog


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank of a run.

    Attributes:
        job: what is run.
        number: of this worker.
        transport: its exchanges of values.
        threads: run blocking waits and long gradients.
        control, watchdog: shared with the other ranks.
        loop: its pending calls and alarms.
        log: its record of the run.
        in_flight: operations that a helper thread or a collective will report on.
    """

    job: Job
    number: int
    transport: Transport
    threads: ThreadPool
    control: Control
    watchdog: Watchdog
    loop: Loop
    log: RankLog
    in_flight: set[ClusterPending] = field(default_factory=set)
