"""Local SGD with a constant period, an adaptive one, and after a synchronous start.

Local SGD: everybody steps alone and the models are averaged every ``period`` steps.

    x_i <- x_i - step of the optimiser at g_i;   if (k + 1) mod period = 0:  x_i <- (1/n) sum_j x_j

Steps are counted from the end of the warm-up, in which the models are averaged at every step. Bytes per step
and worker: those of an all-reduce over the period. Waits for: everybody, once a period, so that a
straggler's jitter averages out inside a period.

Source: Stich, ICLR 2019; CPSGD (constant period) in Jiang and Agrawal, arXiv 2007.06134, whose FULLSGD is
``all_reduce``.

Local SGD with an adaptive period: average often where the models drift apart fast, seldom later.

After every window of p local steps

    S = (1/n) sum_i |mean - x_i|^2          the variance of the models, just before they are averaged
    x_i <- mean
    while calibrating:  C <- the running mean of S / lr
    afterwards:         p <- p + 1  if S < 0.7 lr C,     p <- p - 1  if S > 1.3 lr C  (never below 1)

so that the variance stays in proportion to the learning rate: a drop of the learning rate lets the period
grow. Bytes per step and worker: those of an all-reduce over the period, and one scalar to everybody. Waits
for: everybody, once a period. Where nothing is trained the period stays as it is.

Source: ADPSGD in Jiang and Agrawal, arXiv 2007.06134 (not the asynchronous ``ad_psgd``). That S / lr is
controlled is in the paper's text; the factors 0.7 and 1.3 and the initial period of 4 are quoted from memory.

Post-local SGD: synchronous SGD first, local SGD from a certain step on.

    k < switch_at:  x <- x - step of the optimiser at (1/n) sum_i g_i
    then:           x_i <- x_i - step of the optimiser at g_i;
                    if (k + 1 - switch_at) mod period = 0:  x_i <- (1/n) sum_j x_j

The workers' buffers are equal when they part. Bytes per step and worker: those of an all-reduce at each of
the first steps, over the period afterwards. Waits for: everybody, at each of the first steps, then once a
period.

Source: Lin et al., ICLR 2020 (arXiv 1808.07217).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import torch
from pydantic import Field

from ..config.settings import Settings
from ..errors import InputError
from ..program.encoding import Compression
from ..program.worker import Worker
from .compressed import CompressedAllReduce, Momentum, all_average, average_of_changes, pack


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
    """Local SGD: everybody steps alone and the models are averaged every ``period`` steps."""
    x = worker.start
    state = worker.optimizer.init(x)
    wire, last = CompressedAllReduce(worker, options.compression), pack(x, state, options.momentum)
    async for k in worker.steps():
        gradient = await worker.gradient(x)
        x, state = worker.optimizer.update(x, gradient, state)
        if k < options.warmup or (k + 1 - options.warmup) % options.period == 0:
            x, state, last = await average_of_changes(wire, k, x, state, options.momentum, last)
        await worker.publish(k, x)


_SHORT: Final = 0.7
_LONG: Final = 1.3
"""The period stays while S / (lr C) is between these."""


class AdaptiveLocalSgdOptions(Settings):
    """Options of ``adaptive_local_sgd``."""

    initial_period: int = Field(default=4, ge=1, description="steps between two averagings, to begin with")
    calibration: int = Field(
        default=100, ge=1, description="steps after the warm-up in which the period stays and C is measured"
    )
    warmup: int = Field(default=0, ge=0, description="first steps, in which models are averaged every time")
    momentum: Momentum = "local"


@dataclass(frozen=True)
class Period:
    """The controller; the same on every worker, since what it is told is.

    Attributes:
        steps: the period p.
        ratio: mean of S / lr while calibrating, C.
        samples: how many averagings that is a mean of.
    """

    steps: int
    ratio: float = 0.0
    samples: int = 0

    def calibrated(self, variance: float, lr: float) -> Period:
        """After an averaging that calibrates: the same period."""
        samples = self.samples + 1
        return replace(self, ratio=self.ratio + (variance / lr - self.ratio) / samples, samples=samples)

    def adapted(self, variance: float, lr: float) -> Period:
        """After any other averaging."""
        if variance < _SHORT * lr * self.ratio:
            return replace(self, steps=self.steps + 1)
        if variance > _LONG * lr * self.ratio:
            return replace(self, steps=max(1, self.steps - 1))
        return self


def check_adaptive(options: AdaptiveLocalSgdOptions, workers: int) -> None:
    """Raise ``InputError`` where calibration sees no averaging, or one worker has nobody to differ from."""
    if options.calibration < options.initial_period:
        raise InputError(
            f"calibration of {options.calibration} steps sees no averaging at a period of"
            f" {options.initial_period}: use at least {options.initial_period}"
        )
    if workers < 2:
        raise InputError("one worker's model has no variance: use at least 2 workers, or local_sgd")


async def adaptive_local_sgd(worker: Worker, options: AdaptiveLocalSgdOptions) -> None:
    """Local SGD with an adaptive period: average often where the models drift apart fast, seldom later."""
    x = worker.start
    state = worker.optimizer.init(x)
    period, since = Period(options.initial_period), 0
    calibrated_at = options.warmup + options.calibration
    async for k in worker.steps():
        gradient = await worker.gradient(x)
        x, state = worker.optimizer.update(x, gradient, state)
        since += 1
        if k < options.warmup or since == period.steps:
            before = x
            x, state = await all_average(worker, x, state, options.momentum)
            since = 0
            if k >= options.warmup:
                variance = await _variance(worker, before, x)
                learn = period.calibrated if k < calibrated_at else period.adapted
                period = learn(variance, worker.optimizer.lr_at(k))
        await worker.publish(k, x, period=period.steps)


async def _variance(worker: Worker, before: torch.Tensor, mean: torch.Tensor) -> float:
    """S, from everybody's squared distance [..., 1] to the mean: replicated, added up in rank order."""
    squared = (before - mean).double().square().sum(dim=-1, keepdim=True).to(before.dtype)
    return float((await worker.all_gather(squared)).double().mean())


class PostLocalSgdOptions(Settings):
    """Options of ``post_local_sgd``."""

    switch_at: int = Field(ge=1, description="first steps, in which gradients are averaged every time")
    period: int = Field(ge=2, description="steps between two averagings of the models afterwards")
    momentum: Momentum = "local"


def check_post(options: PostLocalSgdOptions, workers: int) -> None:
    """Any number of workers will do."""


async def post_local_sgd(worker: Worker, options: PostLocalSgdOptions) -> None:
    """Post-local SGD: synchronous SGD first, local SGD from a certain step on."""
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
