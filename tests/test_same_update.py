"""Simulated all-reduce SGD against foreign implementations: one process, and DistributedDataParallel."""

from __future__ import annotations

import multiprocessing
import os
import socket
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from sim.workloads.modules import flatten
from tests.factory import make_job, run_events

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


def _close(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert ((found - expected).norm() / expected.norm()).item() < 1e-5


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


def _ddp(rank: int, port: int, folder: str, momentum: float) -> None:
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", rank=rank, world_size=WORKERS)
    module = torch.nn.parallel.DistributedDataParallel(_module())
    optimizer = torch.optim.SGD(module.parameters(), lr=LR, momentum=momentum)
    for step in range(STEPS):
        inputs, targets = _batch(rank, step)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(module(inputs), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    if rank == 0:
        np.save(Path(folder) / "final.npy", flatten(module.module).numpy())
    dist.barrier()
    os._exit(0)  # not through gloo's own teardown, which sometimes aborts a process that is done


def test_distributed_data_parallel(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    spawn = multiprocessing.get_context("spawn")
    ranks = [spawn.Process(target=_ddp, args=(rank, port, str(tmp_path), 0.9)) for rank in range(WORKERS)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(timeout=90)
    assert [rank.exitcode for rank in ranks] == [0] * WORKERS
    _close(_simulated(0.9), torch.from_numpy(np.load(tmp_path / "final.npy")))
