"""Post-local SGD: synchronous SGD first, local SGD from a certain step on.

    k < switch_at:  x <- x - step of the optimiser at (1/n) sum_i g_i
    then:           x_i <- x_i - step of the optimiser at g_i;
                    if (k + 1 - switch_at) mod period = 0:  x_i <- (1/n) sum_j x_j

The workers' buffers are equal when they part. Bytes per step and worker: those of an all-reduce at each of
the first steps, over the period afterwards. Waits for: everybody, at each of the first steps, then once a
period.

Source: Lin et al., ICLR 2020 (arXiv 1808.07217).
"""

from __future__ import annotations

from pydantic import Field

from ..config.settings import Settings
from ..program.worker import Worker
from .momentum import Momentum, all_average


class PostLocalSgdOptions(Settings):
    """Options of ``post_local_sgd``."""

    switch_at: int = Field(ge=1, description="first steps, in which gradients are averaged every time")
    period: int = Field(ge=2, description="steps between two averagings of the models afterwards")
    momentum: Momentum = "local"


def check(options: PostLocalSgdOptions, workers: int) -> None:
    """Any number of workers will do."""


async def post_local_sgd(worker: Worker, options: PostLocalSgdOptions) -> None:
    """Synchronous SGD, then local SGD."""
    x = worker.start
    state = worker.optimizer.init(x)
    async for k in worker.steps():
        gradient = await worker.gradient(x)
        if k < options.switch_at:
            gradient = await worker.all_reduce(gradient)
        x, state = worker.optimizer.update(x, gradient, state)
        if k >= options.switch_at and (k + 1 - options.switch_at) % options.period == 0:
            x, state = await all_average(worker, x, state, options.momentum)
        await worker.publish(k, x)
