"""Run one job on a group of processes; every rank calls ``run_job``."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from paceline.sim.drivers.job import Job
from paceline.sim.drivers.membership import Resumed
from paceline.sim.errors import InputError, RunError, shorten
from paceline.sim.program.worker import Program
from paceline.sim.records.run import Machine
from paceline.sim.training.scoring import digest

from ..group.group import Group
from ..group.hosts import software
from ..group.store import Stopped
from ..lab import kernel, protocol
from ..transport.connections import COLLECTIVES_AT_ONCE, PeerGone
from ..transport.device import SideStream
from ..transport.rank_transport import Transport
from . import clocks
from .cluster_driver import ClusterDriver
from .collect import RankResult, collect, hand_in
from .exchanges import PostedCounts, plan_drains
from .rank_log import RankLog
from .rank_state import Life, Loop, Rank, Standing
from .watchdog import Watchdog


def run_job(
    group: Group,
    job: Job,
    *,
    backend: str = "gloo",
    programs: Callable[[int], Program] | None = None,
    timeout_s: float = 60.0,
    faults: Mapping[int, int] | None = None,
    progress: Callable[[int], None] | None = None,
    warm_up: bool = True,
    life: Life | None = None,
) -> RankResult:
    """Run one job for real.

    A failed run is collected too, as a partial one; no other can follow in this group.

    Args:
        group: of as many processes as the job has workers.
        job: alike on all ranks.
        backend: torch's name of the backend for mixes and collectives; messages always go over gloo.
        programs: makes a rank's coroutines; default: the job's scheme.
        timeout_s: time limit of any wait.
        faults: rank -> number of the operation at which that process dies.
        progress: called with this rank's number of steps.
        warm_up: compute a gradient before the run: the first one is slow.
        life: of the run; None: it goes from its beginning to its end.

    Raises:
        InputError: the ranks have different jobs, or the job has no real run.
        RunError: a rank is missing at the start, or the backend does not connect.
    """
    life, whole = life or Life(), job
    standing, group.standing = group.standing, None
    if whole.shrinks:
        job = whole.among(tuple(life.members or range(whole.workers)))
        if not whole.scheme.inside(whole.options):
            whole.scheme.check(whole.options, job.workers)
        log = life.left_behind(job.rank_of(group.rank)) or RankLog(job.rank_of(group.rank), job.start)
        standing = standing or Standing(whole, log, {} if log.away else {0: Resumed()})
        standing.enter(life)
    _check(group, job, backend)
    control = group.next_run()
    control.agree("job", {
        "scheme": job.scheme.name, "label": job.label, "options": repr(job.options), "workers": job.workers,
        "seed": job.seed, "max_iterations": job.max_iterations, "max_time_s": job.max_time_s,
        "bytes_per_parameter": job.bytes_per_parameter, "initial model": digest([job.start])[:12],
        "backend": backend,
    }, clocks.TO_START_S)  # fmt: skip
    watchdog = Watchdog(control, timeout_s)
    watchdog.period_s /= 10 if whole.shrinks else 1  # all stop as soon as somebody has failed
    transport = _transport(group, job, backend, timeout_s)
    took_s = _warm_up(group, job) if job.problem is not None and warm_up else 0.0
    if standing is not None:
        log, program = standing.log, Program(standing.main(job, life, group.rank))
    else:
        kept, log = life.load(group.rank) if life.first_step else ((), RankLog(group.rank, job.start))
        program = (programs or partial(job.program, first_step=life.first_step, kept=kept))(group.rank)
    begun = clocks.start(group.gloo, control)
    if life.zero_s is not None:
        begun = replace(begun, zero_s=life.zero_s)
    if group.rank == 0 and job.transfer.network.varies and protocol.in_lab():
        protocol.tell(begun.zero_s, job.transfer.seed)
    machines = clocks.unaligned(begun)
    loop = Loop(begun.zero_s)
    log.away[-1:] = [(since_s, min(until_s, loop.now)) for since_s, until_s in log.away[-1:]]
    rank = Rank(
        job, group.rank, transport, group.threads, control, watchdog, loop, log, whole, life, standing
    )
    die_at = (faults or {}).get(group.rank)
    driver = ClusterDriver(rank, program, took_s=took_s, die_at=die_at, progress=progress)
    try:
        driver.run()
        if not control.dead():
            _drain(rank, driver.exchanges.counts, timeout_s)
            log, machines = clocks.end(group.gloo, control, begun, log)
    except (Stopped, RunError) as error:
        if isinstance(error, RunError):
            watchdog.fail(error, driver.step)
        if standing is not None and (life.killed or not control.failed()):
            group.standing = standing
            return RankResult(None, None, log.final)
    _note_limits(log, transport, driver)
    return _collect(group, rank, log, machines, backend)


def _note_limits(log: RankLog, transport: Transport, driver: ClusterDriver) -> None:
    if transport.messages.buffers.exceeded or transport.collectives.buffers.exceeded:
        log.timing.notes.append("payload is smaller than the tensors, which were sent as they are")
    if (at_once := driver.exchanges.collectives_at_once) > COLLECTIVES_AT_ONCE:
        log.timing.notes.append(
            f"{at_once} collectives were under way at once, of which gloo carries {COLLECTIVES_AT_ONCE}: "
            "with a larger bucket there are fewer"
        )


def _check(group: Group, job: Job, backend: str) -> None:
    if group.broken:
        raise RunError("a run of this group has failed: start the processes anew")
    if group.size != job.workers:
        raise InputError(f"the scenario has {job.workers} workers, but {group.size} processes were started")
    if job.synchronous and job.max_iterations is None:
        raise InputError(
            f"{shorten(job.label)}: a real run of a synchronous scheme needs stop.max_iterations"
        )
    if backend == "nccl" and job.start.device.type != "cuda":
        raise InputError(f"nccl carries values on a GPU, not on {job.start.device}: use gloo")
    if backend != "gloo" and job.scheme.in_shards(job.options) and job.scheme.inside(job.options):
        raise InputError(
            f"{job.label}: shards and their replicas average at once, in an order that differs by rank, and "
            "NCCL would hang: use gloo"
        )


def _transport(group: Group, job: Job, backend: str, timeout_s: float) -> Transport:
    carrier = group.backend(backend, job.start.device, timeout_s)
    if not (carrier.concurrent or job.synchronous):
        group.say(
            f"messages are staged in host memory and go over gloo: {backend} has neither tags nor receives "
            "from anybody"
        )
    return Transport(group.rank, group.gloo, carrier, job.bytes_per_parameter, job.start.device)


def _warm_up(group: Group, job: Job) -> float:
    """Seconds of a gradient: the second of two, since the first one is slow."""
    assert job.problem is not None
    side_stream = SideStream(job.start.device)
    gradient = partial(job.problem.gradient, group.rank, 0, job.start)
    side_stream.run(gradient)
    return side_stream.run(gradient)[1]


def _drain(rank: Rank, counts: PostedCounts, timeout_s: float) -> None:
    """Complete everything left in flight by the services."""
    number, control, messages = rank.number, rank.control, rank.transport.messages
    posted = control.meet("traffic", counts.as_lists(), timeout_s)
    waited: set[object] = set(rank.in_flight)
    for token, drain in enumerate(plan_drains([PostedCounts.from_lists(each) for each in posted])):
        wait = None
        if drain.source == number:
            wait = messages.release(drain.tag, drain.destination)
        elif drain.source == -1 and drain.destination == number:
            wait = messages.swallow(drain.tag, drain.num_bytes)
        if wait is not None:
            waited.add(token)
            rank.threads.run(token, wait)
    end_s = time.monotonic() + timeout_s
    while waited:
        rank.watchdog.check()
        if time.monotonic() > end_s:
            raise RunError(f"worker {number}: {len(waited)} transfers of services did not end")
        finished = rank.threads.next(rank.watchdog.period_s, waited)
        if finished is None:
            continue
        if finished.error is not None:
            raise RunError(f"worker {number}: a transfer of a service failed: {finished.error}")
        waited.discard(finished.token)


def _collect(
    group: Group, rank: Rank, log: RankLog, machines: tuple[Machine, ...], backend: str
) -> RankResult:
    """Hand in this rank's log, or collect and score the run on the collector."""
    job, control, failure, life = rank.job, rank.control, rank.watchdog.failure(), rank.life
    dead = control.dead()
    group.broken = failure is not None or bool(dead)
    collector = failure.collector if failure else min(r for r in range(group.size) if r not in dead)
    gone = dead | set(failure.silent if failure else ())
    error = failure.error if failure else None
    reason = str(failure) if failure else ""
    try:
        if group.rank != collector:
            hand_in(group.gloo, control, log, collector, group.broken)
            return RankResult(None, error, log.final)
        run, logs = collect(group.gloo, control, job, log, gone, reason, rank.whole, life)
    except PeerGone as lost:
        first = f"{reason}; then " if reason else ""
        raise RunError(f"{first}worker {lost.rank} was lost while the records were handed in") from lost
    kind = "lab" if protocol.in_lab() else "cluster"
    hosts = {"kind": kind, "transport": backend, "software": software(), **kernel.send_buffer_setting()}
    run = replace(run, machines=machines, hosts=hosts)
    return RankResult(run, error, log.final, tuple(each.timing for each in logs))
