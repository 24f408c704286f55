"""Seconds of the processor for a step of all-reduce on the clock alone: priced as a whole, and by messages.

    python -m benchmarks.collectives

One switch, 1 Gbit/s and 1 ms, 4 MB, computations with cv 0.1, so that every step has other start times. What
is done once for a schedule is in the first step, which counts apart. Blocks that have their links for
themselves (ideal, nccl) were priced by a recursion before, so that "by messages" means it there.

At last, with gradients, how much longer than local SGD an all-reduce at every step takes in lockstep.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import replace

from benchmarks.bars import Part, at_most, print_bars
from paceline.sim.drivers.event import EventDriver
from paceline.sim.drivers.job import Job
from paceline.sim.drivers.lockstep.lockstep_driver import LockstepDriver
from tests.support.factory import make_job

MOST_MESSAGES = 200_000
MANY, MANY_STEPS, ROUNDS = 256, 50, 5
CASES = (
    ("ideal", "auto"), ("nccl", "nccl_ring"), ("nccl", "nccl_tree"), ("gloo", "gloo_ring"),
    (None, "ring_stop_and_wait"),
)  # fmt: skip


def main() -> None:
    """Measure and print."""
    print(f"{'transport':10} {'all-reduce':20} workers  messages  first step  step  by messages  ratio")
    for transport, name in CASES:
        for workers in (16, 64, 256, 1024):
            if workers == 1024 and name == "nccl_ring":
                continue  # two million blocks
            job = make_job(
                "all_reduce", workers=workers, cv=0.1, latency_s=1e-3, bandwidth_bytes_per_s=1.25e8,
                bytes_per_parameter=4e6, all_reduce=name, transport=transport, record_events=False,
            )  # fmt: skip
            job = replace(job, transfer=job.collectives.transport.transfer(job.transfer))
            first_s, messages = run(job, 1, priced=True)
            one_s, six_s = (run(job, steps, priced=True)[0] for steps in (1, 6))
            step_s = (six_s - one_s) / 5
            text = f"{transport or '-':10} {name:20} {workers:7} {messages:9,} {first_s:11.3f} {step_s:.3f}"
            if messages <= MOST_MESSAGES:
                by_messages_s = run(job, 1, priced=False)[0]
                text += f" {by_messages_s:12.3f} {by_messages_s / step_s:6.1f}"
            print(text, flush=True)
    print_bars(measure().bars)


def run(job: Job, steps: int, priced: bool) -> tuple[float, int]:
    """Processor seconds and messages of so many steps."""
    job = replace(job, max_iterations=steps)
    scorer = job.scorer()
    scorer.begin([job.start] * job.workers)
    begin_s = time.process_time()
    driver = EventDriver(job, [job.program(r) for r in range(job.workers)], scorer, priced=priced)
    driver.run()
    return time.process_time() - begin_s, driver.messages


def measure() -> Part:
    """How much longer than local SGD an all-reduce at every step takes, in lockstep with gradients."""
    jobs = [
        make_job(
            name, options, task="digits-mlp", workers=MANY, cv=0.1, max_iterations=MANY_STEPS, every=10**9,
            latency_s=0.01, bandwidth_bytes_per_s=1e8, transport="ideal", all_reduce="auto",
            record_events=False,
        )
        for name, options in (("local_sgd", {"period": 10**9}), ("all_reduce", {}))
    ]  # fmt: skip
    times_s: list[list[float]] = []
    for _ in range(ROUNDS):
        times_s.append([])
        for job in jobs:
            begin_s = time.perf_counter()
            LockstepDriver(job, job.scorer()).run()
            times_s[-1].append(time.perf_counter() - begin_s)
    local_s, reduced_s = (statistics.median(column) for column in zip(*times_s, strict=True))
    ratio = statistics.median(reduced / local for local, reduced in times_s)
    name = f"lockstep, {MANY} workers, {MANY_STEPS} steps with gradients, all-reduce beside local SGD"
    detail = f"local SGD {local_s:.2f} s, all-reduce {reduced_s:.2f} s"
    return Part((at_most(name, 1.3, ratio, "times", detail),))


if __name__ == "__main__":
    main()
