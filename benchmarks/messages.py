"""Messages a second of both drivers, of gossiping workers without gradients.

    python -m benchmarks.messages

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
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.bars import Bar, Part, at_least, at_most, print_bars
from paceline.sim.drivers.event import EventDriver
from paceline.sim.drivers.job import Job
from paceline.sim.drivers.lockstep.lockstep_clock import Durations
from paceline.sim.drivers.lockstep.lockstep_driver import LockstepDriver
from tests.support.factory import make_job

WORKERS, RUNS = 1024, 5
MANY, MANY_STEPS = 10_000, 1024
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
    print_bars(measure_bars())


def measure() -> Part:
    """All bars, for the page."""
    return Part(tuple(measure_bars()))


def measure_bars() -> Iterator[Bar]:
    """Both drivers, all-reduces, and a whole command."""
    for name, topology, steps, settings, bar in CASES:
        job = make_job(
            "gossip",
            {"topology": topology},
            workers=WORKERS,
            max_iterations=steps,
            record_events=False,
            **settings,
        )
        yield at_least(f"event driver, 1,024 workers, {name}", bar, _rate(job, _events), "messages/s")
    yield from lockstep()
    yield from all_reduce()
    yield from whole_command()


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


def lockstep() -> Iterator[Bar]:
    """One-peer gossip of many workers, with constant durations and with jitter, beside bare draws."""
    for cv, bar in ((0.0, 50), (0.3, 10)):
        job = make_job(
            "gossip", {"topology": "one_peer_exponential"}, workers=MANY, max_iterations=MANY_STEPS, cv=cv,
            record_events=False, **SECOND,
        )  # fmt: skip
        _in_lockstep(replace(job, max_iterations=20))  # the graphs are made once for all runs
        rates = [(_rate_of(job, _in_lockstep), _rate_of(job, _draws)) for _ in range(RUNS)]
        jitter = f"lognormal, cv {cv:g}" if cv else "constant"
        name = f"lockstep, {MANY:,} workers, {MANY_STEPS:,} steps of one-peer gossip, {jitter}"
        rate = statistics.median(each for each, _ in rates)
        yield at_least(name, bar, rate / 1e6, "million messages/s")
        if cv:
            draws = statistics.median(each for _, each in rates)
            share = statistics.median(messages / drawn for messages, drawn in rates)
            detail = f"these durations drawn alone: {draws / 1e6:.1f} million/s"
            yield at_least(f"{name}, of its bare draws", 0.7, share, "times", detail)


def _draws(job: Job) -> int:
    durations = Durations([job.compute], job.workers)
    for _ in range(MANY_STEPS):
        durations.next_s()
    return MANY_STEPS * job.workers


def all_reduce() -> Iterator[Bar]:
    """All-reduces of 1,024 workers, whose algorithm is chosen before."""
    for transport in ("ideal", "nccl"):
        for cv in (0.0, 0.3):
            job = make_job(
                "all_reduce", workers=WORKERS, max_iterations=100, record_events=False, transport=transport,
                cv=cv, all_reduce="auto", **SECOND,
            )  # fmt: skip
            job = replace(job, transfer=job.collectives.transport.transfer(job.transfer))
            begin_s = time.perf_counter()
            _in_lockstep(replace(job, max_iterations=1))
            first_s = time.perf_counter() - begin_s
            begin_s = time.perf_counter()
            _in_lockstep(job)
            taken_s = time.perf_counter() - begin_s
            name = f"lockstep, {WORKERS:,} workers, 100 steps of {transport} all-reduce, cv {cv:g}"
            yield at_most(name, 10, taken_s, "s", f"a first step alone, before: {first_s:.2f} s")


def whole_command() -> Iterator[Bar]:
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
    name = f"`paceline simulate`, {MANY:,} workers, 1,000 steps of one-peer gossip, time only"
    yield at_most(name, 20, taken_s, "s")
    yield at_most(f"{name}, memory", 4, most, "GiB")


if __name__ == "__main__":
    main()
