"""Time alone: one-peer gossip and ring all-reduces, here and in SimGrid.

One switch, 10 ms and 8 MB/s, messages of 4 MB, a second of computation: what is simulated takes as long in
both. SimGrid's model is CM02 without its factors for TCP; actors are written in Python, all-reduces in C over
MPI (SMPI), with the ring ("lr").
"""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from benchmarks.speed.environment import simgrid_missing
from paceline.sim.drivers.event import EventDriver
from paceline.sim.drivers.job import Job
from paceline.sim.drivers.lockstep.lockstep_driver import LockstepDriver
from tests.support.factory import make_job

HERE: Final = Path(__file__).parent
ROUNDS: Final = 3
MESSAGE_BYTES: Final = 4_000_000
GOSSIP: Final = (256, 20)
ALL_REDUCE: Final = (64, 5)
"""Workers and steps."""
NETWORK: Final[dict[str, Any]] = {
    "latency_s": 0.01, "bytes_per_parameter": float(MESSAGE_BYTES), "bandwidth_bytes_per_s": 8e6,
}  # fmt: skip
FACTORS: Final = (
    "--cfg=network/model:CM02", "--cfg=network/crosstraffic:no", "--cfg=smpi/allreduce:lr",
    "--cfg=smpi/simulate-computation:no",
    "--cfg=smpi/or:0:0:0", "--cfg=smpi/os:0:0:0", "--cfg=smpi/ois:0:0:0", "--cfg=smpi/async-small-thresh:0",
    "--cfg=smpi/send-is-detached-thresh:0",
)  # fmt: skip


@dataclass(frozen=True)
class ClockFigures:
    """Time alone, one way.

    Attributes:
        work: what is simulated.
        way: by what.
        messages: how many.
        seconds: median of the rounds.
        simulated_s: what came out.
        error: why there are no figures; "" where there are.
    """

    work: str
    way: str
    messages: int = 0
    seconds: float = 0.0
    simulated_s: float = 0.0
    error: str = ""


def measure_clocks() -> list[ClockFigures]:
    """Simulate both in turns: both drivers, and SimGrid where it is there."""
    missing = simgrid_missing()
    n, steps = GOSSIP
    gossip = _job("gossip", n, steps, topology="one_peer_exponential")
    ways: dict[tuple[str, str], Callable[[], tuple[float, float, int]]] = {}
    name = f"one-peer gossip, {n} workers, {steps} steps"
    ways[name, "lockstep"] = lambda: _lockstep(gossip)
    ways[name, "event driver"] = lambda: _events(gossip)
    ways[name, "SimGrid, Python actors"] = lambda: _actors(n, steps)
    ranks, reductions = ALL_REDUCE
    reduced = _job("all_reduce", ranks, reductions)
    ring = f"ring all-reduce, {ranks} workers, {reductions} steps"
    ways[ring, "lockstep"] = lambda: _lockstep(reduced)
    ways[ring, "event driver"] = lambda: _events(reduced)
    ways[ring, "event driver, message by message"] = lambda: _events(reduced, priced=False)
    ways[ring, "SimGrid, SMPI"] = lambda: _smpi(ranks, reductions)
    results: dict[tuple[str, str], list[tuple[float, float, int]]] = {key: [] for key in ways}
    errors: dict[tuple[str, str], str] = {}
    for _ in range(ROUNDS):
        for key, run in ways.items():
            if missing and "SimGrid" in key[1]:
                errors[key] = missing
            if key in errors:
                continue
            try:
                results[key].append(run())
            except subprocess.CalledProcessError as error:
                lines = str(error.stderr).strip().splitlines()
                errors[key] = lines[-1] if lines else str(error)
    return [
        ClockFigures(*key, error=errors[key])
        if key in errors
        else ClockFigures(*key, done[0][2], statistics.median(each[0] for each in done), done[0][1])
        for key, done in results.items()
    ]


def _job(scheme: str, workers: int, steps: int, **options: Any) -> Job:
    job = make_job(
        scheme, options, workers=workers, max_iterations=steps, record_events=False,
        all_reduce="ring_stop_and_wait", **NETWORK,
    )  # fmt: skip
    return replace(job, transfer=job.collectives.transport.transfer(job.transfer))


def _lockstep(job: Job) -> tuple[float, float, int]:
    begin_s = time.perf_counter()
    driver = LockstepDriver(job, job.scorer())
    outcome = driver.run()
    return time.perf_counter() - begin_s, outcome.wall_s, driver.messages


def _events(job: Job, priced: bool = True) -> tuple[float, float, int]:
    begin_s = time.perf_counter()
    programs = [job.program(rank) for rank in range(job.workers)]
    driver = EventDriver(job, programs, job.scorer(), priced=priced)
    outcome = driver.run()
    return time.perf_counter() - begin_s, outcome.wall_s, driver.messages


def _platform(folder: Path, workers: int) -> Path:
    """One switch for SimGrid: a full-duplex link of half the latency for each host."""
    path = folder / "platform.xml"
    path.write_text(
        '<?xml version="1.0"?>\n<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">\n'
        f'<platform version="4.1">\n<cluster id="all" prefix="host" suffix="" radical="0-{workers - 1}" '
        'speed="1Gf" bw="8MBps" lat="5ms" sharing_policy="SPLITDUPLEX"/>\n</platform>\n',
        encoding="utf-8",
    )
    return path


def _actors(workers: int, steps: int) -> tuple[float, float, int]:
    with tempfile.TemporaryDirectory() as folder:
        command = [
            "/usr/bin/python3", str(HERE / "simgrid_gossip.py"), str(_platform(Path(folder), workers)),
            str(workers), str(steps), "1.0", str(MESSAGE_BYTES),
        ]  # fmt: skip
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    seconds, simulated_s = map(float, done.stdout.split()[-2:])
    return seconds, simulated_s, workers * steps


def _smpi(workers: int, steps: int) -> tuple[float, float, int]:
    """With its start, which is about a tenth of a second."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        hosts = folder / "hosts"
        hosts.write_text("".join(f"host{rank}\n" for rank in range(workers)), encoding="utf-8")
        program = folder / "all_reduce"
        compiled = ["smpicc", "-O2", str(HERE / "all_reduce.c"), "-o", str(program)]
        subprocess.run(compiled, check=True, capture_output=True, text=True)
        command = [
            "smpirun", "-np", str(workers), "-platform", str(_platform(folder, workers)),
            "-hostfile", str(hosts),
            *FACTORS, "--log=root.thres:error", str(program), str(steps), "1", str(MESSAGE_BYTES // 4),
        ]  # fmt: skip
        begin_s = time.perf_counter()
        done = subprocess.run(
            command, check=True, capture_output=True, text=True, cwd=folder, env={**os.environ}
        )
        seconds = time.perf_counter() - begin_s
    return seconds, float(done.stdout.split()[-1]), 2 * (workers - 1) * workers * steps
