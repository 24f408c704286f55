"""The outer optimiser: SGD on the common model, along the mean change of the workers' local steps."""

from __future__ import annotations

from pydantic import Field

from ...config.settings import Settings
from ...program.worker import Optimizer, Worker
from ...training.optimizer import Sgd, WithBuffers


class OuterOptimizer(Settings):
    """SGD in the terms of ``torch.optim``; the gradient is the old common model minus the workers' mean."""

    lr: float = Field(default=0.7, gt=0, description="learning rate of the outer steps")
    momentum: float = Field(default=0.9, ge=0, lt=1, description="heavy-ball momentum of the outer steps")
    nesterov: bool = Field(default=True, description="Nesterov's form of that momentum, where there is any")


def outer_rule(settings: OuterOptimizer, buffers: int) -> Optimizer:
    """The outer optimiser of a part of the model; its last ``buffers`` elements become the workers' mean."""
    rule = Sgd(settings.lr, settings.momentum, settings.nesterov)
    return WithBuffers(rule, buffers) if buffers else rule


def buffers_in(worker: Worker, start: int, stop: int) -> int:
    """Number of running buffers, which no gradient moves, among elements [start, stop) of the model.

    They are the model's last elements (see ``Workload``), and so the last ones of that part.
    """
    optimizer = worker.optimizer
    buffers = optimizer.num_buffers if isinstance(optimizer, WithBuffers) else 0
    first = worker.start.shape[-1] - buffers
    return max(0, stop - max(start, first))
