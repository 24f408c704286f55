"""After the run: the ranks hand in their logs, and one of them scores the run."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from queue import Empty
from typing import Final

import torch
import torch.distributed as dist

from paceline.sim.drivers.job import Job
from paceline.sim.drivers.outcome import Outcome, describe_deaths, scored_record
from paceline.sim.errors import RunError
from paceline.sim.records.accounting import TimeBreakdown
from paceline.sim.records.run import Event, Run
from paceline.sim.training.scoring import Fetch
from paceline.sim.training.snapshots import Published, Snapshots, WorkerLost

from ..group.store import Control
from ..transport.connections import REPORT_TAG, PeerGone, ThreadPool, finish, receive, send
from .rank_log import FINAL, LEADER, Exchange, ModelRef, RankLog, Timing, decode, encode
from .rank_state import Life

_RESUMPTIONS: Final = frozenset({"wait", "wait_any", "poll", "segment"})
"""Rows of a coroutine's resumption after a started operation, which has a row of its own."""


class StartTimes:
    """Start times of each worker's part of each exchange."""

    def __init__(self, logs: Sequence[RankLog]) -> None:
        self._start_s = {
            (log.rank, row.exchange.key): row.start_s
            for log in logs
            for row in log.rows
            if row.exchange.key and row.operation not in _RESUMPTIONS
        }

    def last_s(self, exchange: Exchange, default_s: float) -> float:
        """Start time of the last peer of an exchange; ``default_s`` if none is known."""
        known = (self._start_s.get((peer, exchange.key)) for peer in exchange.peers)
        return max((time_s for time_s in known if time_s is not None), default=default_s)


def joined_events(logs: Sequence[RankLog], starts: StartTimes) -> list[Event]:
    """Events of all workers with their ``peer_s``, merged by end time; each worker's stay in order."""
    columns = (
        [
            row.event(log.rank, min(max(starts.last_s(row.exchange, row.start_s), row.start_s), row.end_s))
            for row in log.rows
        ]
        for log in logs
    )
    return list(heapq.merge(*columns, key=lambda event: event.end_s))


def time_breakdown(log: RankLog, starts: StartTimes, until_s: float = math.inf) -> TimeBreakdown:
    """A worker's time up to a moment, with its blocked time split into waiting and communicating."""
    breakdown = TimeBreakdown(ended_s=log.ended_s)
    breakdown.go_on(log.counts)
    breakdown.down_s = sum(min(end_s, until_s) - start_s for start_s, end_s in log.away if start_s < until_s)
    for each in log.exposures:
        peer_s, end_s = starts.last_s(each.exchange, each.peer_s), each.start_s + each.exposed_s
        if each.start_s < until_s:
            breakdown.blocked(each.start_s, min(end_s, until_s), min(peer_s, until_s), 0.0)
    return breakdown


_HAND_IN_S: Final = 600.0
"""Time limit of the collector's wait for each step of another rank."""
_GRACE_S: Final = 3.0
"""Time limit after a failed run: some ranks may never answer."""


@dataclass(frozen=True)
class RankResult:
    """A rank's result of a run.

    Attributes:
        run: the record, on the rank that collected it.
        error: cause of a failure, alike on all ranks.
        final: the last model published by this rank; the initial one before.
        timings: one per worker that handed in, on the collector.
    """

    run: Run | None
    error: RunError | None
    final: torch.Tensor
    timings: tuple[Timing, ...] = field(default=())


class KeptModels:
    """The models kept by the ranks that handed in, for the collector.

    A rank has ``patience_s`` to send a request's models.
    """

    def __init__(
        self,
        gloo: dist.ProcessGroupGloo,
        control: Control,
        job: Job,
        logs: Sequence[RankLog],
        patience_s: float,
    ) -> None:
        self._gloo, self._control, self._job, self._patience_s = gloo, control, job, patience_s
        self._places = {job.rank_of(place): place for place in range(job.workers)}
        places = (self._places.get(log.rank, control.rank) for log in logs)
        self._requests = {place: 0 for place in places if place != control.rank}
        self._here: dict[ModelRef, torch.Tensor] = {}
        for log in logs:
            self._here[ModelRef(log.rank, FINAL)] = log.final
            if log.leader is not None:
                self._here[ModelRef(log.rank, LEADER)] = log.leader
            self._here |= {ModelRef(log.rank, number): model for number, model in enumerate(log.models)}

    def fetch(self, wanted: Sequence[ModelRef]) -> list[torch.Tensor]:
        """The wanted models, [d] each, fetched from their ranks if needed; ``PeerGone``: a rank was lost."""
        numbers: dict[int, list[int]] = {}
        for model in dict.fromkeys(wanted):
            if model not in self._here and model != _START:
                numbers.setdefault(self._places[model.worker], []).append(model.number)
        for rank, of_rank in numbers.items():
            self._request(rank, of_rank)
        for rank, of_rank in numbers.items():
            values = torch.empty((len(of_rank), *self._job.start.shape), dtype=self._job.start.dtype)
            finish(receive(self._gloo, values, rank, REPORT_TAG), rank, self._patience_s)
            models = values.to(self._job.start.device).unbind()
            keys = (ModelRef(self._job.rank_of(rank), number) for number in of_rank)
            self._here |= dict(zip(keys, models, strict=True))
        return [self._job.start if model == _START else self._here[model] for model in wanted]

    def release(self) -> None:
        """Tell the other ranks that no more models are wanted."""
        for rank in self._requests:
            self._request(rank, [])

    def _request(self, rank: int, numbers: list[int]) -> None:
        self._control.put(_wanted(rank, self._requests[rank]), numbers)
        self._requests[rank] += 1


_START: Final = ModelRef(-1, 0)
"""The initial model, which all ranks have."""


def hand_in(
    gloo: dist.ProcessGroupGloo, control: Control, log: RankLog, collector: int, failed: bool
) -> None:
    """Send this rank's log to the collector, and then the models that it wants to score.

    Values travel over gloo, sizes and requests through the control store. ``PeerGone``: the collector was
    lost.
    """
    # The collector takes two steps for each rank.
    patience_s = 2 * control.size * (_GRACE_S if failed else _HAND_IN_S)
    packed, values = encode(log)
    control.put(_report(control.rank), [packed.numel(), list(values.shape)])
    for tensor in (packed, values):
        finish(send(gloo, tensor, collector, REPORT_TAG), collector, patience_s)
    for request in itertools.count():
        key = _wanted(control.rank, request)
        if control.wait_for(lambda _, key=key: key, [collector], patience_s, lambda: False):  # type: ignore[misc]
            raise PeerGone(collector)
        numbers: list[int] = control.get(key)
        if not numbers:
            return
        models = torch.stack([log.models[number] for number in numbers]).cpu()
        finish(send(gloo, models, collector, REPORT_TAG), collector, patience_s)


def collect(
    gloo: dist.ProcessGroupGloo,
    control: Control,
    job: Job,
    log: RankLog,
    gone: Collection[int],
    failure: str,
    whole: Job,
    life: Life,
) -> tuple[Run, list[RankLog]]:
    """Record of the run, from the logs of all ranks but the ``gone`` ones.

    After a failure, ranks whose logs do not come are named; ``PeerGone``: one was lost without a failure.
    """
    patience_s = _GRACE_S if failure or gone else _HAND_IN_S
    handed_in = _collect(gloo, control, job, gone, patience_s)
    missing = sorted(set(range(job.workers)).difference(gone, handed_in, [control.rank]))
    if missing and not (failure or gone):
        raise PeerGone(missing[0])
    without = [f"worker {job.rank_of(rank)} handed in no record" for rank in missing]
    failure = "; ".join([failure, *without] if failure else without)
    log.digest_iterates()
    logs = [log, *handed_in.values()]
    others = set(range(whole.workers)).difference(map(job.rank_of, range(job.workers)))
    logs += [left for other in others if (left := life.left_behind(other)) is not None]
    logs.sort(key=lambda each: each.rank)
    models = KeptModels(gloo, control, job, logs, patience_s)
    try:
        return assemble(whole, logs, models.fetch, failure), logs
    finally:
        models.release()


def _collect(
    gloo: dist.ProcessGroupGloo, control: Control, job: Job, gone: Collection[int], patience_s: float
) -> dict[int, RankLog]:
    """The logs of the other ranks that came, each within ``patience_s`` of the one before."""
    others = [r for r in range(control.size) if r != control.rank and r not in gone]
    late = control.wait_for(_report, others, patience_s, lambda: False)
    threads = ThreadPool()  # a wait that gives up would close all of gloo's connections
    for rank in set(others).difference(late):
        # the rank that serves the store may exit once it has handed in
        threads.run(rank, _receive, gloo, rank, *control.get(_report(rank)), job.start)
    logs: dict[int, RankLog] = {}
    with suppress(Empty):
        for _ in range(len(others) - len(late)):
            done = threads.finished.get(timeout=patience_s)
            if done.error is None:
                logs[done.token] = done.result
            elif not isinstance(done.error, PeerGone):
                raise done.error
    threads.close()
    return logs


def _receive(
    gloo: dist.ProcessGroupGloo, rank: int, length: int, shape: Sequence[int], start: torch.Tensor
) -> RankLog:
    packed, values = torch.empty(length, dtype=torch.uint8), torch.empty(shape, dtype=start.dtype)
    for tensor in (packed, values):
        finish(receive(gloo, tensor, rank, REPORT_TAG), rank)
    return decode(packed, values.to(start.device))


def _report(rank: int) -> str:
    return f"report/{rank}"


def _wanted(rank: int, request: int) -> str:
    return f"wanted/{rank}/{request}"


def assemble(job: Job, logs: Sequence[RankLog], fetch: Fetch[ModelRef], failure: str) -> Run:
    """Scored record of a measured run; a worker without a log counts with no steps and no model.

    ``fetch`` gets the logged ranks' kept models; ``failure``: why the run is partial, or "".
    """
    lost = set(range(job.workers)).difference(log.rank for log in logs)
    changes: list[Published[ModelRef] | WorkerLost] = [WorkerLost(rank, 0.0) for rank in sorted(lost)]
    lost |= {log.rank for log in logs if log.away and log.away[-1][1] == math.inf}
    columns = (log.published for log in logs)
    changes += heapq.merge(*columns, key=lambda each: (each.time_s, each.worker))
    changes += (WorkerLost(log.rank, since_s) for log in logs for since_s, _ in log.away)
    changes.sort(key=lambda each: each.time_s)
    start = [_START] * job.workers
    if job.problem is not None:
        fetch(_scored_anyhow(start, job.scoring.every, changes))
    scorer = job.scorer_of(fetch)
    scorer.begin(start)
    marks = job.pace_marks()
    for change in changes:
        if isinstance(change, WorkerLost):
            scorer.lose(change.worker, change.time_s)
            if change.worker in lost:
                marks.lose(change.worker)
        else:
            scorer.publish(change)
            marks.publish(change.worker, change.step, change.time_s, change.bytes_sent)
    pace = marks.last()
    starts = StartTimes(logs)

    def breakdowns(until_s: float = math.inf) -> list[TimeBreakdown]:
        known = {log.rank: time_breakdown(log, starts, until_s) for log in logs}
        return [known.get(rank, TimeBreakdown(ended_s=0.0)) for rank in range(job.workers)]

    wall_s = max(
        max((row.end_s for row in log.rows if row.task == 0), default=0.0)
        if log.ended_s is None else log.ended_s
        for log in logs
    )  # fmt: skip
    event_log = job.recording.log()
    if event_log is not None:
        for event in joined_events(logs, starts):
            event_log.add(event)
    outcome = Outcome(
        wall_s=wall_s,
        breakdowns=breakdowns(wall_s),
        finals=[log.final for log in logs if log.rank not in lost],
        leader=next((log.leader for log in logs if log.leader is not None), None),
        lost=lost,
        events=event_log.events if event_log else [],
        status="partial" if failure else "completed",
        message=failure or describe_deaths(lost),
        pace=pace,
        counted=breakdowns(pace.time_s) if marks.complete and not job.synchronous else (),
    )
    finals = {log.rank: ModelRef(log.rank, FINAL) for log in logs if log.rank not in lost}
    leader = next((ModelRef(log.rank, LEADER) for log in logs if log.leader is not None), None)
    scorer.finish(wall_s, finals, leader)
    digests = {log.rank: _by_step(job, log) for log in logs}
    iterates = tuple(digests.get(rank, ()) for rank in range(job.workers))
    return replace(scored_record(job, outcome, scorer, "measured"), iterates=iterates)


def _by_step(job: Job, log: RankLog) -> tuple[str, ...]:
    """Digests of a rank's kept models by step, as it did it last; "" for those that it missed."""
    steps = [each.step + 1 for each in log.published if each.value is not None]
    known = dict(zip(steps, log.iterates, strict=True))
    return tuple(
        known.get(step, "") for step in range(1, max(steps, default=0) + 1) if job.scoring.keeps.at(step)
    )


def _scored_anyhow(
    start: Sequence[ModelRef], every: int, changes: Sequence[Published[ModelRef] | WorkerLost]
) -> list[ModelRef]:
    """Models of all snapshots except those searched for the target, to be fetched in one go."""
    snapshots = Snapshots(start, every, remember=False)
    ends = [interval.end for change in changes if (interval := snapshots.take(change)) is not None]
    if snapshots.due_s is not None:
        ends.append(snapshots.close().end)
    return [model for end in ends for model in end.models.values()]
