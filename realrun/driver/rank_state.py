"""State shared by the parts of one rank's driver, and an operation in flight there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from typing_extensions import override

from paceline.sim.drivers.job import Job
from paceline.sim.drivers.tasks.runner import InFlight

from ..group.store import Control
from ..transport.connections import ThreadPool
from ..transport.rank_transport import Transport
from .loop import Loop
from .rank_faults import Life, Standing
from .rank_log import Exchange, RankLog
from .watchdog import Watchdog


class ClusterPending(InFlight):
    """An operation that takes time, from its start to its completion."""

    exchange = Exchange()
    compute: Callable[[], None] | None = None  # begins a gradient's computation, until it has begun
    computed = False  # the gradient's value is known
    padded = False  # the gradient's duration in the compute model has passed
    parts: dict[int, Tensor]  # known segments of a gradient, by first element
    on_part: Callable[[], None] | None = None  # a waiter for a segment or for the gradient
    result: Callable[[], Any] | None = None  # reply of a completed exchange

    @override
    def lasts_like(self, cause: InFlight) -> None:
        super().lasts_like(cause)
        if isinstance(cause, ClusterPending):
            self.exchange = cause.exchange


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank of a run; helper threads or collectives report on its operations ``in_flight``."""

    job: Job
    number: int
    transport: Transport
    threads: ThreadPool
    control: Control
    watchdog: Watchdog
    loop: Loop
    log: RankLog
    whole: Job  # of all workers
    life: Life
    standing: Standing | None  # where the living go on without who fails
    in_flight: set[ClusterPending] = field(default_factory=set)
    died_s: dict[int, float] = field(default_factory=dict)  # who is known to have died, and since when
