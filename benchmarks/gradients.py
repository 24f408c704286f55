"""Gradients in a batch of all workers against a loop over them.

    python benchmarks/gradients.py

For tasks, numbers of workers and batch sizes, how many times faster the batch is, and what ``gradients:
auto`` takes: the numbers in its rule (``choose_method``) are from here.
"""

from __future__ import annotations

import statistics
import time

import torch

from paceline.sim.training.gradients import TrainingProblem, choose_method
from paceline.sim.workloads.partition import Batches, Partition, shards
from paceline.sim.workloads.supervised import supervised
from paceline.sim.workloads.workload import Workload
from tests.support.factory import make_problem

TASKS = ("digits-mlp", "logistic", "quadratic", "text-transformer", "digits-cnn")
WIDTHS = (128, 256, 512)
ROUNDS = 5


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
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


if __name__ == "__main__":
    main()
