"""Federated averaging: in each round some workers train alone, and their models are averaged.

In round r, of ``period`` steps, the participants S(r) are drawn at random: a share ``participation`` of all
workers, at least one:

    x_i <- t,   x_i <- x_i - step of the optimiser at g_i   at every step, for i in S(r)
    t <- the mean over S(r) of x_i                          at the end of the round

The others compute nothing and wait for the end of the round; their steps count all the same. The optimiser
begins each round anew. All do the same steps: on batches of one size the mean has equal weights, on others
those of the examples, as the paper's. With all workers, and plain SGD, it is ``local_sgd``. With ``quorum``
or ``deadline`` a straggler's change is left out of the mean (``common/rounds.py``).

Bytes per step and worker: over the period those of an all-reduce among m = |S| workers, 2 (m-1)/n models,
and, unless m = n, of a broadcast of the mean to all, (n-1)/n models; ``compression`` encodes the first. Waits
for: the participants, once a round.

Source: McMahan, Moore, Ramage, Hampson, Arcas, AISTATS 2017 (arXiv 1602.05629), algorithm 1, whose server
sends the mean to the next round's workers alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from pydantic import Field

from paceline.sim import seeds
from paceline.sim.config.settings import Settings
from paceline.sim.program.encoding import Compression
from paceline.sim.program.worker import Program, Worker
from paceline.sim.schemes.common.compressed import (
    CompressedAllReduce,
    RoundTime,
    average_in_flight,
    encodes_averages,
)
from paceline.sim.schemes.common.held import Held, Sizes, in_rounds
from paceline.sim.schemes.common.rounds import Chosen, Deadline, Quorum, Rounds, check_quorum, leaves_out
from paceline.sim.schemes.scheme import Scheme, one_period, publishes_averages


class FedavgOptions(Settings):
    """Options of ``fedavg``."""

    period: int = Field(ge=1, description="steps of a round")
    participation: float = Field(
        default=1.0, gt=0, le=1,
        description="share of workers per round, with equal weights",
    )  # fmt: skip
    compression: Compression | None = Field(
        default=None, description="encoding of changes in a round (default: none)"
    )
    round: RoundTime = 0.0
    quorum: Quorum = None
    deadline: Deadline = None


def check(options: FedavgOptions, workers: int) -> None:
    """Raise ``InputError`` where a quorum is out of reach, or does not go with ``compression``."""
    check_quorum(options, _number(options, workers), compression=options.compression is not None)


def _number(options: FedavgOptions, workers: int) -> int:
    return max(1, math.floor(options.participation * workers + 0.5))


def held(options: FedavgOptions, sizes: Sizes) -> Held:
    """Model, gradient and the round's first model; the change, the mean change, and its broadcast."""
    if leaves_out(options):
        return Held(optimizer=sizes.moments, anchors=1, in_flight=in_rounds(sizes))
    taking_part = replace(sizes, workers=_number(options, sizes.workers))
    in_flight = 2 + average_in_flight(options.compression, taking_part)
    return Held(optimizer=sizes.moments, anchors=1, in_flight=in_flight)


def fedavg(worker: Worker, options: FedavgOptions) -> Program:
    """Federated averaging: some workers train for a round of ``period`` steps, and count alike in a mean."""
    if not leaves_out(options):
        return Program(_rounds_of_all(worker, options))
    number = _number(options, worker.size)

    def chosen(turn: int) -> Sequence[int]:
        return participants(worker.seed, turn, worker.size, number)

    rounds = Rounds(worker, options.quorum, options.deadline, worker.start, chosen)
    return Program(_rounds_in_time(worker, options, rounds, chosen), rounds.services())


async def _rounds_in_time(worker: Worker, options: FedavgOptions, rounds: Rounds, chosen: Chosen) -> None:
    x = common = worker.start
    state = worker.optimizer.init(x)
    in_time = takes_part = False
    async for k in worker.steps():
        turn, since = divmod(k, options.period)
        if since == 0:
            state, takes_part = worker.optimizer.init(x), worker.rank in chosen(turn)
        if takes_part:
            x, state, in_time = await rounds.step(x, state)
        if since == options.period - 1:
            if takes_part and in_time:
                await rounds.contribute(x - common)
            x = common = common + await rounds.average()
            await worker.spend(options.round)
        await rounds.publish(k, x)
    await rounds.leave()


async def _rounds_of_all(worker: Worker, options: FedavgOptions) -> None:
    x = common = worker.start
    state = worker.optimizer.init(x)
    average = CompressedAllReduce(worker, options.compression)
    number = _number(options, worker.size)
    chosen = tuple(range(worker.size))
    for_all = number == worker.size
    async for k in worker.steps():
        turn, since = divmod(k, options.period)
        if since == 0:
            state = worker.optimizer.init(x)
            chosen = chosen if for_all else participants(worker.seed, turn, worker.size, number)
        if for_all or worker.rank in chosen:
            gradient = await worker.gradient(x)
            x, state = worker.optimizer.update(x, gradient, state)
        ends = since == options.period - 1
        if ends:
            groups = None if for_all else (chosen, *((i,) for i in range(worker.size) if i not in chosen))
            own = average if for_all or worker.rank in chosen else replace(average)  # keeps the unsent part
            change = await own.all_reduce(worker.weighed(x - common), k, groups)
            x = common = common + (change if for_all else await worker.broadcast(change, chosen[0]))
            await worker.spend(options.round)
        await worker.publish(k, x, averaged=x if ends else None)


def participants(seed: int, turn: int, workers: int, number: int) -> tuple[int, ...]:
    """The ranks of round ``turn``: ``number`` of them, ascending, the same on all workers."""
    drawn = seeds.uniform_array(seed, seeds.SHARED, "participants", turn, (workers,), True)
    return tuple(sorted(int(rank) for rank in np.argsort(drawn, kind="stable")[:number]))


FEDAVG: Final = Scheme(
    "fedavg", fedavg, FedavgOptions, True, check, publishes=publishes_averages, cycle=one_period, held=held,
    depends_on_timing=leaves_out, encodes=encodes_averages,
    draws=lambda options: options.participation < 1,
    weighs=lambda options: "models" if options.participation == 1 else None,
)  # fmt: skip
