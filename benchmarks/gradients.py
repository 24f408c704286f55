"""Gradients a second: both drivers against a plain loop and against raw vmap, in one run.

    python benchmarks/gradients.py

64 workers, digits MLP (64-64-10), batch 32, one thread, computation with cv 0.1. The ways are
interleaved block by block; medians of rates, and of ratios within a block, are printed.

Then, for tasks, numbers of workers and batch sizes, how many times faster a batch of all workers is than a
loop over them, and what ``gradients: auto`` takes: the numbers in its rule (``choose_method``) are from here.

The plain loop calls ``backward()`` and nothing else. The drivers also draw batches, update and keep the
clock: alone between two averagings (local SGD), or averaging with one peer at every step (gossip).

At last, how much longer than local SGD an all-reduce at every step takes in lockstep, with 256 workers.
"""

from __future__ import annotations

import statistics
import time
from functools import partial
from typing import Any

import torch

from paceline.sim.drivers.event import EventDriver
from paceline.sim.drivers.job import Job
from paceline.sim.drivers.lockstep.driver import LockstepDriver
from paceline.sim.training.gradients import TrainingProblem, choose_method
from paceline.sim.workloads.partition import Batches, Partition, shards
from paceline.sim.workloads.supervised import supervised
from paceline.sim.workloads.workload import Workload
from tests.support.factory import make_job, make_problem

WORKERS, STEPS, BLOCKS = 64, 20, 9
SCHEMES: dict[str, tuple[str, dict[str, Any]]] = {
    "local SGD": ("local_sgd", {"period": 10**9}),
    "one-peer gossip": ("gossip", {"topology": "one_peer_exponential"}),
}
MANY, MANY_STEPS = 256, 50
TASKS = ("digits-mlp", "logistic", "quadratic", "text-transformer", "digits-cnn")
WIDTHS = (128, 256, 512)
ROUNDS = 5


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    compare_drivers()
    compare_schemes()
    compare_methods()


def perceptron(width: int) -> Workload:
    """256 - width - width - 10 on random examples, whose values do not matter."""
    layers = [torch.nn.Linear(256, width), torch.nn.ReLU(), torch.nn.Linear(width, width), torch.nn.ReLU()]
    module = torch.nn.Sequential(*layers, torch.nn.Linear(width, 10))
    random = torch.Generator().manual_seed(0)
    examples = torch.randn(2000, 256, generator=random), torch.arange(2000) % 10
    criterion = torch.nn.functional.cross_entropy
    return supervised("perceptron", module, criterion, examples, None, ["train_loss"])


def compare_methods() -> None:
    """Print a loop's time over a batch's, and the choice, by model, batch size and number of workers."""
    workloads = {task: make_problem(task, 2, 1, "looped").workload for task in TASKS}
    workloads |= {f"256-{width}-{width}-10": perceptron(width) for width in WIDTHS}
    print("looped / batched time (b: gradients: auto takes the batch)")
    for name, workload in workloads.items():
        for batch_size in (8, 32, 128):
            cells = [method_cell(workload, workers, batch_size) for workers in (2, 4, 8, 16, 64)]
            size = f"{workload.start.numel():>7,} parameters"
            print(f"{name:>18}, {size}, batch {batch_size:>3}: {'  '.join(cells)}")


def method_cell(workload: Workload, workers: int, batch_size: int) -> str:
    """Number of workers, the median of a loop's time over a batch's, and the choice."""
    batches = Batches(shards(Partition(), len(workload.inputs), None, workers, 1), batch_size, 1)
    ranks, points = list(range(workers)), [workload.start + 1e-3 * rank for rank in range(workers)]
    looped, batched = (TrainingProblem(workload, batches, method) for method in ("looped", "batched"))
    ratios = []
    for index in range(ROUNDS):
        times_s = []
        for problem in (looped, batched):
            begin_s = time.perf_counter()
            problem.gradients(ranks, [index] * workers, points)
            times_s.append(time.perf_counter() - begin_s)
        ratios.append(times_s[0] / times_s[1])
    taken = "b" if choose_method(workload, batches, workers) == "batched" else " "
    return f"n={workers}: {statistics.median(ratios[1:]):.2f} {taken}"


def compare_drivers() -> None:
    """Print gradients a second of both drivers, of a plain loop and of raw vmap."""
    jobs = {
        name: make_job(
            scheme, options, task="digits-mlp", workers=WORKERS, cv=0.1, max_iterations=STEPS,
            every=10**9, latency_s=0.01, sharing="none", record_events=False,
        )
        for name, (scheme, options) in SCHEMES.items()
    }  # fmt: skip
    job = next(iter(jobs.values()))
    problem = job.problem
    assert problem is not None
    module = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    rows = torch.stack([torch.from_numpy(problem.batches.examples(w, 0)) for w in range(WORKERS)])
    inputs, targets = problem.workload.inputs[rows], problem.workload.targets[rows]
    points = job.start.repeat(WORKERS, 1)
    shapes = {name: parameter.shape for name, parameter in module.named_parameters()}
    sizes = [shape.numel() for shape in shapes.values()]

    def forward(x: torch.Tensor, examples: torch.Tensor) -> torch.Tensor:
        parts = zip(shapes.items(), torch.split(x, sizes), strict=True)
        held = {name: part.view(shape) for (name, shape), part in parts}
        outputs: torch.Tensor = torch.func.functional_call(module, held, (examples,))
        return outputs

    batched = torch.func.vmap(
        torch.func.grad(lambda x, a, y: torch.nn.functional.cross_entropy(forward(x, a), y))
    )

    def plain_loop() -> None:
        for _ in range(STEPS):
            for w in range(WORKERS):
                module.zero_grad()
                loss = torch.nn.functional.cross_entropy(module(inputs[w]), targets[w])
                loss.backward()  # type: ignore[no-untyped-call]

    def raw_vmap() -> None:
        for _ in range(STEPS):
            batched(points, inputs, targets)

    ways = {"plain loop": plain_loop, "raw vmap": raw_vmap}
    for name, each_job in jobs.items():
        ways[f"event driver, {name}"] = partial(run_events, each_job)
        ways[f"lockstep, {name}"] = partial(run_lockstep, each_job)
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        way()
    for _ in range(BLOCKS):
        for name, way in ways.items():
            begin = time.perf_counter()
            way()
            rates[name].append(WORKERS * STEPS / (time.perf_counter() - begin))
    for name, each in rates.items():
        against = ", ".join(
            f"{statistics.median(a / b for a, b in zip(each, rates[other], strict=True)):.2f} of {other}"
            for other in ("plain loop", "raw vmap")
        )
        print(f"{name:>30}: {statistics.median(each):7,.0f} gradients/s, {against}")
    print("bars: the event driver at least 0.6 of raw vmap, lockstep at least 0.85")


def run_events(job: Job) -> None:
    """Run a job on the event driver."""
    EventDriver(job, [job.program(rank) for rank in range(job.workers)], job.scorer()).run()


def run_lockstep(job: Job) -> None:
    """Run a job in lockstep."""
    LockstepDriver(job, job.scorer()).run()


def compare_schemes() -> None:
    """Print how much longer than local SGD an all-reduce at every step takes, in lockstep."""
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
            run_lockstep(job)
            times_s[-1].append(time.perf_counter() - begin_s)
    local_s, reduced_s = (statistics.median(column) for column in zip(*times_s, strict=True))
    ratio = statistics.median(reduced / local for local, reduced in times_s)
    print(
        f"{MANY} workers, {MANY_STEPS} steps in lockstep: local SGD {local_s:.2f} s, "
        f"all-reduce {reduced_s:.2f} s, {ratio:.2f} times (bar: 1.3)"
    )


if __name__ == "__main__":
    main()
