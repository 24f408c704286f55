"""Deterministic problems on a line, in double precision, with a start for each worker: for closed forms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline.extras.papers import leader_sgd, parameter_server
from paceline.sim.drivers.job import Job
from paceline.sim.program.worker import Worker
from paceline.sim.training.gradients import TrainingProblem
from paceline.sim.training.optimizer import Sgd
from paceline.sim.workloads.partition import Batches, Partition, shards
from paceline.sim.workloads.workload import Workload
from tests.support.factory import make_job


def line_job(
    patch: pytest.MonkeyPatch,
    scheme: str,
    options: dict[str, Any],
    loss: Callable[[Tensor], Tensor],
    starts: Sequence[float],
    *,
    lr: float,
    **job: Any,
) -> Job:
    """A scheme on ``loss`` of a single number, the same for all workers; they start at ``starts``.

    An elastic centre starts at 0.
    """

    def scattered(worker: Worker, spread: float) -> Tensor:
        rows = torch.tensor([[starts[rank]] for rank in worker.ranks], dtype=torch.float64)
        return rows if worker.vectorised else rows[0]

    for module in (parameter_server, leader_sgd):
        patch.setattr(module, "scattered", scattered)
    made = make_job(scheme, options, task="quadratic", workers=len(starts), **job)
    workload = Workload(
        task="quadratic",
        start=torch.zeros(1, dtype=torch.float64),
        loss=lambda x, inputs, targets: loss(x).sum(),
        inputs=torch.zeros(len(starts), 1),
        targets=torch.zeros(len(starts)),
        labels=None,
        segments=(("x", 0, 1),),
        score=lambda x: {"train_loss": loss(x).item(), "suboptimality": 0.0, "distance_to_optimum": 0.0},
    )
    parts = shards(Partition(), len(starts), None, len(starts), made.seed)
    problem = TrainingProblem(workload, Batches(parts, 1, made.seed), "looped")
    return replace(made, problem=problem, start=workload.start, optimizer=Sgd(lr))


def bowl(curvature: float) -> Callable[[Tensor], Tensor]:
    """f(x) = h x^2 / 2."""
    return lambda x: 0.5 * curvature * x.square()


def double_well(x: Tensor) -> Tensor:
    """f(x) = (x^2 - 1)^2 / 4, with minima at -1 and 1, and a maximum at 0 between them."""
    return (x.square() - 1).square() / 4
