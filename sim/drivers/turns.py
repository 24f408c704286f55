"""Exchanges that wait for others of their own worker: NCCL's order, and groups that connect first."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

from ..program.groups import members
from ..traffic.clock import Clock
from .job import Job
from .tasks.clocked import Pending


class Connections:
    """Ends of connecting, by worker and group."""

    def __init__(self, connect_s: float) -> None:
        self._connect_s = connect_s
        self._ends_s: dict[tuple[int, tuple[int, ...]], float] = {}

    def ready_s(self, rank: int, group: tuple[int, ...], now_s: float) -> float:
        """When a worker whose collective of ``group`` is next at ``now_s`` can join it."""
        if not self._connect_s or len(group) == 1:
            return now_s
        return max(now_s, self._ends_s.setdefault((rank, group), now_s + self._connect_s))


class WorkerTurns:
    """The order of each worker's exchanges.

    Args:
        job: of the run.
        clock: virtual time.
        join: called with a collective and its worker's group, once these are connected.
    """

    def __init__(self, job: Job, clock: Clock, join: Callable[[Pending, tuple[int, ...]], None]) -> None:
        self._workers, self._clock, self._join = job.workers, clock, join
        self._ordered = job.collectives.transport.nccl_collectives
        # A library's communicator keeps an order: one for each group of a worker.
        self._lines = defaultdict[Any, deque[tuple[Pending, Callable[[Pending], None]]]](deque)
        self._connections = Connections(job.transfer.connect_s)
        self._connecting = defaultdict[tuple[int, tuple[int, ...]], deque[Pending]](deque)

    def in_turn(self, begin: Callable[[Pending], None]) -> Callable[[Pending], None]:
        """``begin``, but after the worker's previous one where the transport keeps an order."""
        if not self._ordered:
            return begin

        def queue(pending: Pending) -> None:
            line = self._line(pending)
            line.append((pending, begin))
            if len(line) == 1:
                begin(pending)

        return queue

    def _line(self, pending: Pending) -> deque[tuple[Pending, Callable[[Pending], None]]]:
        return self._lines[pending.task.rank, getattr(pending.operation, "groups", None)]

    def end(self, pending: Pending) -> None:
        """Let the one behind an operation begin, if it had a turn."""
        line = self._line(pending)
        if line and line[0][0] is pending:
            line.popleft()
            if line:
                following, begin = line[0]
                self._clock.at(self._clock.now, begin, following)

    def connect(self, pending: Pending) -> None:
        """Let a collective join as soon as its worker has connected with its group, and in order."""
        rank = pending.task.rank
        group = members(pending.operation.groups, self._workers, rank)  # type: ignore[attr-defined]
        ready_s = self._connections.ready_s(rank, group, self._clock.now)
        line = self._connecting[rank, group]
        line.append(pending)
        if ready_s > self._clock.now or len(line) > 1:
            self._clock.at(ready_s, self._join_next, (rank, group))
        else:
            self._join_next((rank, group))

    def _join_next(self, key: tuple[int, tuple[int, ...]]) -> None:
        self._join(self._connecting[key].popleft(), key[1])
