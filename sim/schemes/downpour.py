"""DOWNPOUR: workers push the sum of their updates to a centre, and go on from what it has become.

Every ``period`` steps of a worker, with u_i its updates since its last visit:

    c <- c + u_i,   x_i <- c,   u_i <- 0

so that n workers at the same time move the centre n times as far as one: the learning rate has to be smaller.

Bytes per step and worker: one model out and one in over the period, but for the centre's own host. Waits
for: the centre's host alone.

Source: Dean et al., NeurIPS 2012, with equal periods for pushing and fetching and without Adagrad, as in
Zhang, Choromanska, LeCun, NeurIPS 2015 (arXiv 1412.6651), Algorithm 3.
"""

from __future__ import annotations

import torch
from pydantic import Field

from ..config.settings import Settings
from ..program.worker import Program, Worker
from .centre import Centre, Host, check_host

Tensor = torch.Tensor


class DownpourOptions(Settings):
    """Options of ``downpour``."""

    period: int = Field(ge=1, description="steps between two visits to the centre")
    host: Host = 0


def check(options: DownpourOptions, workers: int) -> None:
    """Raise ``InputError`` where there is no worker to host the centre."""
    check_host(options.host, workers)


def downpour(worker: Worker, options: DownpourOptions) -> Program:
    """DOWNPOUR SGD."""

    def meet(centre: Tensor, updates: Tensor) -> tuple[Tensor, Tensor]:
        return centre + updates, centre + updates

    centre = Centre(worker, options.host, meet)
    return Program(_steps(worker, options, centre), centre.services())


async def _steps(worker: Worker, options: DownpourOptions, centre: Centre) -> None:
    x = worker.start
    updates = torch.zeros_like(x)
    state = worker.optimizer.init(x)
    async for k in worker.steps():
        if k % options.period == 0:
            x = await centre.visit(updates)
            updates = torch.zeros_like(x)
        gradient = await worker.gradient(x)
        moved, state = worker.optimizer.update(x, gradient, state)
        updates = updates + (moved - x)
        x = moved
        await worker.publish(k, x, leader=centre.known)
