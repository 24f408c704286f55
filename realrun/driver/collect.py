"""After the clock has stopped: the ranks hand in their diaries, and one of them scores the run."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

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

_AFTERWARDS = frozenset({"wait", "wait_any", "poll", "segment"})
"""Rows about an operation that has a row of its own."""


class StartTimes:
    """When each worker started its part of each exchange."""

    def __init__(self, diaries: Sequence[RankLog]) -> None:
        self._start_s = {
            (diary.rank, row.exchange.key): row.start_s
            for diary in diaries
            for row in diary.rows
            if row.exchange.key and row.operation not in _AFTERWARDS
        }

    def last_s(self, exchange: Exchange, default_s: float) -> float:
        """When the last peer of an exchange started; ``default_s`` where none is known."""
        known = (self._start_s.get((peer, exchange.key)) for peer in exchange.peers)
        return max((time_s for time_s in known if time_s is not None), default=default_s)


def joined_events(diaries: Sequence[RankLog], starts: StartTimes) -> list[Event]:
    """All workers' events with their ``peer_s``, in order of time, each worker's in its own order."""
    columns = []
    for diary in diaries:
        column = []
        for row in diary.rows:
            last_s = starts.last_s(row.exchange, row.start_s)
            column.append(row.event(diary.rank, min(max(last_s, row.start_s), row.end_s)))
        columns.append(column)
    return list(heapq.merge(*columns, key=lambda event: event.end_s))


def time_breakdown(diary: RankLog, starts: StartTimes) -> TimeBreakdown:
    """A worker's account, with its blocked time split into waiting and communicating."""
    found = TimeBreakdown(diary.rank, diary.bytes_sent, diary.steps, ended_s=diary.ended_s)
    for each in diary.exposures:
        peer_s = starts.last_s(each.exchange, each.peer_s)
        found.blocked(each.start_s, each.start_s + each.exposed_s, peer_s, 0.0)
    return found


_HAND_IN_S = 600.0
_GRACE_S = 3.0
"""How long the collector of a failed run waits for the others."""


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
    diary: RankLog,
    collector: int,
    gone: Collection[int],
    failed: bool,
) -> list[RankLog] | None:
    """Give this rank's diary to the collector, who gets those of all ranks but the ``gone`` ones.

    Values travel over gloo, their sizes through the control store.

    Raises:
        RunError: a rank was lost meanwhile.
    """
    patience_s = _GRACE_S if failed else _HAND_IN_S  # each step of the collector's; there are two a rank
    try:
        if control.rank == collector:
            return _collect(gloo, control, job, diary, gone, patience_s)
        _give(gloo, control, diary, collector, 2 * control.size * patience_s)
        return None
    except PeerGone as lost:
        raise RunError(f"worker {lost.rank} was lost while the records were handed in") from lost


def _give(
    gloo: dist.ProcessGroupGloo, control: Control, diary: RankLog, collector: int, patience_s: float
) -> None:
    packed, values = encode(diary)
    control.put(_report(control.rank), [packed.numel(), list(values.shape)])
    for tensor in (packed, values):
        finish(send(gloo, tensor, collector, REPORT_TAG), collector, patience_s)


def _collect(
    gloo: dist.ProcessGroupGloo,
    control: Control,
    job: Job,
    diary: RankLog,
    gone: Collection[int],
    patience_s: float,
) -> list[RankLog]:
    others = [r for r in range(control.size) if r != control.rank and r not in gone]
    late = control.wait_for(_report, others, patience_s, lambda: False)
    # whoever holds the store may exit as soon as it has handed in
    sizes = {rank: control.get(_report(rank)) for rank in others if rank not in late}
    found = [diary]
    for rank, (length, shape) in sizes.items():
        packed = torch.empty(length, dtype=torch.uint8)
        values = torch.empty(shape, dtype=job.start.dtype)
        for tensor in (packed, values):
            finish(receive(gloo, tensor, rank, REPORT_TAG), rank, patience_s)
        found.append(decode(packed, values.to(job.start.device)))
    return sorted(found, key=lambda each: each.rank)


def _report(rank: int) -> str:
    """Under which key a rank tells the sizes of its report."""
    return f"report/{rank}"


def assemble(job: Job, diaries: Sequence[RankLog], message: str) -> Run:
    """The record of a measured run, scored. ``message`` says why it is partial; "" if it is complete.

    A worker whose diary is lost counts with no steps and no model.
    """
    scorer = job.scorer()
    scorer.begin([job.start] * job.workers)
    columns = [[(each.time_s, diary.rank, each) for each in diary.published] for diary in diaries]
    for rank in set(range(job.workers)).difference(diary.rank for diary in diaries):
        scorer.lose(rank)
    for time_s, rank, each in heapq.merge(*columns, key=lambda row: row[:2]):
        value = job.start if each.value is None else each.value
        scorer.publish(rank, each.step, time_s, value, each.bytes_sent, each.leader, each.notes)
    starts = StartTimes(diaries)
    accounts = {diary.rank: time_breakdown(diary, starts) for diary in diaries}
    wall_s = max(
        max((row.end_s for row in diary.rows if row.task == 0), default=0.0)
        if diary.ended_s is None else diary.ended_s
        for diary in diaries
    )  # fmt: skip
    journal = job.journal()
    if journal is not None:
        for event in joined_events(diaries, starts):
            journal.add(event)
    outcome = Outcome(
        wall_s=wall_s,
        accounts=[accounts.get(rank, TimeBreakdown(rank, ended_s=0.0)) for rank in range(job.workers)],
        finals=[diary.final for diary in diaries],
        leader=next((diary.leader for diary in diaries if diary.leader is not None), None),
        events=journal.events if journal else [],
        status="partial" if message else "completed",
        message=message,
    )
    return run_record(job, outcome, scorer, "measured")
