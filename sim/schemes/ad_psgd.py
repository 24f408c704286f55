"""Asynchronous decentralised SGD: no worker waits for a straggler.

The topology is two-coloured: its edges join an active worker to a passive one, so that no cycle of waiting
can form. Worker 0 is active. At each of its steps an active worker a begins its gradient g_a at x_a, swaps
models meanwhile with one random passive neighbour p, and applies g_a to the model that it then has:

    x_a, x_p <- (x_a + x_p) / 2;   x_a <- x_a - step of the optimiser at g_a

A passive worker steps alone while a service on its host answers swaps. The metric ``staleness`` counts the
swaps of a worker's model between the read at which a gradient was computed and its application. Bytes per
step and worker: one model out and one in per active step. Waits for: the passive host's service only.

Source: Lian et al., ICML 2018 (AD-PSGD), Algorithm 1 and its bipartite communication.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from pydantic import Field
from torch import Tensor

from .. import topology
from ..config.settings import Settings
from ..errors import InputError
from ..program import operations as ops
from ..program.worker import Program, Worker
from ..topology import TopologyEntry
from .common.held import REPLACED, Held
from .scheme import Scheme, publishes_none


class AdPsgdOptions(Settings):
    """Options of ``ad_psgd``."""

    topology: TopologyEntry | None = Field(
        default=None,
        description="topology of swaps, two-colourable (default: ring; path for an odd number of workers)",
    )


@dataclass
class _Host:
    """Model [d] and number of averagings of one worker; its coroutines switch only at ``await``."""

    x: Tensor
    swaps: int = 0

    def average_with(self, other: Tensor) -> None:
        self.x = 0.5 * (self.x + other)
        self.swaps += 1


@lru_cache(maxsize=64)
def passive_neighbours(
    entry: TopologyEntry, workers: int, seed: int = 0
) -> tuple[tuple[int, ...] | None, ...]:
    """The neighbours, all passive, of every active rank; None for passive ranks.

    Raises ``InputError`` for a directed, time-varying, weighted or not two-colourable topology.
    """
    name = entry.name
    plan = topology.plan(entry, workers, seed=seed)
    if plan.period != 1:
        raise InputError(f"ad_psgd needs one graph for all steps, {name} changes: {_choice(workers)}")
    if plan.weights == topology.GIVEN:
        raise InputError(
            f"ad_psgd averages pairs half and half, but {name} has its own weights: leave them out"
        )
    if not plan.undirected:
        raise InputError(f"ad_psgd needs an undirected topology, {name} is directed: {_choice(workers)}")
    rows = plan.at(0).sources
    colour, reached = {0: 0}, [0]
    for rank in reached:
        new = [other for other in rows[rank] if other not in colour]
        colour |= dict.fromkeys(new, 1 - colour[rank])
        reached += new
    for rank, row in enumerate(rows):
        for other in row:
            if colour[rank] == colour[other]:
                raise InputError(
                    f"ad_psgd needs two kinds of workers, active and passive, that every edge joins; in "
                    f"topology {name} workers {rank} and {other} would be of one kind, since a cycle of odd "
                    f"length goes through them: {_choice(workers)}"
                )
    return tuple(row if colour[rank] == 0 else None for rank, row in enumerate(rows))


def topology_for(options: AdPsgdOptions, workers: int) -> TopologyEntry:
    """The topology of the options, else a two-colourable one for this number of workers."""
    return options.topology or TopologyEntry.of("ring" if workers % 2 == 0 else "path")


def _choice(workers: int) -> str:
    return "use ring" if workers % 2 == 0 else f"use path, or ring with {workers + 1} workers"


def check(options: AdPsgdOptions, workers: int) -> None:
    """Raise ``InputError`` where active and passive workers cannot be told apart."""
    passive_neighbours(topology_for(options, workers), workers)


def ad_psgd(worker: Worker, options: AdPsgdOptions) -> Program:
    """Asynchronous decentralised SGD: no worker waits for a straggler."""
    host = _Host(worker.start)
    topology_entry = topology_for(options, worker.size)
    neighbours = passive_neighbours(topology_entry, worker.size, worker.seed)[worker.rank]
    if neighbours is not None:
        return Program(_active(worker, host, neighbours))
    return Program(_passive(worker, host), services=(_answer(worker, host),))


async def _active(worker: Worker, host: _Host, neighbours: tuple[int, ...]) -> None:
    state = worker.optimizer.init(host.x)
    async for k in worker.steps():
        read = host.swaps
        computation = await worker.begin(ops.Gradient(host.x))
        peer = neighbours[worker.draw("peer", k, len(neighbours))]
        answer = await worker.begin(ops.Receive(peer, like=host.x, tag="answer"))
        await worker.send(peer, host.x, tag="offer")
        message: ops.Message = await worker.wait(answer)
        host.average_with(message.value)
        gradient = await worker.wait(computation)
        host.x, state = worker.optimizer.update(host.x, gradient, state)
        await worker.publish(k, host.x, staleness=host.swaps - read)


async def _passive(worker: Worker, host: _Host) -> None:
    state = worker.optimizer.init(host.x)
    async for k in worker.steps():
        read = host.swaps
        gradient = await worker.gradient(host.x)
        host.x, state = worker.optimizer.update(host.x, gradient, state)
        await worker.publish(k, host.x, staleness=host.swaps - read)


async def _answer(worker: Worker, host: _Host) -> None:
    while True:
        offer = await worker.receive(ops.ANY, like=host.x, tag="offer")
        mine = host.x
        host.average_with(offer.value)
        await worker.send(offer.source, mine, tag="answer")


AD_PSGD: Final = Scheme(
    "ad_psgd", ad_psgd, AdPsgdOptions, False, check, publishes=publishes_none,
    draws=lambda options: True,
    # The gradient's point; an offer and its answer, and the last ones.
    held=lambda options, sizes: Held(optimizer=sizes.moments, anchors=1, in_flight=2 * (1 + REPLACED)),
)  # fmt: skip
