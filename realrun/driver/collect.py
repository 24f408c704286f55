"""After the clock has stopped: the ranks hand in their logs, and one of them scores the run."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

import torch
import torch.distributed as dist

from paceline.sim.drivers.job import Job
from paceline.sim.drivers.outcome import Outcome, run_record
from paceline.sim.errors import RunError
from paceline.sim.records.accounting import TimeBreakdown
from paceline.sim.records.run import Event, Run

from ..group.store import Control
from ..transport.connections import REPORT_TAG, PeerGone, finish, receive, send
from .rank_log import Exchange, RankLog, Timing, decode, encode

_RESUMPTIONS: Final = frozenset({"wait", "wait_any", "poll", "segment"})
"""Rows of a coroutine that goes on after a started operation, which has a row of its own."""


class StartTimes:
    """When each worker started its part of each exchange."""

    def __init__(self, logs: Sequence[RankLog]) -> None:
        self._start_s = {
            (log.rank, row.exchange.key): row.start_s
            for log in logs
            for row in log.rows
            if row.exchange.key and row.operation not in _RESUMPTIONS
        }

    def last_s(self, exchange: Exchange, default_s: float) -> float:
        """When the last peer of an exchange started; ``default_s`` where none is known."""
        known = (self._start_s.get((peer, exchange.key)) for peer in exchange.peers)
        return max((time_s for time_s in known if time_s is not None), default=default_s)


def joined_events(logs: Sequence[RankLog], starts: StartTimes) -> list[Event]:
    """All workers' events with their ``peer_s``, in order of time, each worker's in its own order."""
    columns = []
    for log in logs:
        column = []
        for row in log.rows:
            last_s = starts.last_s(row.exchange, row.start_s)
            column.append(row.event(log.rank, min(max(last_s, row.start_s), row.end_s)))
        columns.append(column)
    return list(heapq.merge(*columns, key=lambda event: event.end_s))


def time_breakdown(log: RankLog, starts: StartTimes) -> TimeBreakdown:
    """A worker's time, with its blocked time split into waiting and communicating."""
    breakdown = TimeBreakdown(log.rank, log.bytes_sent, log.steps, ended_s=log.ended_s)
    breakdown.operations = log.operations
    for each in log.exposures:
        peer_s = starts.last_s(each.exchange, each.peer_s)
        breakdown.blocked(each.start_s, each.start_s + each.exposed_s, peer_s, 0.0)
    return breakdown


_HAND_IN_S: Final = 600.0
"""How long the collector waits for each step of another rank."""
_GRACE_S: Final = 3.0
"""That of a failed run: some ranks may never answer."""


@dataclass(frozen=True)
class RankResult:
    """What a rank knows after a run.

    Attributes:
        run: the record, on the rank that collected it; None on the others.
        error: why the run failed, the same on all ranks; None if it did not.
        final: the last model that this rank has published; the initial one before.
        timings: one per worker that handed in, on the collector.
    """

    run: Run | None
    error: RunError | None
    final: torch.Tensor
    timings: tuple[Timing, ...] = field(default=())


def hand_in(
    gloo: dist.ProcessGroupGloo,
    control: Control,
    job: Job,
    log: RankLog,
    collector: int,
    gone: Collection[int],
    failed: bool,
) -> list[RankLog] | None:
    """Give this rank's log to the collector, who gets those of all ranks but the ``gone`` ones.

    Values travel over gloo, their sizes through the control store.

    Raises:
        RunError: a rank was lost meanwhile.
    """
    patience_s = _GRACE_S if failed else _HAND_IN_S  # each step of the collector's; there are two a rank
    try:
        if control.rank == collector:
            return _collect(gloo, control, job, log, gone, patience_s)
        _give(gloo, control, log, collector, 2 * control.size * patience_s)
        return None
    except PeerGone as lost:
        raise RunError(f"worker {lost.rank} was lost while the records were handed in") from lost


def _give(
    gloo: dist.ProcessGroupGloo, control: Control, log: RankLog, collector: int, patience_s: float
) -> None:
    packed, values = encode(log)
    control.put(_report(control.rank), [packed.numel(), list(values.shape)])
    for tensor in (packed, values):
        finish(send(gloo, tensor, collector, REPORT_TAG), collector, patience_s)


def _collect(
    gloo: dist.ProcessGroupGloo,
    control: Control,
    job: Job,
    log: RankLog,
    gone: Collection[int],
    patience_s: float,
) -> list[RankLog]:
    others = [r for r in range(control.size) if r != control.rank and r not in gone]
    late = control.wait_for(_report, others, patience_s, lambda: False)
    # whoever holds the store may exit as soon as it has handed in
    sizes = {rank: control.get(_report(rank)) for rank in others if rank not in late}
    logs = [log]
    for rank, (length, shape) in sizes.items():
        packed = torch.empty(length, dtype=torch.uint8)
        values = torch.empty(shape, dtype=job.start.dtype)
        for tensor in (packed, values):
            finish(receive(gloo, tensor, rank, REPORT_TAG), rank, patience_s)
        logs.append(decode(packed, values.to(job.start.device)))
    return sorted(logs, key=lambda each: each.rank)


def _report(rank: int) -> str:
    """Under which key the control store has the sizes of a rank's report."""
    return f"report/{rank}"


def assemble(job: Job, logs: Sequence[RankLog], message: str) -> Run:
    """The record of a measured run, scored. ``message`` says why it is partial; "" if it is complete.

    A worker whose log is lost counts with no steps and no model.
    """
    scorer = job.scorer()
    scorer.begin([job.start] * job.workers)
    columns = [[(each.time_s, log.rank, each) for each in log.published] for log in logs]
    for rank in set(range(job.workers)).difference(log.rank for log in logs):
        scorer.lose(rank)
    for time_s, rank, each in heapq.merge(*columns, key=lambda row: row[:2]):
        value = job.start if each.value is None else each.value
        scorer.publish(rank, each.step, time_s, value, each.bytes_sent, each.leader, each.notes)
    starts = StartTimes(logs)
    breakdowns = {log.rank: time_breakdown(log, starts) for log in logs}
    wall_s = max(
        max((row.end_s for row in log.rows if row.task == 0), default=0.0)
        if log.ended_s is None else log.ended_s
        for log in logs
    )  # fmt: skip
    event_log = job.event_log()
    if event_log is not None:
        for event in joined_events(logs, starts):
            event_log.add(event)
    outcome = Outcome(
        wall_s=wall_s,
        breakdowns=[breakdowns.get(rank, TimeBreakdown(rank, ended_s=0.0)) for rank in range(job.workers)],
        finals=[log.final for log in logs],
        leader=next((log.leader for log in logs if log.leader is not None), None),
        events=event_log.events if event_log else [],
        status="partial" if message else "completed",
        message=message,
    )
    return run_record(job, outcome, scorer, "measured")
