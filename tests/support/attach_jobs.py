"""Training loops of somebody else's, for the processes of a ``cluster_pool``."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from paceline.realrun.attach import attach as attaching
from paceline.realrun.attach.attach import Attached, attach
from paceline.realrun.driver.one_run import run_job
from paceline.realrun.group.group import Group
from paceline.sim.drivers.job import Job
from paceline.sim.errors import PacelineError
from paceline.sim.training.gradients import TrainingProblem
from paceline.sim.workloads.supervised import initial_weights
from tests.support import nccl_rules as nccl_rules  # its backend is known once it is imported
from tests.support.cluster_pool import default_group
from tests.support.factory import make_problem

TO_CONNECT_S = 30.0
"""For ranks of jobs in which one is to die later."""


def _model(seed: int) -> nn.Sequential:
    with initial_weights(seed):
        return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def _loss(model: nn.Module, problem: TrainingProblem, rows: Any) -> torch.Tensor:
    picked, device = torch.from_numpy(rows), next(model.parameters()).device
    inputs, targets = (
        each[picked].to(device) for each in (problem.workload.inputs, problem.workload.targets)
    )
    return nn.functional.cross_entropy(model(inputs), targets)


def _answer(model: nn.Module, worker: Attached | None, error: str) -> dict[str, Any]:
    run = worker.run if worker else None
    return {
        "final": torch.cat([_whole(p.detach()).reshape(-1) for p in model.parameters()]).tolist(),
        "worker": [worker.rank, worker.size] if worker else None,
        "error": error,
        "status": run.status if run else None,
        "label": run.label if run else None,
        "operations": sorted({event.operation for event in run.events}) if run else [],
    }


def _whole(value: torch.Tensor) -> torch.Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value


def _dies_at(operation: int, worker: int, timeout_s: float) -> None:
    """This process is to end when worker ``worker`` is its own and comes to that operation of its scheme.

    Others have ``timeout_s`` for their answers from the run on: on a busy machine to connect takes longer.
    """

    def dying(group: Group, job: Job, **options: Any) -> Any:
        group.life.patience_s = timeout_s
        return run_job(group, job, **options | {"timeout_s": timeout_s, "faults": {worker: operation}})

    vars(attaching)["run_job"] = dying


def train(
    group: Group,
    scheme: Any,
    steps: int,
    loops: int,
    adam: bool = False,
    seed: int = 1,
    backend: str = "gloo",
    device: str = "cpu",
    records: str | None = None,
    timeout_s: float = 20.0,
    dies: int | None = None,
) -> dict[str, Any]:
    """The digits, for ``loops`` steps of the ``steps`` that are announced.

    ``dies``: number of the operation of its scheme at which rank 0 ends.
    """
    if dies is not None:
        _dies_at(dies, 0, timeout_s)
        timeout_s = TO_CONNECT_S
    default_group(group)
    model = _model(seed).to(device)
    problem = make_problem("digits-mlp", group.size, seed, "looped", 32)
    optimizer: torch.optim.Optimizer = (
        torch.optim.Adam(model.parameters(), 1e-3)
        if adam
        else torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    )
    error, worker = "", None
    try:
        with attach(
            model,
            optimizer,
            scheme,
            steps=steps,
            seed=seed,
            backend=backend,
            timeout_s=timeout_s,
            records=records,
        ) as worker:
            for k in range(loops):
                optimizer.zero_grad()
                loss = _loss(model, problem, problem.batches.examples(group.rank, k))
                loss.backward()  # type: ignore[no-untyped-call]
                worker.step(loss)
    except PacelineError as found:
        error = str(found)
    return _answer(model, worker, error)


def train_together(
    group: Group,
    scheme: Any,
    steps: int,
    loops: int,
    teams: list[list[int]],
    wrapper: str,
    batch_size: int,
    seed: int = 1,
    timeout_s: float = 20.0,
    dies: list[int] | None = None,
    records: str | None = None,
) -> dict[str, Any]:
    """The same with several ranks a worker: each takes its share of the worker's batch.

    ``dies``: a rank, and when it ends: at an operation of its scheme if it leads, else in a step of its loop.
    """
    leads = dies is not None and any(dies[0] == team[0] for team in teams)
    if dies is not None and leads:
        _dies_at(dies[1], [team[0] for team in sorted(teams)].index(dies[0]), timeout_s)
    default_group(group)
    inside = next(
        made for made in [dist.new_group(team) for team in teams] if isinstance(made, dist.ProcessGroup)
    )
    model: nn.Module = _model(seed)
    if wrapper == "ddp":
        model = DistributedDataParallel(model, process_group=inside)
    else:
        mesh = DeviceMesh.from_group(inside, "cpu")
        for layer in model.children():
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    problem = make_problem("digits-mlp", len(teams), seed, "looped", batch_size)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    error, worker = "", None
    try:
        with attach(
            model,
            optimizer,
            scheme,
            steps=steps,
            seed=seed,
            inside=inside,
            timeout_s=timeout_s,
            records=records,
        ) as worker:
            for k in range(loops):
                if dies == [group.rank, k] and not leads:
                    os._exit(1)
                rows = problem.batches.examples(worker.rank, k)
                optimizer.zero_grad()
                loss = _loss(model, problem, rows[inside.rank() :: inside.size()])
                loss.backward()  # type: ignore[no-untyped-call]
                with torch.no_grad():
                    _loss(model, problem, rows)  # an evaluation leaves parameters gathered
                worker.step(loss)
    except PacelineError as found:
        error = str(found)
    except RuntimeError as found:  # torch's own, in the backward pass
        error = f"torch: {found}"
    return _answer(model, worker, error)


def train_with_noise(
    group: Group, scheme: Any, steps: int, teams: list[list[int]], batch_size: int, calls_half: bool
) -> dict[str, Any]:
    """Noise in every second step: of teams joined by DDP, or of halves of a batch."""
    default_group(group)
    made = [dist.new_group(team) for team in teams if len(team) > 1]
    inside = next((each for each in made if isinstance(each, dist.ProcessGroup)), None)
    model: nn.Module = _model(1)
    if inside is not None:
        model = DistributedDataParallel(model, process_group=inside)
    problem = make_problem("digits-mlp", len(teams), 1, "looped", batch_size)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    error, worker = "", None
    try:
        with attach(
            model, optimizer, scheme, steps=steps, seed=1, inside=inside, gradient_noise=(2, batch_size)
        ) as worker:
            for k in range(steps):
                rows = problem.batches.examples(worker.rank, k)
                optimizer.zero_grad()
                if inside is not None:
                    loss = _loss(model, problem, rows[inside.rank() :: inside.size()])
                    loss.backward()  # type: ignore[no-untyped-call]
                else:
                    first, second = (_loss(model, problem, part) / 2 for part in (rows[::2], rows[1::2]))
                    first.backward()  # type: ignore[no-untyped-call]
                    if calls_half:
                        worker.half()
                    second.backward()  # type: ignore[no-untyped-call]
                    loss = first + second
                worker.step(loss)
    except PacelineError as found:
        error = str(found)
    run = worker.run if worker else None
    return {"error": error, "gradients": list(run.gradients) if run else None}


def joined_by_others(group: Group) -> list[str]:
    """In a process of a pool of four: groups that do not go together."""
    default_group(group)
    pair = dist.new_group([0, 1] if group.rank < 2 else [2, 3], use_local_synchronization=True)
    three = dist.new_group([0, 1, 2])
    found = []
    for model, inside, timeout_s in (
        (DistributedDataParallel(_model(1)), pair, TO_CONNECT_S),
        (DistributedDataParallel(_model(1), process_group=pair), None, TO_CONNECT_S),
        (_model(1), three if group.rank == 2 else pair, 2.0),
        (_model(1), three if group.rank == 3 else pair, 2.0),
    ):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        try:
            with attach(model, optimizer, "all_reduce", steps=1, inside=inside, timeout_s=timeout_s):
                pytest.fail("it was attached")
        except PacelineError as error:
            found.append(f"{type(error).__name__}: {error}")
    return found
