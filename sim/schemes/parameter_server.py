"""Elastic averaging: workers are held to a centre as if by springs, and the centre to their mean.

Every ``period`` steps, with alpha = pull / n, and whether or not there is an exchange a gradient at the
model from before it:

    x_i <- x_i - alpha (x_i - c)  [- lr g(x_i), both at the old x_i]
    c   <- c + alpha (x_i - c)    for one visitor (asynchronous)
    c   <- c + pull (mean of x - c)    for all at once (synchronous)

EAMSGD has Nesterov's momentum in the local step: v <- m v - lr g(x + m v), x <- x + v.

Bytes per step and worker, over the period: synchronous 2 (n-1)/n models with a ring (every worker keeps a
copy of the centre, and the mean is an all-reduce: as many bytes as a reduce and a broadcast), asynchronous
one model out and one in, but for the centre's own host. Waits for: everybody, or the centre's host alone.

Source: Zhang, Choromanska, LeCun, NeurIPS 2015 (arXiv 1412.6651), equations 5 and 6 and Algorithms 1 and 2.
"""

from __future__ import annotations

from typing import Protocol

import torch
from pydantic import Field

from ..config.settings import Settings
from ..program.worker import Program, Worker
from .centre import Centre, Host, check_host
from .starts import Spread, scattered

Tensor = torch.Tensor


class EasgdOptions(Settings):
    """Options of ``easgd``."""

    period: int = Field(ge=1, description="steps between two exchanges with the centre")
    pull: float = Field(
        default=0.9, gt=0, le=1, description="moving rate beta of the centre; a worker's is beta / workers"
    )
    asynchronous: bool = Field(default=False, description="workers visit the centre one by one")
    host: Host = 0
    spread: Spread = 0.0


class EamsgdOptions(EasgdOptions):
    """Options of ``eamsgd``."""

    momentum: float = Field(default=0.9, ge=0, lt=1, description="Nesterov momentum of the local steps")


def check(options: EasgdOptions, workers: int) -> None:
    """Raise ``InputError`` where there is no worker to host the centre."""
    check_host(options.host, workers)


def easgd(worker: Worker, options: EasgdOptions) -> Program:
    """Elastic averaging SGD."""
    return _program(worker, options, 0.0)


def eamsgd(worker: Worker, options: EamsgdOptions) -> Program:
    """Elastic averaging SGD with momentum."""
    return _program(worker, options, options.momentum)


def _program(worker: Worker, options: EasgdOptions, momentum: float) -> Program:
    if not options.asynchronous:
        return Program(_steps(worker, options, _Copy(worker, options.pull), momentum))
    alpha = options.pull / worker.size

    def meet(centre: Tensor, visitor: Tensor) -> tuple[Tensor, Tensor]:
        difference = alpha * (visitor - centre)
        return centre + difference, difference

    centre = Centre(worker, options.host, meet)
    return Program(_steps(worker, options, centre, momentum), centre.services())


async def _steps(worker: Worker, options: EasgdOptions, centre: _Elastic, momentum: float) -> None:
    x = scattered(worker, options.spread)
    velocity = torch.zeros_like(x)
    state = worker.optimizer.init(x)
    async for k in worker.steps():
        ahead = x + momentum * velocity
        if k % options.period == 0:
            x = x - await centre.visit(x)
        gradient = await worker.gradient(ahead)
        moved, state = worker.optimizer.update(ahead, gradient, state)
        velocity = momentum * velocity + (moved - ahead)
        x = x + velocity
        await worker.publish(k, x, leader=centre.known)


class _Elastic(Protocol):
    """The centre: visiting it gives the elastic difference alpha (x - c)."""

    @property
    def known(self) -> Tensor | None: ...

    async def visit(self, value: Tensor) -> Tensor: ...


class _Copy:
    """Every worker's own copy of the centre, which all move alike."""

    def __init__(self, worker: Worker, pull: float) -> None:
        self._worker = worker
        self._pull = pull
        self._value = worker.start

    @property
    def known(self) -> Tensor:
        """The centre [..., d]."""
        return self._value

    async def visit(self, value: Tensor) -> Tensor:
        """Move the centre towards the mean of everybody's ``value``; returns this worker's difference."""
        mean = await self._worker.all_reduce(value)
        difference = (self._pull / self._worker.size) * (value - self._value)
        self._value = self._value + self._pull * (mean - self._value)
        return difference
