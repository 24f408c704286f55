"""When pattern operations, gradients and their segments complete."""

from __future__ import annotations

from dataclasses import replace

import torch

from paceline.sim import topology
from paceline.sim.program import operations as ops
from paceline.sim.program.encoding import Compression
from paceline.sim.program.worker import Worker
from paceline.sim.schemes.common.compressed import CompressedAllReduce
from tests.contract.case import ONE_APART, PAIRS, UNIT, Case, Log, X


async def _gradient_lasts(worker: Worker, log: Log) -> None:
    await log.at(worker)
    await worker.gradient(worker.start)
    await log.at(worker)


async def _evaluates_for_a_time(worker: Worker, log: Log) -> None:
    evaluating = replace(worker, evaluation_s=3 * UNIT, every=2)
    for k in range(4):
        await evaluating.publish(k, worker.start)
        await log.at(worker)


async def _mix_waits_for_neighbours_only(worker: Worker, log: Log) -> None:
    await worker.sleep(4 * worker.rank * UNIT)
    chain = topology.plan("ring", worker.size, "uniform").at(0)
    await worker.mix(chain, X)
    await log.at(worker)


async def _collectives_wait_for_all(worker: Worker, log: Log) -> None:
    await worker.sleep(worker.rank * UNIT)
    await worker.barrier()
    await log.at(worker)
    await worker.sleep((worker.rank + 1) * UNIT)
    await worker.all_reduce(X)
    await log.at(worker)
    await worker.sleep((worker.rank + 2) * UNIT)
    await worker.all_gather(X)
    await log.at(worker)


async def _a_broadcast_waits_for_nobody_below(worker: Worker, log: Log) -> None:
    await worker.sleep(4 * UNIT if worker.rank == 3 else worker.rank * UNIT)
    log.say(await worker.broadcast(X + worker.rank, 0))
    if worker.rank > 1:  # when a sender is done is no promise
        await log.at(worker)


async def _averages_less_than_one_number_each(worker: Worker, log: Log) -> None:
    await worker.sleep(worker.rank * UNIT)
    wire = CompressedAllReduce(worker, Compression(bf16=True))
    log.say(await wire.all_reduce(torch.full((1,), float(worker.rank)), 0))
    await log.at(worker)


async def _groups_wait_for_their_members_only(worker: Worker, log: Log) -> None:
    await worker.sleep(worker.rank * UNIT)
    await worker.barrier(PAIRS)
    await log.at(worker)
    await worker.all_reduce(X, PAIRS)
    await log.at(worker)
    if worker.rank == 3:
        await worker.sleep(3 * UNIT)
    await worker.all_gather_shards(await worker.reduce_scatter(X, PAIRS), 4, PAIRS)
    await log.at(worker)
    await worker.barrier()
    await log.at(worker)


async def _started_in_groups(worker: Worker, log: Log) -> None:
    first = await worker.begin(ops.AllReduce(X + worker.rank, ONE_APART))
    second = await worker.begin(ops.AllReduce(2 * X + worker.rank, ONE_APART))
    log.say(await worker.wait(second))
    log.say(await worker.wait(first))


async def _gathers_in_rank_order(worker: Worker, log: Log) -> None:
    log.say(await worker.all_gather(torch.tensor([float(worker.rank), 0.5])))


async def _mixes_overlap(worker: Worker, log: Log) -> None:
    ring = topology.plan("ring", worker.size, "uniform").at(0)
    first = await worker.begin(ops.Mix(ring, X + worker.rank))
    second = await worker.begin(ops.Mix(ring, 2 * X + worker.rank))
    log.say(await worker.wait(second))
    log.say(await worker.wait(first))


async def _mix_behind_a_gradient(worker: Worker, log: Log) -> None:
    ring = topology.plan("ring", worker.size, "uniform").at(0)
    gradient = await worker.begin(ops.Gradient(worker.start))
    await worker.mix(ring, X)
    await worker.wait(gradient)
    await log.at(worker)


async def _segments_come_while_computing(worker: Worker, log: Log) -> None:
    backward = await worker.begin(ops.Gradient(worker.start))
    async for segment in worker.segments(backward):
        log.say([segment.name, segment.start, segment.stop])
        await log.at(worker)
    await log.at(worker)


async def _goes_forward_ahead(worker: Worker, log: Log) -> None:
    """The gradient after it lasts so much shorter."""
    await worker.forward(0, worker.start.shape[-1])
    await worker.gradient(worker.start)
    await log.at(worker)


PATTERNS_IN_TIME = [
    Case(_gradient_lasts, 2, times=((0, 2),) * 2),
    Case(_evaluates_for_a_time, 2, times=((0, 3, 3, 6),) * 2),
    Case(_mix_waits_for_neighbours_only, 4, times=((12,), (8,), (12,), (12,))),
    Case(_collectives_wait_for_all, 3, times=((2, 5, 9),) * 3),
    Case(_a_broadcast_waits_for_nobody_below, 4, ((X.tolist(),),) * 4, times=((), (), (2,), (4,))),
    Case(_averages_less_than_one_number_each, 4, (([1.5],),) * 4, times=((3,),) * 4),
    Case(
        _groups_wait_for_their_members_only,
        4,
        times=((2, 2, 2, 6), (3, 3, 6, 6), (2, 2, 2, 6), (3, 3, 6, 6)),
    ),
    Case(
        _started_in_groups,
        4,
        tuple(((2 * X + m).tolist(), (X + m).tolist()) for m in (0.0, 2.0, 2.0, 2.0)),
    ),
    Case(_gathers_in_rank_order, 3, (([[0.0, 0.5], [1.0, 0.5], [2.0, 0.5]],),) * 3),
    Case(_mixes_overlap, 2, (((2 * X + 0.5).tolist(), (X + 0.5).tolist()),) * 2),
    Case(_mix_behind_a_gradient, 3, times=((2,),) * 3),
    Case(_segments_come_while_computing, 2, ((["x", 0, 4],),) * 2, times=((2, 2),) * 2),
    Case(_goes_forward_ahead, 2, times=((2,),) * 2),
]
