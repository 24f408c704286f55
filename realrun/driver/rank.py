"""What the parts of one rank's driver share."""

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
        number: which worker this is.
        transport: how it exchanges values.
        threads: where blocking waits and long gradients run.
        control, watchdog: what it shares with the other ranks.
        loop: what it has to do next.
        log: what it writes down.
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
