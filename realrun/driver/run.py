"""Run one job on a group of processes; every rank calls ``run_job``."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from paceline.sim.drivers.job import Job
from paceline.sim.errors import InputError, RunError
from paceline.sim.program.worker import Program
from paceline.sim.records.run import Machine
from paceline.sim.training.scoring import digest

from ..group.group import Group
from ..group.store import Control, Stopped
from ..lab import start
from ..transport.connections import COLLECTIVES_AT_ONCE
from ..transport.device import SideStream
from ..transport.messages import Messages
from ..transport.threads import ThreadPool
from ..transport.transport import Transport
from . import clocks
from .cluster import ClusterDriver
from .collect import RankResult, assemble, hand_in
from .drain import PostedCounts, drains
from .rank_log import RankLog
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
) -> RankResult:
    """Run one job for real.

    A run that fails is collected too, as a partial one; then no other can follow in this group.

    Args:
        group: this process and the others; there are as many as the job has workers.
        job: the same on all ranks.
        backend: torch's name of what carries pattern operations; messages always go over gloo.
        programs: makes a rank's coroutines; absent: the job's scheme.
        timeout_s: how long any wait may last.
        faults: rank -> number of the operation of its main coroutine at which that process dies.
        progress: called with the number of steps that this rank has done.
        warm_up: compute a gradient before the run: the first one is slow.

    Raises:
        InputError: the ranks were not given the same job, or it cannot be run for real.
        RunError: a rank did not come to the start, or the backend does not connect them.
    """
    _check(group, job, backend)
    control = group.next_run()
    facts = {
        "scheme": job.scheme.name, "label": job.label, "options": repr(job.options), "workers": job.workers,
        "seed": job.seed, "max_iterations": job.max_iterations, "max_time_s": job.max_time_s,
        "bytes_per_parameter": job.bytes_per_parameter, "initial model": digest([job.start])[:12],
        "backend": backend,
    }  # fmt: skip
    control.agree("job", facts, clocks.TO_START_S)
    watch = Watchdog(control, timeout_s)
    carrier = group.backend(backend, job.start.device, timeout_s)
    if not (carrier.carries_messages or job.synchronous):
        group.say(
            f"messages are staged in host memory and go over gloo: {backend} has neither tags nor receives "
            "from anybody"
        )
    transport = Transport(group.rank, group.gloo, carrier, job.num_bytes, job.start.device)
    took_s = 0.0
    if job.problem is not None and warm_up:
        side_stream = SideStream(job.start.device)
        gradient = partial(job.problem.gradient, group.rank, 0, job.start)
        for _ in range(2):
            _, took_s = side_stream.run(gradient)
    program = programs(group.rank) if programs is not None else job.program(group.rank)
    begun = clocks.start(group.gloo, control)
    if group.rank == 0 and job.transfer.network.varies and start.in_lab():
        start.tell(begun.zero_s, job.transfer.seed)
    driver = ClusterDriver(
        job,
        group.rank,
        program,
        transport=transport,
        threads=group.threads,
        control=control,
        watch=watch,
        zero_s=begun.zero_s,
        keeps=job.scorer().keeps,
        took_s=took_s,
        die_at=(faults or {}).get(group.rank),
        progress=progress,
    )
    diary, machines = driver.diary, clocks.unaligned(begun)
    try:
        driver.run()
        if not control.dead():
            _leave_nothing(driver, control, transport.messages, group.threads, watch, timeout_s)
            diary, machines = clocks.end(group.gloo, control, begun, diary)
    except Stopped:
        pass
    except RunError as error:
        watch.fail(error, driver.step)
    if transport.exceeded:
        diary.timing.notes.append("payload is smaller than the tensors, which were sent as they are")
    if driver.collectives_at_once > COLLECTIVES_AT_ONCE:
        diary.timing.notes.append(
            f"{driver.collectives_at_once} collectives were under way at once, of which gloo carries "
            f"{COLLECTIVES_AT_ONCE}: with a larger bucket there are fewer"
        )
    return _collected(group, job, diary, machines, control, watch)


def _check(group: Group, job: Job, backend: str) -> None:
    if group.broken:
        raise RunError("a run of this group has failed: start the processes anew")
    if group.size != job.workers:
        raise InputError(f"the scenario has {job.workers} workers, but {group.size} processes were started")
    if job.synchronous and job.max_iterations is None:
        raise InputError(f"{job.label}: a real run of a synchronous scheme needs stop.max_iterations")
    if backend == "nccl" and job.start.device.type != "cuda":
        raise InputError(f"nccl carries values on a GPU, not on {job.start.device}: use gloo")


def _leave_nothing(
    driver: ClusterDriver,
    control: Control,
    messages: Messages,
    threads: ThreadPool,
    watch: Watchdog,
    timeout_s: float,
) -> None:
    """Complete everything that the services have left in flight."""
    told = control.meet("traffic", driver.traffic.told(), timeout_s)
    waited: set[object] = set(driver.in_flight)
    for number, closing in enumerate(drains([PostedCounts.heard(each) for each in told])):
        wait = None
        if closing.source == control.rank:
            wait = messages.release(closing.tag, closing.destination)
        elif closing.source == -1 and closing.destination == control.rank:
            wait = messages.swallow(closing.tag, closing.num_bytes)
        if wait is not None:
            waited.add(number)
            threads.run(number, wait)
    end_s = time.monotonic() + timeout_s
    while waited:
        watch.check()
        if time.monotonic() > end_s:
            raise RunError(f"worker {control.rank}: {len(waited)} transfers of services did not end")
        finished = threads.next(watch.period_s, waited)
        if finished is None:
            continue
        if finished.error is not None:
            raise RunError(f"worker {control.rank}: a transfer of a service failed: {finished.error}")
        waited.discard(finished.token)


def _collected(
    group: Group, job: Job, diary: RankLog, machines: tuple[Machine, ...], control: Control, watch: Watchdog
) -> RankResult:
    failure = watch.failure()
    dead = control.dead()
    group.broken = failure is not None or bool(dead)
    collector = failure.collector if failure else min(r for r in range(group.size) if r not in dead)
    gone = dead | set(failure.silent if failure else ())
    diaries = hand_in(group.gloo, control, job, diary, collector, gone, group.broken)
    error = failure.error if failure else None
    if diaries is None:
        return RankResult(None, error, diary.final)
    message = str(failure) if failure else ""
    if dead and not failure:
        message = f"worker {', '.join(str(r) for r in sorted(dead))} died"
    run = replace(assemble(job, diaries, message), machines=machines)
    return RankResult(run, error, diary.final, tuple(d.timing for d in diaries))
