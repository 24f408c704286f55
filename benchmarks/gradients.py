"""Gradients a second: the event driver against a plain loop and against raw vmap, in one run.

    python benchmarks/gradients.py

64 workers, digits MLP (64-64-10), batch 32, one thread, computation with cv 0.1. The three are
interleaved block by block; medians and ratios are printed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from sim.drivers.event import EventDriver
from sim.workloads.modules import apply_flat
from tests.factory import make_job

WORKERS, STEPS, BLOCKS = 64, 20, 9


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    job = make_job(
        "gossip", {"topology": "one_peer_exponential"}, task="digits-mlp", workers=WORKERS, cv=0.1,
        max_iterations=STEPS, every=10**9, latency_s=0.01, sharing="none", record_events=False,
    )  # fmt: skip
    problem = job.problem
    assert problem is not None
    module = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    rows = torch.stack([torch.from_numpy(problem.batches.examples(w, 0)) for w in range(WORKERS)])
    inputs, targets = problem.workload.inputs[rows], problem.workload.targets[rows]
    points = job.start.repeat(WORKERS, 1)
    forward = apply_flat(module)
    batched = torch.func.vmap(
        torch.func.grad(lambda x, a, y: torch.nn.functional.cross_entropy(forward(x, a), y))
    )

    def plain_loop() -> None:
        for _ in range(STEPS):
            for w in range(WORKERS):
                module.zero_grad()
                torch.nn.functional.cross_entropy(module(inputs[w]), targets[w]).backward()  # type: ignore[no-untyped-call]

    def raw_vmap() -> None:
        for _ in range(STEPS):
            batched(points, inputs, targets)

    def event_driver() -> None:
        EventDriver(job, [job.program(r) for r in range(WORKERS)], job.scorer()).run()

    rates: dict[str, list[float]] = {"plain loop": [], "raw vmap": [], "event driver": []}
    ways: dict[str, Callable[[], None]] = dict(zip(rates, (plain_loop, raw_vmap, event_driver), strict=True))
    for way in ways.values():
        way()
    for _ in range(BLOCKS):
        for name, way in ways.items():
            begin = time.perf_counter()
            way()
            rates[name].append(WORKERS * STEPS / (time.perf_counter() - begin))
    for name, found in rates.items():
        print(f"{name:>13}: {statistics.median(found):9,.0f} gradients/s")
    pairs = list(zip(rates["event driver"], rates["plain loop"], rates["raw vmap"], strict=True))
    print(f"event driver / plain loop: {statistics.median(e / p for e, p, _ in pairs):.2f} (bar: at least 2)")
    print(
        f"event driver / raw vmap:   {statistics.median(e / v for e, _, v in pairs):.2f} (bar: at least 0.4)"
    )


if __name__ == "__main__":
    main()
