"""Local SGD: everybody steps alone and the models are averaged every ``period`` steps.

    x_i <- x_i - step of the optimiser at g_i;   if (k + 1) mod period = 0:  x_i <- (1/n) sum_j x_j

Steps are counted from the end of the warm-up, in which the models are averaged at every step. Bytes per step
and worker: those of an all-reduce over the period. Waits for: everybody, once a period, so that a
straggler's jitter averages out inside a period.

Source: Stich, ICLR 2019; CPSGD (constant period) in Jiang and Agrawal, arXiv 2007.06134, whose FULLSGD is
``all_reduce``.
"""

from __future__ import annotations

from pydantic import Field

from ..config.settings import Settings
from ..program.encoding import Compression
from ..program.worker import Worker
from .momentum import Momentum, average_of_changes, pack
from .wire import Wire


class LocalSgdOptions(Settings):
    """Options of ``local_sgd``."""

    period: int = Field(ge=1, description="steps between two averagings")
    warmup: int = Field(default=0, ge=0, description="first steps, in which models are averaged every time")
    momentum: Momentum = "local"
    compression: Compression | None = Field(
        default=None, description="what changes since the last average become for their way"
    )


def check(options: LocalSgdOptions, workers: int) -> None:
    """Any number of workers will do."""


async def local_sgd(worker: Worker, options: LocalSgdOptions) -> None:
    """Local SGD with a constant period."""
    x = worker.start
    state = worker.optimizer.init(x)
    wire, last = Wire(worker, options.compression), pack(x, state, options.momentum)
    async for k in worker.steps():
        gradient = await worker.gradient(x)
        x, state = worker.optimizer.update(x, gradient, state)
        if k < options.warmup or (k + 1 - options.warmup) % options.period == 0:
            x, state, last = await average_of_changes(wire, k, x, state, options.momentum, last)
        await worker.publish(k, x)
