"""Peak memory of 256 workers with a model of a million parameters each.

    python benchmarks/memory.py

A digits MLP with 13,333 hidden units, one-peer gossip with momentum, three steps; the bar is 8 GiB.
"""

from __future__ import annotations

import resource

import torch

from paceline.sim.drivers.event import EventDriver
from tests.support.factory import make_job


def main() -> None:
    """Run and print the peak resident memory of this process."""
    torch.set_num_threads(1)
    job = make_job(
        "gossip", {"topology": "one_peer_exponential"}, task="digits-mlp", workers=256, momentum=0.9,
        task_options={"hidden": 13_333}, cv=0.1, max_iterations=3, every=3,
        latency_s=0.01, bandwidth_bytes_per_s=1e9,
    )  # fmt: skip
    scorer = job.scorer()
    scorer.begin([job.start] * job.workers)
    EventDriver(job, [job.program(r) for r in range(job.workers)], scorer).run()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"peak resident memory: {peak:.2f} GiB (bar: 8), score {scorer.evaluations[-1].metrics}")


if __name__ == "__main__":
    main()
