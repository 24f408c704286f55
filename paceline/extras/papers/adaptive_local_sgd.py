"""Local SGD with an adaptive period: workers step alone, and average when their models drift apart.

    x_i <- x_i - step of the optimiser at g_i;   at the end of a period:  x_i <- (1/n) sum_j x_j

Bytes per step and worker: an all-reduce's over the period. Waits for: all workers, once a period. A
straggler's jitter averages out inside a period.

``adaptive_local_sgd``: averages often while models drift apart fast, seldom later. After every window of p
local steps

    S = (1/n) sum_i |mean - x_i|^2          variance of the models just before they are averaged
    x_i <- mean
    while calibrating:  C <- the running mean of S / lr
    afterwards:         p <- p + 1  if S < 0.7 lr C,     p <- p - 1  if S > 1.3 lr C  (never below 1)

so the variance stays in proportion to the learning rate, and the period grows when the learning rate drops.
Where nothing is trained the period is constant.
Source: ADPSGD in Jiang and Agrawal, arXiv 2007.06134 (not the asynchronous ``ad_psgd``). That S / lr is
controlled is in the paper's text; the factors 0.7 and 1.3 and the initial period of 4 are quoted from memory.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from typing import Final

import torch
from pydantic import Field

from paceline.sim.config.settings import Settings
from paceline.sim.errors import InputError
from paceline.sim.program.worker import Worker
from paceline.sim.schemes.common.compressed import RoundTime
from paceline.sim.schemes.common.exchange import ModelExchange, Momentum, averages_in_flight
from paceline.sim.schemes.common.held import Held
from paceline.sim.schemes.local_sgd import without_warmup
from paceline.sim.schemes.scheme import Scheme, publishes_averages


class AdaptiveLocalSgdOptions(Settings):
    """Options of ``adaptive_local_sgd``."""

    initial_period: int = Field(default=4, ge=1, description="initial steps between two averages")
    calibration: int = Field(
        default=100, ge=1, description="steps after the warm-up with a constant period, to measure C"
    )
    warmup: int = Field(default=0, ge=0, description="first steps, with an average at every step")
    momentum: Momentum = "local"
    round: RoundTime = 0.0


_LEAST_DRIFT: Final = 0.7
_MOST_DRIFT: Final = 1.3
"""The period stays as it is while S / (lr C) lies between these."""


@dataclass(frozen=True)
class Period:
    """Controller of the period; equal on every worker, since all see the same variances.

    Attributes:
        steps: the period p.
        ratio: mean of S / lr while calibrating, C.
        samples: number of averagings in that mean.
    """

    steps: int
    ratio: float = 0.0
    samples: int = 0

    def calibrated(self, variance: float, lr: float) -> Period:
        """The controller after a calibrating averaging: C is updated, the period stays."""
        samples = self.samples + 1
        return replace(self, ratio=self.ratio + (variance / lr - self.ratio) / samples, samples=samples)

    def adapted(self, variance: float, lr: float) -> Period:
        """The controller after an averaging past calibration."""
        if variance < _LEAST_DRIFT * lr * self.ratio:
            return replace(self, steps=self.steps + 1)
        if variance > _MOST_DRIFT * lr * self.ratio:
            return replace(self, steps=max(1, self.steps - 1))
        return self


def check_adaptive(options: AdaptiveLocalSgdOptions, workers: int) -> None:
    """Raise ``InputError`` where calibration sees no averaging, or there is one worker only."""
    if options.calibration < options.initial_period:
        raise InputError(
            f"calibration of {options.calibration} steps sees no averaging at a period of"
            f" {options.initial_period}: use at least {options.initial_period}"
        )
    if workers < 2:
        raise InputError("one worker's model has no variance: use at least 2 workers, or local_sgd")


async def adaptive_local_sgd(worker: Worker, options: AdaptiveLocalSgdOptions) -> None:
    """Local SGD with an adaptive period: average often where the models drift apart fast, seldom later.

    Bytes per step and worker: over the period an all-reduce's, and 4 bytes to all. Waits for: all workers,
    once a period.
    """
    exchange = ModelExchange(worker, None, options.momentum)
    x, state, controller, since = worker.kept or (*worker.fresh(), (options.initial_period,), 0)
    period = Period(*controller)
    calibrated_at = options.warmup + options.calibration
    async for k in worker.steps():
        gradient = await worker.gradient(x)
        x, state = worker.optimizer.update(x, gradient, state)
        since += 1
        averages = k < options.warmup or since == period.steps
        if averages:
            before = x
            x, state = await exchange.mix(k, x, state, None)
            await worker.spend(options.round)
            since = 0
            if k >= options.warmup:
                variance = await _variance(worker, before, x)
                following = period.calibrated if k < calibrated_at else period.adapted
                period = following(variance, worker.optimizer.lr_at(k))
        averaged, controller = x if averages else None, astuple(period)
        kept = x, state, controller, since
        await worker.publish(k, x, averaged=averaged, kept=kept, period=period.steps)
        del averaged, kept


async def _variance(worker: Worker, before: torch.Tensor, mean: torch.Tensor) -> float:
    """S from all workers' squared distances [..., 1] to the mean: replicated, summed in rank order."""
    squared = (before - mean).double().square().sum(dim=-1, keepdim=True).to(before.dtype)
    return float((await worker.all_gather(squared)).double().mean())


ADAPTIVE_LOCAL_SGD: Final = Scheme(
    "adaptive_local_sgd", adaptive_local_sgd, AdaptiveLocalSgdOptions, True, check_adaptive,
    publishes=publishes_averages,
    cycle=lambda options, workers: options.initial_period, long_run=without_warmup,
    # The arriving average, and the model before it, whose distance is measured.
    held=lambda options, sizes: Held(
        optimizer=sizes.moments, anchors=1, in_flight=averages_in_flight(options.momentum, None, sizes)
    ),
    shrinks=lambda options: True, weighs=lambda options: "models",
)  # fmt: skip
