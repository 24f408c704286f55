"""What an operation costs on real processes of this machine, above the time that its network would take.

Prints the median and mean seconds per operation of 4 gloo processes, and how punctual padded gradients are.
"""

from __future__ import annotations

import json
import statistics
import sys
from typing import Any

import torch

from paceline.realrun.driver.one_run import run_job
from paceline.realrun.group.group import Group
from paceline.sim import topology
from paceline.sim.program.worker import Worker
from tests.support.cluster_pool import Pool
from tests.support.factory import NoOptions, make_job, make_scheme

WORKERS, FLOATS, REPEATS = 4, 10_000, 300


def measure(group: Group, operation: str) -> dict[str, Any]:
    """In a process of the pool: repeat one operation."""

    async def program(worker: Worker, options: NoOptions) -> None:
        x = torch.zeros(FLOATS)
        ring = topology.plan("ring", worker.size, "uniform").at(0)
        for k in range(REPEATS):
            if operation == "mix":
                await worker.mix(ring, x)
            elif operation == "all_reduce":
                await worker.all_reduce(x)
            elif operation == "gradient":
                await worker.gradient(worker.start)
            elif (worker.rank + k) % 2:
                await worker.send(worker.rank ^ 1, x)
            else:
                await worker.receive(worker.rank ^ 1, x)

    job = make_job(
        make_scheme(program), task="digits-mlp", workers=group.size, compute_s=0.005, max_iterations=0
    )
    measured = run_job(group, job)
    if measured.run is None:
        return {}
    took = [e.end_s - e.start_s for e in measured.run.events if e.worker == 0]
    timing = measured.timings[0]
    return {
        "median_us": round(1e6 * statistics.median(took)),
        "mean_us": round(1e6 * statistics.fmean(took)),
        "wall_us": round(1e6 * measured.run.wall_clock_s / REPEATS),
        "late_us": round(1e6 * timing.late_s / timing.gradients) if timing.gradients else None,
        "latest_us": round(1e6 * timing.latest_s),
        "overruns": timing.overruns,
    }


if __name__ == "__main__":
    pool = Pool(WORKERS)
    for name in ("mix", "send and receive", "all_reduce", "gradient"):
        sys.stdout.write(f"{name}: {json.dumps(pool.ask(measure, operation=name)[0])}\n")
    pool.close()
