"""Schemes as users write them, right and wrong."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from paceline import Program, Scheme, Settings, ops, topology_plan
from paceline.sim.schemes import local_sgd

if TYPE_CHECKING:
    from paceline import Worker


async def lazy(worker: Worker, period: int = 3, rates: list[float] = []) -> None:  # noqa: B006
    """Local SGD, written again."""
    x = worker.start
    state = worker.optimizer.init(x)
    async for k in worker.steps():
        gradient = await worker.gradient(x)
        x, state = worker.optimizer.update(x, gradient, state)
        if (k + 1) % period == 0:
            x = await worker.all_reduce(x)
        await worker.publish(k, x)


async def own_words(
    worker: Worker,
    every: int = 5,
    quorum: int = 3,
    deadline: float = 2.0,
    asynchronous: bool = True,
    inside: str = "loop",
    first_bucket: int = 7,
    log_period: int = 997,
    global_period: int = 12,
    participation: str = "few",
) -> None:
    """Local SGD, with names of options that mean something else in the schemes of the registry."""
    await lazy(worker, period=every)


async def pairs(worker: Worker) -> None:
    """Everybody swaps models with the next rank of its pair."""
    x = worker.start
    peer = worker.rank ^ 1
    state = worker.optimizer.init(x)
    async for k in worker.steps():
        x, state = worker.optimizer.update(x, await worker.gradient(x), state)
        heard = await worker.begin(ops.Receive(peer, like=x))
        await worker.send(peer, x)
        x = 0.5 * (x + (await worker.wait(heard)).value)
        await worker.publish(k, x)


async def by_layer(worker: Worker) -> None:
    """All-reduce, layer by layer."""
    async for k in worker.steps():
        computing = await worker.begin(ops.Gradient(worker.start))
        async for segment in worker.segments(computing):
            await worker.all_reduce(segment.value)
        await worker.publish(k, worker.start)


def with_a_service(worker: Worker) -> Program:
    return Program(lazy(worker), services=(_idle(worker),))


async def _idle(worker: Worker) -> None:
    await worker.receive(ops.ANY, like=worker.start)


def check(options: Settings, workers: int) -> None:
    """Anything will do."""


REGISTERED = Scheme("mine", local_sgd.local_sgd, local_sgd.LocalSgdOptions, True, check)


# --- wrong ------------------------------------------------------------------------------------------


async def stumbles(worker: Worker) -> None:
    x = worker.start
    async for k in worker.steps():
        if k == 2:
            raise ValueError("no such thing")
        await worker.publish(k, x)


async def in_place(worker: Worker) -> None:
    x = worker.start
    async for k in worker.steps():
        await worker.publish(k, x.add_(1))


def not_async(worker: Worker) -> Any:
    return worker.start


async def takes_nothing() -> None:
    pass


NOT_A_SCHEME = 5


async def numbered(worker: Worker) -> None:
    """Trains alone, and notes a number of its own at each step."""
    x = worker.start
    async for k in worker.steps():
        x = x - 0.1 * await worker.gradient(x)
        await worker.publish(k, x, number=float(10 * k + worker.rank))


async def on_processes_only(worker: Worker) -> None:
    """Differs on real processes, from the seventh step on."""
    ring = topology_plan("ring", worker.size).at(0)
    async for k in worker.steps():
        await worker.mix(ring, worker.start)
        await worker.publish(k, worker.start * (k > 5 and "GLOO_SOCKET_IFNAME" in os.environ))
