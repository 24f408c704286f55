"""Synchronous SGD under the cluster driver against torch's DistributedDataParallel, over gloo loopback.

4 processes, 0.3 million parameters, nothing padded. Blocks of steps of both take turns, and the median over
blocks of the ratio of their times is printed: at most 1.15 at once, and 1.1 with several buckets that overlap
with the backward pass. DistributedDataParallel uses gloo as torch sets it up, which carries two buckets at
once; a third line has it in a group like ours, which carries all of them.
"""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from paceline.realrun.driver.one_run import run_job
from paceline.realrun.group.group import Group
from paceline.realrun.transport.connections import connect
from paceline.sim.drivers.job import Job, JobLayers
from paceline.sim.training.gradients import TrainingProblem
from paceline.sim.workloads.supervised import supervised
from tests.support.cluster_pool import Pool, default_group
from tests.support.factory import make_job, make_problem

WORKERS, BLOCKS, STEPS, BATCH, LR = 4, 15, 40, 32, 0.01
BUCKET_BYTES = 256 * 1024


def _module() -> torch.nn.Sequential:
    """Six layers, 296,970 parameters."""
    torch.manual_seed(1)
    widths = [64, 256, 256, 256, 256, 256, 10]
    layers: list[torch.nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


@cache
def _problem() -> TrainingProblem:
    """That module on the digits."""
    digits = make_problem("digits-mlp", WORKERS, 1, "looped", BATCH)
    examples = (digits.workload.inputs, digits.workload.targets)
    workload = supervised("mlp", _module(), torch.nn.functional.cross_entropy, examples, None, ["train_loss"])
    return TrainingProblem(workload, digits.batches, "looped")


def _job(overlap: bool) -> Job:
    problem = _problem()
    options = {"overlap": True, "bucket": f"{BUCKET_BYTES} B"} if overlap else {}
    job = make_job(
        "all_reduce", options, workers=WORKERS, task="digits-mlp", lr=LR, compute_s=0.0,
        max_iterations=STEPS, every=STEPS, record_events=False,
    )  # fmt: skip
    start = problem.workload.start
    return replace(job, problem=problem, start=start, layers=JobLayers(problem.workload.segments))


def ours(group: Group, overlap: bool) -> float:
    """In a process of the pool: seconds of a block."""
    measured = run_job(group, _job(overlap))
    return measured.run.wall_clock_s if measured.run else 0.0


def _group_like_ours(group: Group) -> dist.ProcessGroup:
    store = PrefixStore("as many threads", group.store)
    group_like_ours = dist.ProcessGroup(store, group.rank, group.size)
    gloo = connect(store, "gloo", group.rank, group.size)
    group_like_ours._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)
    group_like_ours._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
    return group_like_ours


_models: dict[tuple[bool, bool], Any] = {}


def ddp(group: Group, overlap: bool, like_ours: bool) -> float:
    """In a process of the pool: seconds of a block."""
    if (overlap, like_ours) not in _models:
        default_group(group)
        module = torch.nn.parallel.DistributedDataParallel(
            _module(),
            bucket_cap_mb=BUCKET_BYTES / 2**20 if overlap else 25,
            process_group=_group_like_ours(group) if like_ours else None,
        )
        _models[overlap, like_ours] = (module, torch.optim.SGD(module.parameters(), lr=LR))
    module, optimizer = _models[overlap, like_ours]
    problem = _problem()
    dist.barrier()
    begin_s = time.monotonic()
    for step in range(STEPS):
        rows = torch.from_numpy(problem.batches.examples(group.rank, step))
        optimizer.zero_grad()
        outputs = module(problem.workload.inputs[rows])
        torch.nn.functional.cross_entropy(outputs, problem.workload.targets[rows]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return time.monotonic() - begin_s


def main() -> None:
    """Measure, and print a line for each way."""
    pool = Pool(WORKERS)
    for name, overlap, like_ours, bar in (
        ("at once", False, False, "bar: 1.15"),
        ("several buckets, overlapped", True, False, "bar: 1.1"),
        ("as many threads for both", True, True, "no bar"),
    ):
        ratios, mine, theirs = [], [], []
        for block in range(BLOCKS + 1):
            own_s = max(pool.ask(ours, overlap=overlap))
            other_s = max(pool.ask(ddp, overlap=overlap, like_ours=like_ours))
            if block:  # the first one warms up
                ratios.append(own_s / other_s)
                mine.append(1e3 * own_s / STEPS)
                theirs.append(1e3 * other_s / STEPS)
        sys.stdout.write(
            f"{name:>28}: {statistics.median(mine):.2f} ms a "
            f"step, DDP {statistics.median(theirs):.2f} ms; median ratio {statistics.median(ratios):.2f} "
            f"({min(ratios):.2f} to {max(ratios):.2f}; {bar})\n"
        )
    pool.close()


if __name__ == "__main__":
    main()
