"""Workers that fail in virtual time: those that die, those that need them, and those that are away."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..errors import PeerLost
from ..faults.outages import Absences
from ..program import operations as ops
from ..records.run import FaultCost
from ..traffic.clock import Clock
from ..traffic.rendezvous import Posts
from .job import Job
from .outcome import describe_deaths
from .tasks.clocked import Pending


class Failures:
    """The failures of a job's workers.

    Args:
        job: of the run.
        at_operation: rank -> number of the operation of its main coroutine at which that worker dies.
        clock, posts: virtual time, and the sends and receives that wait for their other side.
        fail: called with an operation whose peer is dead, at the time at which it can know.

    Attributes:
        may_strike: whether anybody may die.
        dead: ranks of the workers that have died.
    """

    def __init__(
        self,
        job: Job,
        at_operation: Mapping[int, int],
        clock: Clock,
        posts: Posts,
        fail: Callable[[Pending, PeerLost], None],
    ) -> None:
        self._workers, self._clock, self._posts, self._fail = job.workers, clock, posts, fail
        self._at_operation = at_operation
        self._at_gradient = [job.compute.crash_of(job.rank_of(rank)) for rank in range(job.workers)]
        self.may_strike = bool(at_operation) or any(at is not None for at in self._at_gradient)
        self._issued = [0] * job.workers
        self.dead: set[int] = set()
        self._absences: list[Absences] = []
        if job.churn is not None and job.churn.policy == "skip":
            self._absences = [Absences(job.churn, rank) for rank in range(job.workers)]

    # --- workers that die -----------------------------------------------------------------------

    @property
    def deaths(self) -> str:
        """The workers that died; "" if none did."""
        return describe_deaths(self.dead)

    def strike(self, rank: int, operation: ops.Operation[Any], gradients: int) -> bool:
        """Whether a worker dies instead of doing its next operation, after this number of gradients."""
        number = self._issued[rank]
        self._issued[rank] += 1
        crashes = self._at_gradient[rank] == gradients and ops.computes(operation)
        if not crashes and self._at_operation.get(rank) != number:
            return False
        self.dead.add(rank)
        return True

    def tell(self, rank: int, of_collectives: Iterable[Pending]) -> None:
        """Fail what waits for a worker that has just died."""
        for side in (*self._posts.waiting_for(rank, self._workers), *of_collectives):
            self._clock.at(self._clock.now, self._lose, (side, rank))

    def expect(self, pending: Pending, *peers: int) -> None:
        """Fail an operation at once where a peer is known to be dead or does not exist."""
        for peer in peers:
            pending.check_peer(peer, self._workers)
            if peer in self.dead:
                self._clock.at(self._clock.now, self._lose, (pending, peer))

    def _lose(self, lost: tuple[Any, int]) -> None:
        """Fail the operation of one side of a transfer whose other side's worker is dead."""
        side, rank = lost
        self._posts.drop(side)
        pending: Pending = side if isinstance(side, Pending) else side.owner
        if pending.task.alive and not pending.done:
            self._fail(pending, PeerLost(rank, pending.name))

    # --- workers that are away, while the others go on ------------------------------------------

    def end_s(self, rank: int, index: int, start_s: float, duration_s: float) -> float:
        """When gradient ``index`` of a worker, the next one, ends; it begins anew after an absence."""
        if self._absences:
            return self._absences[rank].end_s(index, start_s, duration_s)
        return start_s + duration_s

    def cost(self) -> FaultCost | None:
        """What absences have cost; None where there cannot be any."""
        if not self._absences:
            return None
        return FaultCost(
            outages=sum(each.outages for each in self._absences),
            down_s=sum(each.down_s for each in self._absences) / self._workers,
            repeated_s=sum(each.repeated_s for each in self._absences) / self._workers,
            writing_s=0.0,
        )
