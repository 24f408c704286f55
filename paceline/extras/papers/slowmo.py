"""SlowMo: local SGD, and a slow momentum on its averages.

With the common model t, its copies x_i, the learning rate lr of the first of the last ``period`` steps, slow
momentum b and slow learning rate a; every ``period`` steps:

    x_i <- x_i - step of the optimiser at g_i                            at every step
    u <- b u + (t - mean of x_i) / lr,   t <- t - a lr u,   x_i <- t     at the end of a period

Without slow momentum and with a = 1 it is ``local_sgd``. The buffers of the optimiser are kept (``momentum:
local``), or averaged with the models (``mixed``); the running buffers of batch norm become the mean.

Bytes per step and worker: those of an all-reduce over the period. Waits for: all workers, once a period.

Source: Wang, Tantia, Ballas, Rabbat, ICLR 2020 (arXiv 1910.00643), algorithm 1 with local SGD inside; their
*maintain* and *average* of buffers.
"""

from __future__ import annotations

from typing import Final

import torch
from pydantic import Field

from paceline.sim.config.settings import Settings
from paceline.sim.program.encoding import Compression
from paceline.sim.program.worker import Worker
from paceline.sim.schemes.common.compressed import RoundTime, encodes_averages
from paceline.sim.schemes.common.exchange import ModelExchange, Momentum, averages_in_flight
from paceline.sim.schemes.common.held import REPLACED, Held, Sizes
from paceline.sim.schemes.common.local_steps import LocalPeriod, period_steps, taken_steps
from paceline.sim.schemes.common.outer import buffers_in
from paceline.sim.schemes.scheme import Scheme, one_period, publishes_averages


class SlowmoOptions(Settings):
    """Options of ``slowmo``."""

    period: LocalPeriod = Field(default=48, description="steps between two averages")
    slow_lr: float = Field(default=1.0, gt=0, description="learning rate of the slow steps")
    slow_momentum: float = Field(default=0.5, ge=0, lt=1, description="momentum of the slow steps")
    momentum: Momentum = "local"
    round: RoundTime = 0.0
    compression: Compression | None = Field(
        default=None,
        description="encoding of changes since the last average (default: none, whole models are sent)",
    )


def held(options: SlowmoOptions, sizes: Sizes) -> Held:
    """Model, gradient, the common model and its slow momentum; the arriving average and the last one."""
    in_flight = averages_in_flight(options.momentum, options.compression, sizes)
    last = 0 if options.compression is None else sizes.message(options.momentum)[0]
    return Held(optimizer=sizes.moments, anchors=1 + last, outer_momentum=1, in_flight=in_flight + REPLACED)


async def slowmo(worker: Worker, options: SlowmoOptions) -> None:
    """SlowMo: local SGD, with a slow momentum on its averages every ``period`` steps."""
    x, state = worker.fresh()
    exchange = ModelExchange(worker, options.compression, options.momentum)
    length = x.shape[-1]
    moved = length - buffers_in(worker, 0, length)
    slow = torch.zeros_like(x[..., :moved])
    x, state, last, common, slow = worker.kept or (x, state, exchange.first_average(), x, slow)
    takes, period = taken_steps(worker, options), period_steps(options.period)
    async for k in worker.steps():
        if takes(k):
            gradient = await worker.gradient(x)
            x, state = worker.optimizer.update(x, gradient, state)
        averages = (k + 1) % period == 0
        if averages:
            x, state, last = await exchange.average_changes(k, x, state, last)
            lr = worker.optimizer.lr_at(k + 1 - period)
            change = (common - x)[..., :moved]
            slow = options.slow_momentum * slow + (change / lr if lr else torch.zeros_like(change))
            common = torch.cat([common[..., :moved] - options.slow_lr * lr * slow, x[..., moved:]], dim=-1)
            x = common
            if last is not None:
                last = torch.cat([common, last[..., length:]], dim=-1)
            await worker.spend(options.round)
        await worker.publish(k, x, averaged=x if averages else None, kept=(x, state, last, common, slow))


SLOWMO: Final = Scheme(
    "slowmo", slowmo, SlowmoOptions, True, publishes=publishes_averages, cycle=one_period, held=held,
    encodes=encodes_averages,
    shrinks=lambda options: True, weighs=lambda options: "models",
)  # fmt: skip
