"""Synchronous SGD: average the gradients of all workers at every step.

    x(k+1) = x(k) - step of the optimiser at (1/n) sum_i grad F_i(x(k))

The same update as one process with the n-fold batch. Bytes per step and worker: 2 (n-1)/n x model
with a ring. Waits for: everybody. With ``overlap`` each segment of the gradient (a layer) is
all-reduced while the backward pass goes on, which is the idea of DistributedDataParallel's buckets.

Source: Das et al., arXiv 1602.06709.
"""

from __future__ import annotations

import torch
from pydantic import Field

from sim import operations as ops
from sim.settings import Settings
from sim.worker import Worker


class AllReduceOptions(Settings):
    """Options of ``all_reduce``."""

    overlap: bool = Field(default=False, description="all-reduce each layer while the backward pass goes on")


def check(options: AllReduceOptions, workers: int) -> None:
    """Any number of workers will do."""


async def all_reduce(worker: Worker, options: AllReduceOptions) -> None:
    """Synchronous SGD."""
    x = worker.start
    state = worker.optimizer.init(x)
    average = _overlapped if options.overlap else _at_once
    async for k in worker.steps():
        gradient = await average(worker, x)
        x, state = worker.optimizer.update(x, gradient, state)
        await worker.publish(k, x)


async def _at_once(worker: Worker, x: torch.Tensor) -> torch.Tensor:
    return await worker.all_reduce(await worker.gradient(x))


async def _overlapped(worker: Worker, x: torch.Tensor) -> torch.Tensor:
    backward = await worker.begin(ops.Gradient(x))
    started = [
        (segment.start, await worker.begin(ops.AllReduce(segment.value)))
        async for segment in worker.segments(backward)
    ]
    parts = [(start, await worker.wait(handle)) for start, handle in started]
    return torch.cat([part for _, part in sorted(parts, key=lambda p: p[0])], dim=-1)
