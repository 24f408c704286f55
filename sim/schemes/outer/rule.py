"""The outer optimiser: SGD on the common model, along what the workers' own steps have changed on average."""

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
    """The rule of a part of the model, whose last ``buffers`` elements become the workers' mean."""
    rule = Sgd(settings.lr, settings.momentum, settings.nesterov)
    return WithBuffers(rule, buffers) if buffers else rule


def buffers_in(worker: Worker, start: int, stop: int) -> int:
    """How many elements in [start, stop) of the model are running buffers, which no gradient moves.

    They are the model's last elements (see ``Workload``), so they are the last ones of that part, too.
    """
    optimizer = worker.optimizer
    buffers = optimizer.num_buffers if isinstance(optimizer, WithBuffers) else 0
    first = worker.start.shape[-1] - buffers
    return max(0, stop - max(start, first))
