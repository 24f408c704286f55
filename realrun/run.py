"""Run one job on a group of processes; every rank calls ``run_job``."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import Empty

from realrun.buffers import Buffers
from realrun.closing import Traffic, closings
from realrun.collect import Measured, assemble, hand_in
from realrun.collectives import Collectives
from realrun.driver import Driver
from realrun.group import Group
from realrun.lab import start
from realrun.store import Control, Stopped
from realrun.threads import Threads
from realrun.transport import Transport
from realrun.watch import Watch
from sim.errors import InputError, RunError
from sim.evaluation import digest
from sim.job import Job
from sim.worker import Program

_HEAD_START_S = 0.05
"""How far ahead of its announcement a run begins, so that every rank has heard of it."""

_BETWEEN_RUNS_S = 3600.0
"""How long a rank may take to score a run, or to prepare one, while the others wait."""


def run_job(
    group: Group,
    job: Job,
    *,
    programs: Callable[[int], Program] | None = None,
    timeout_s: float = 60.0,
    faults: Mapping[int, int] | None = None,
    progress: Callable[[int], None] | None = None,
    warm_up: bool = True,
) -> Measured:
    """Run one job for real.

    A run that fails is collected too, as a partial one; then no other can follow in this group.

    Args:
        group: this process and the others; there are as many as the job has workers.
        job: the same on all ranks.
        programs: makes a rank's coroutines; absent: the job's scheme.
        timeout_s: how long any wait may last.
        faults: rank -> number of the operation of its main coroutine at which that process dies.
        progress: called with the number of steps that this rank has done.
        warm_up: compute a gradient before the run: the first one is slow.

    Raises:
        InputError: the ranks were not given the same job, or it cannot be run for real.
        RunError: a rank did not come to the start.
    """
    _check(group, job)
    control = group.next_run()
    facts = {
        "scheme": job.scheme.name, "label": job.label, "options": repr(job.options), "workers": job.workers,
        "seed": job.seed, "max_iterations": job.max_iterations, "max_time_s": job.max_time_s,
        "bytes_per_parameter": job.bytes_per_parameter, "initial model": digest([job.start])[:12],
    }  # fmt: skip
    control.agree("job", facts, _BETWEEN_RUNS_S)
    watch = Watch(control, timeout_s)
    buffers = Buffers(job.num_bytes)
    transport = Transport(group.rank, group.size, buffers)
    took_s = 0.0
    if job.problem is not None and warm_up:
        for _ in range(2):
            begin_s = time.monotonic()
            job.problem.gradient(group.rank, 0, job.start)
            took_s = time.monotonic() - begin_s
    zero_s = _zero_s(control)
    if group.rank == 0 and job.transfer.network.varies and start.in_lab():
        start.tell(zero_s, job.transfer.seed)
    driver = Driver(
        job,
        group.rank,
        programs(group.rank) if programs is not None else job.program(group.rank),
        transport=transport,
        collectives=Collectives(group.rank, group.size, buffers, group.subgroup),
        buffers=buffers,
        threads=group.threads,
        control=control,
        watch=watch,
        zero_s=zero_s,
        keeps=job.scorer().keeps,
        took_s=took_s,
        die_at=(faults or {}).get(group.rank),
        progress=progress,
    )
    try:
        driver.run()
        if not control.dead():
            _leave_nothing(driver, control, transport, group.threads, watch, timeout_s)
    except Stopped:
        pass
    except RunError as error:
        watch.fail(error, driver.step)
    return _collected(group, job, driver, control, watch, buffers.swollen)


def _check(group: Group, job: Job) -> None:
    if group.broken:
        raise RunError("a run of this group has failed: start the processes anew")
    if group.size != job.workers:
        raise InputError(f"the scenario has {job.workers} workers, but {group.size} processes were started")
    if job.synchronous and job.max_iterations is None:
        raise InputError(f"{job.label}: a real run of a synchronous scheme needs stop.max_iterations")
    if job.start.device.type != "cpu":
        raise InputError(f"gloo carries values on the CPU, not on {job.start.device}: use --device cpu")


def _zero_s(control: Control) -> float:
    """When the run begins, on this process's monotonic clock.

    Processes of one machine share that clock, so that the beginning is one moment; on several machines
    each takes the moment at which it hears that all are ready.
    """
    machines = control.meet(
        "ready", Path("/proc/sys/kernel/random/boot_id").read_text().strip(), _BETWEEN_RUNS_S
    )
    if len(set(machines)) > 1:
        return time.monotonic() + _HEAD_START_S
    if control.rank == 0:
        control.put("zero", time.monotonic() + _HEAD_START_S)
    if control.wait_for(lambda _: "zero", [0], _BETWEEN_RUNS_S, lambda: bool(control.dead())):
        raise RunError("worker 0 was lost (zero)")
    return float(control.get("zero"))


def _leave_nothing(
    driver: Driver, control: Control, transport: Transport, threads: Threads, watch: Watch, timeout_s: float
) -> None:
    """Complete everything that the services have left in flight."""
    told = control.meet("traffic", driver.traffic.told(), timeout_s)
    waited: set[object] = set(driver.in_flight)
    for number, closing in enumerate(closings([Traffic.heard(each) for each in told])):
        posted = None
        if closing.source == control.rank:
            posted = transport.close(closing.tag, closing.destination)
        elif closing.source == -1 and closing.destination == control.rank:
            posted = transport.swallow(closing.tag, closing.num_bytes)
        if posted is not None:
            waited.add(number)
            threads.run(number, posted.wait)
    end_s = time.monotonic() + timeout_s
    while waited:
        watch.check()
        if time.monotonic() > end_s:
            raise RunError(f"worker {control.rank}: {len(waited)} transfers of services did not end")
        try:
            finished = threads.finished.get(timeout=watch.period_s)
        except Empty:
            continue
        if finished.error is not None:
            raise RunError(f"worker {control.rank}: a transfer of a service failed: {finished.error}")
        waited.discard(finished.token)


def _collected(
    group: Group, job: Job, driver: Driver, control: Control, watch: Watch, swollen: bool
) -> Measured:
    failure = watch.failure()
    dead = control.dead()
    group.broken = failure is not None or bool(dead)
    collector = failure.collector if failure else min(r for r in range(group.size) if r not in dead)
    if swollen:
        driver.diary.timing.notes.append("payload is smaller than the tensors, which were sent as they are")
    gone = dead | set(failure.silent if failure else ())
    diaries = hand_in(control, job, driver.diary, collector, gone, group.broken)
    error = failure.error if failure else None
    if diaries is None:
        return Measured(None, error, driver.diary.final)
    message = str(failure) if failure else ""
    if dead and not failure:
        message = f"worker {', '.join(str(r) for r in sorted(dead))} died"
    return Measured(
        assemble(job, diaries, message), error, driver.diary.final, tuple(d.timing for d in diaries)
    )
