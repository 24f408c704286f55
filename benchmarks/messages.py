"""Messages a second of both drivers, of gossiping workers without gradients.

    python benchmarks/messages.py

Whole simulation time, coroutines and accounts included; medians of several runs. The event driver with 1,024
workers; in lockstep 10,000 of them, with constant durations and with lognormal jitter, beside what drawing
these numbers takes alone. Then all-reduces, and one whole command with all of its start-up.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from paceline.sim.drivers.event import EventDriver
from paceline.sim.drivers.job import Job
from paceline.sim.drivers.lockstep.driver import LockstepDriver
from paceline.sim.drivers.lockstep.durations import Durations
from tests.support.factory import make_job

WORKERS, RUNS = 1024, 5
MANY, MANY_STEPS = 10_000, 512
SECOND: dict[str, Any] = {"latency_s": 0.01, "bytes_per_parameter": 4e6, "bandwidth_bytes_per_s": 8e6}
CASES: list[tuple[str, str, int, dict[str, Any], int]] = [
    ("ring, links not shared", "ring", 40, {**SECOND, "sharing": "none"}, 60_000),
    (
        "one-peer exponential, links not shared",
        "one_peer_exponential",
        40,
        {**SECOND, "sharing": "none"},
        60_000,
    ),
    ("ring, access links shared, constant compute", "ring", 20, SECOND, 15_000),
    ("ring, access links shared, cv 0.3", "ring", 20, {**SECOND, "cv": 0.3}, 5_000),
]
"""Name, topology, steps, settings, and the rate to reach. Transfers last about as long as computation."""

SCENARIO = """
name: many-workers
workload: {timing_only: true, payload: 4 MB, optimizer: {lr: 0.1}}
cluster:
  workers: 10000
  compute: {time: 1 s}
  network: {latency: 10 ms, bandwidth: 100 Mbit/s}
schemes: [{gossip: {topology: one_peer_exponential}}]
stop: {max_iterations: 1000}
collectives: {all_reduce: ring}
events: none
"""
"""Nothing is all-reduced: with an algorithm named, none has to be chosen for 10,000 workers."""


def main() -> None:
    """Measure and print."""
    for name, topology, steps, settings, bar in CASES:
        job = make_job(
            "gossip",
            {"topology": topology},
            workers=WORKERS,
            max_iterations=steps,
            record_events=False,
            **settings,
        )
        print(f"{name:>45}: {_rate(job, _events):11,.0f} messages/s (bar: {bar:,})")
    lockstep()
    all_reduce()
    whole_command()


def _events(job: Job) -> int:
    driver = EventDriver(job, [job.program(rank) for rank in range(job.workers)], job.scorer())
    driver.run()
    return driver.messages


def _in_lockstep(job: Job) -> int:
    driver = LockstepDriver(job, job.scorer())
    driver.run()
    return driver.messages


def _rate(job: Job, run: Callable[[Job], int]) -> float:
    return statistics.median(_rate_of(job, run) for _ in range(RUNS))


def _rate_of(job: Job, run: Callable[[Job], int]) -> float:
    begin_s = time.perf_counter()
    number = run(job)
    return number / (time.perf_counter() - begin_s)


def lockstep() -> None:
    """One-peer gossip of many workers, with constant durations and with jitter, beside bare draws."""
    for cv, bar in ((0.0, 50_000_000), (0.3, 10_000_000)):
        job = make_job(
            "gossip", {"topology": "one_peer_exponential"}, workers=MANY, max_iterations=MANY_STEPS, cv=cv,
            record_events=False, **SECOND,
        )  # fmt: skip
        _in_lockstep(replace(job, max_iterations=20))  # the graphs are made once for all runs
        rates = [(_rate_of(job, _in_lockstep), _rate_of(job, _draws)) for _ in range(RUNS)]
        name = f"lockstep, {MANY:,} workers, one peer, cv {cv:g}"
        rate = statistics.median(each for each, _ in rates)
        print(f"{name:>45}: {rate:11,.0f} messages/s (bar: {bar:,})")
        if cv:
            draws = statistics.median(each for _, each in rates)
            share = statistics.median(messages / drawn for messages, drawn in rates)
            name = "its durations drawn alone"
            print(f"{name:>45}: {draws:11,.0f} draws/s, {share:.2f} of which are reached (bar: 0.7)")


def _draws(job: Job) -> int:
    durations = Durations(job.compute, job.workers)
    for _ in range(MANY_STEPS):
        durations.next_s()
    return MANY_STEPS * job.workers


def all_reduce() -> None:
    """All-reduces of 1,024 workers, whose algorithm is chosen before."""
    for transport in ("ideal", "nccl"):
        for cv in (0.0, 0.3):
            job = make_job(
                "all_reduce", workers=WORKERS, max_iterations=100, record_events=False, transport=transport,
                cv=cv, all_reduce="auto", **SECOND,
            )  # fmt: skip
            job = replace(job, transfer=job.transport.transfer(job.transfer))
            begin_s = time.perf_counter()
            _in_lockstep(replace(job, max_iterations=1))
            first_s = time.perf_counter() - begin_s
            begin_s = time.perf_counter()
            _in_lockstep(job)
            taken_s = time.perf_counter() - begin_s
            name = f"lockstep, {WORKERS:,} workers, {transport} all-reduce, cv {cv:g}"
            print(
                f"{name:>45}: {taken_s:.2f} s for 100 steps (bar: 10 s), {first_s:.2f} s for the first alone"
            )


def whole_command() -> None:
    """A command with many workers and steps, start-up included."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "many.yaml"
        path.write_text(SCENARIO)
        begin_s = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "paceline", "simulate", str(path), "--json", "--engine", "lockstep"],
            check=True, capture_output=True,
        )  # fmt: skip
        taken_s = time.perf_counter() - begin_s
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    name = "10,000 workers x 1,000 steps, the command"
    print(f"{name:>45}: {taken_s:.1f} s, {most:.2f} GiB (bars: 20 s, 4 GiB)")


if __name__ == "__main__":
    main()
