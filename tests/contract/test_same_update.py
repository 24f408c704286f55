"""Simulated all-reduce SGD against foreign implementations: one process, and DistributedDataParallel."""

from __future__ import annotations

import pytest
import torch

from paceline.realrun.group.group import Group
from paceline.sim.workloads.modules import flatten
from tests.support.cluster_pool import Pool, default_group
from tests.support.factory import make_job, run_events

WORKERS, STEPS, LR = 4, 12, 0.1


def _simulated(momentum: float) -> torch.Tensor:
    job = make_job(
        "all_reduce",
        task="digits-mlp",
        workers=WORKERS,
        max_iterations=STEPS,
        momentum=momentum,
        lr=LR,
        cv=0.2,
    )
    finals = run_events(job).finals
    assert all(torch.equal(final, finals[0]) for final in finals)
    return finals[0]


def _module() -> torch.nn.Sequential:
    """The architecture of digits-mlp at the job's start."""
    module = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    start = make_job("all_reduce", task="digits-mlp", workers=WORKERS).start
    torch.nn.utils.vector_to_parameters(start.clone(), module.parameters())
    return module


def _batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    problem = make_job("all_reduce", task="digits-mlp", workers=WORKERS).problem
    assert problem is not None
    rows = torch.from_numpy(problem.batches.examples(rank, step))
    return problem.workload.inputs[rows], problem.workload.targets[rows]


def _close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert ((actual - expected).norm() / expected.norm()).item() < 1e-5


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_one_process_with_the_larger_batch(momentum: float) -> None:
    module = _module()
    optimizer = torch.optim.SGD(module.parameters(), lr=LR, momentum=momentum)
    for step in range(STEPS):
        parts = [_batch(rank, step) for rank in range(WORKERS)]
        inputs, targets = (torch.cat(column) for column in zip(*parts, strict=True))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(module(inputs), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    _close(_simulated(momentum), flatten(module))


def with_ddp(group: Group, momentum: float) -> list[float]:
    """In a process of the pool: the same, by torch; returns the last model."""
    default_group(group)
    module = torch.nn.parallel.DistributedDataParallel(_module())
    optimizer = torch.optim.SGD(module.parameters(), lr=LR, momentum=momentum)
    for step in range(STEPS):
        inputs, targets = _batch(group.rank, step)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(module(inputs), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return flatten(module.module).tolist()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_distributed_data_parallel(four: Pool, momentum: float) -> None:
    finals = four.ask(with_ddp, momentum=momentum)
    assert all(final == finals[0] for final in finals)
    _close(_simulated(momentum), torch.tensor(finals[0]))
