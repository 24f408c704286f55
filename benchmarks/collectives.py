"""Seconds of the processor for a step of all-reduce on the clock alone: priced as a whole, and by messages.

    python benchmarks/collectives.py

One switch, 1 Gbit/s and 1 ms, 4 MB, computations with cv 0.1, so that every step has other start times. What
is done once for a schedule is in the first step, which counts apart. Blocks that have their links for
themselves (ideal, nccl) were priced by a recursion before, so that "by messages" means it there.
"""

from __future__ import annotations

import time
from dataclasses import replace

from paceline.sim.drivers.event import EventDriver
from paceline.sim.drivers.job import Job
from tests.support.factory import make_job

MOST_MESSAGES = 200_000
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
            job = replace(job, transfer=job.transport.transfer(job.transfer))
            first_s, messages = run(job, 1, priced=True)
            one_s, six_s = (run(job, steps, priced=True)[0] for steps in (1, 6))
            step_s = (six_s - one_s) / 5
            text = f"{transport or '-':10} {name:20} {workers:7} {messages:9,} {first_s:11.3f} {step_s:.3f}"
            if messages <= MOST_MESSAGES:
                by_messages_s = run(job, 1, priced=False)[0]
                text += f" {by_messages_s:12.3f} {by_messages_s / step_s:6.1f}"
            print(text, flush=True)


def run(job: Job, steps: int, priced: bool) -> tuple[float, int]:
    """Processor seconds and messages of so many steps."""
    job = replace(job, max_iterations=steps)
    scorer = job.scorer()
    scorer.begin([job.start] * job.workers)
    begin_s = time.process_time()
    driver = EventDriver(job, [job.program(r) for r in range(job.workers)], scorer, priced=priced)
    driver.run()
    return time.process_time() - begin_s, driver.messages


if __name__ == "__main__":
    main()
