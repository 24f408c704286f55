"""What every driver promises: one list of cases, run on each of them.

A case is a coroutine function ``body(worker, log)``. What it *says* has to be the same on every driver; the
times that it notes are exact on the event driver, over a network that takes no time, and lower bounds on real
processes. A gradient lasts two units. Cases that need no rank and no clock run on the lockstep driver too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from paceline.sim import seeds, topology
from paceline.sim.drivers.job import Job
from paceline.sim.program import operations as ops
from paceline.sim.program.encoding import Compression, Encoded, Qsgd, decoded, encode
from paceline.sim.program.groups import shards
from paceline.sim.program.worker import Program, Worker
from paceline.sim.schemes.compressed import CompressedAllReduce
from paceline.sim.training.optimizer import NullOptimizer
from tests.contract.case import ONE_APART, UNIT, Case, Log, X, contract_job
from tests.contract.failures import FAILURES


def _gradients(workers: int) -> Tensor:
    """The workers' first gradients at the start, [n, d]."""
    job = contract_job(Case(_mixes, workers), {})
    assert job.problem is not None
    return torch.stack([job.problem.gradient(r, 0, job.start).value for r in range(workers)])


def _rows(values: Tensor) -> tuple[tuple[Any, ...], ...]:
    """Each rank says its row."""
    return tuple((row,) for row in values.tolist())


CODEC = Qsgd(bits=4, bucket=3)
ROUGH = encode(CODEC, X, lambda: torch.full((4,), 0.4))


# --- pattern operations, by value ---------------------------------------------------------------


async def _mixes(worker: Worker, log: Log) -> None:
    ring = topology.plan("ring", worker.size, "uniform").at(0)
    log.say(await worker.mix(ring, await worker.gradient(worker.start)))


async def _mixes_one_way(worker: Worker, log: Log) -> None:
    pattern = topology.plan("one_peer_exponential", worker.size, "uniform").at(0)
    log.say(await worker.mix(pattern, await worker.gradient(worker.start)))


async def _all_reduces(worker: Worker, log: Log) -> None:
    log.say(await worker.all_reduce(await worker.gradient(worker.start)))


async def _broadcasts(worker: Worker, log: Log) -> None:
    log.say(await worker.broadcast(await worker.gradient(worker.start), worker.size - 1))


PAIRS = ((0, 2), (3, 1))


async def _all_reduces_in_pairs(worker: Worker, log: Log) -> None:
    log.say(await worker.all_reduce(await worker.gradient(worker.start), PAIRS))


async def _all_reduces_with_one_apart(worker: Worker, log: Log) -> None:
    log.say(await worker.all_reduce(await worker.gradient(worker.start), ONE_APART))


async def _gathers_in_pairs(worker: Worker, log: Log) -> None:
    log.say(await worker.all_gather(await worker.gradient(worker.start), PAIRS))


async def _broadcasts_from_the_last_of_each_pair(worker: Worker, log: Log) -> None:
    root = worker.members(PAIRS)[..., -1]
    log.say(await worker.broadcast(await worker.gradient(worker.start), root, PAIRS))


async def _reduces_and_scatters(worker: Worker, log: Log) -> None:
    log.say(await worker.reduce_scatter(await worker.gradient(worker.start)))


async def _reduces_and_scatters_in_pairs(worker: Worker, log: Log) -> None:
    log.say(await worker.reduce_scatter(await worker.gradient(worker.start), PAIRS))


async def _gathers_strips(worker: Worker, log: Log) -> None:
    gradient = await worker.broadcast(await worker.gradient(worker.start), 0)
    log.say(await worker.all_gather_shards(worker.shard(gradient), gradient.shape[-1]))


async def _gathers_strips_in_pairs(worker: Worker, log: Log) -> None:
    shard = await worker.reduce_scatter(await worker.gradient(worker.start), PAIRS)
    log.say(await worker.all_gather_shards(shard, worker.start.shape[-1], PAIRS))


def _encoded(worker: Worker, value: Tensor, purpose: str = "rounding", index: int = 0) -> Encoded:
    shape = value.shape[1:] if worker.vectorised else value.shape
    return encode(CODEC, value, lambda: worker.uniform(purpose, index, shape))


async def _mixes_encoded(worker: Worker, log: Log) -> None:
    ring = topology.plan("ring", worker.size, "uniform").at(0)
    log.say(await worker.mix(ring, _encoded(worker, await worker.gradient(worker.start))))


async def _broadcasts_encoded(worker: Worker, log: Log) -> None:
    value = _encoded(worker, await worker.gradient(worker.start))
    log.say(await worker.broadcast(value, worker.size - 1))


async def _reduces_and_scatters_encoded(worker: Worker, log: Log) -> None:
    gradient = await worker.gradient(worker.start)
    log.say(await worker.reduce_scatter(_encoded(worker, shards(gradient, worker.size))))


async def _gathers_encoded_strips(worker: Worker, log: Log) -> None:
    shard = worker.shard(await worker.gradient(worker.start))
    log.say(await worker.all_gather_shards(_encoded(worker, shard), 4))


async def _averages_compressed_in_pairs(worker: Worker, log: Log) -> None:
    wire = CompressedAllReduce(worker, Compression(qsgd=CODEC))
    log.say(await wire.all_reduce(await worker.gradient(worker.start), 5, PAIRS))


async def _draws(worker: Worker, log: Log) -> None:
    log.say(torch.cat([worker.uniform("a", 3, (2,)), worker.normal("a", 4, (2,))], dim=-1))


async def _counts_batches(worker: Worker, log: Log) -> None:
    await worker.gradient(worker.start + 1.0)
    log.say(await worker.gradient(worker.start))


async def _counts_steps(worker: Worker, log: Log) -> None:
    async for k in worker.steps():
        log.say(k)
        await worker.publish(k, worker.start)


async def _joins_segments(worker: Worker, log: Log) -> None:
    backward = await worker.begin(ops.Gradient(worker.start))
    parts = [segment async for segment in worker.segments(backward)]
    log.say(torch.cat([part.value for part in sorted(parts, key=lambda p: p.start)], dim=-1))


async def _hears_its_losses(worker: Worker, log: Log) -> None:
    await worker.gradient(worker.start)
    log.say(await worker.batch_loss())
    first = await worker.begin(ops.Gradient(worker.start))
    second = await worker.begin(ops.Gradient(worker.start + 1.0))
    await worker.wait(second)
    log.say(await worker.batch_loss())
    await worker.wait(first)
    log.say(await worker.batch_loss())
    parts = await worker.begin(ops.Gradient(worker.start))
    log.say(await worker.batch_loss())
    async for _ in worker.segments(parts):
        log.say(await worker.batch_loss())


async def _hears_its_loss_with_the_first_segment(worker: Worker, log: Log) -> None:
    """Of a backward pass whose last segment comes long after the first."""
    await worker.gradient(worker.start)
    async for _ in worker.segments(await worker.begin(ops.Gradient(worker.start))):
        log.say(await worker.batch_loss())


LAYERS = "tests.support.own_tasks:slow_between_layers"


def _losses(workers: int) -> tuple[tuple[Any, ...], ...]:
    """What ``_hears_its_losses`` says: of batches 0, 2, 1, still 1, and 3."""
    job = contract_job(Case(_mixes, workers), {})
    return tuple(
        tuple(_loss(job, rank, index, 1.0 if index == 2 else 0.0) for index in (0, 2, 1, 1, 3))
        for rank in range(workers)
    )


def _losses_with_segments(workers: int) -> tuple[tuple[Any, ...], ...]:
    """Of the second batch, once for each of two layers."""
    job = contract_job(Case(_mixes, workers, task=LAYERS), {})
    return tuple((_loss(job, rank, 1),) * 2 for rank in range(workers))


def _loss(job: Job, rank: int, index: int, apart: float = 0.0) -> list[float]:
    """On a worker's batch, at the start or ``apart`` from it."""
    assert job.problem is not None
    workload, rows = job.problem.workload, job.problem.batches.examples(rank, index)
    return [workload.loss(job.start + apart, workload.inputs[rows], workload.targets[rows]).item()]


def _ring(values: Tensor) -> Tensor:
    return torch.tensor(topology.plan("ring", len(values), "uniform").at(0).matrix).float() @ values


def _second_gradients(workers: int) -> Tensor:
    job = contract_job(Case(_mixes, workers), {})
    assert job.problem is not None
    return torch.stack([job.problem.gradient(r, 1, job.start).value for r in range(workers)])


def _strips(values: Tensor, members: int) -> Tensor:
    """Row i of [n, 4]: shard number i % members, of ceil(4 / members) elements."""
    length = -(-4 // members)
    wide = torch.cat([values, torch.zeros(len(values), length * members - 4)], dim=1)
    return torch.stack([row[i % members * length :][:length] for i, row in enumerate(wide)])


def _draws_of(rank: int) -> Tensor:
    return torch.cat(
        [
            torch.from_numpy(seeds.generator(1, rank, "a/array", 3).random(2, "float32")),
            torch.from_numpy(seeds.generator(1, rank, "a/array", 4).standard_normal(2, "float32")),
        ]
    )


def _in_groups() -> list[Case]:
    g = _gradients(4)
    paired = (g + g.roll(2, 0)) / 2
    apart = torch.stack([g[0], *[g[1:].mean(0)] * 3])
    gathered = torch.stack([torch.stack([g[i % 2], g[i % 2 + 2]]) for i in range(4)])
    shards = torch.stack([paired[0][:2], paired[1][:2], paired[0][2:], paired[1][2:]])
    return [
        Case(_all_reduces_in_pairs, 4, _rows(paired), lockstep=True),
        Case(_all_reduces_with_one_apart, 4, _rows(apart), lockstep=True),
        Case(_gathers_in_pairs, 4, _rows(gathered), lockstep=True),
        Case(_broadcasts_from_the_last_of_each_pair, 4, _rows(g[[2, 3, 2, 3]]), lockstep=True),
        Case(_reduces_and_scatters_in_pairs, 4, _rows(shards), lockstep=True),
        Case(_gathers_strips_in_pairs, 4, _rows(paired), lockstep=True),
    ]


def _rounded(values: Tensor, purpose: str = "rounding", index: int = 0) -> Tensor:
    """What arrives of the workers' values [n, ...]."""
    workers = [Worker((r,), 9, torch.zeros(1), NullOptimizer(), seed=1) for r in range(len(values))]
    return torch.stack(
        [decoded(_encoded(w, v, purpose, index)) for w, v in zip(workers, values, strict=True)]
    )


def _averaged_in_pairs(g: Tensor) -> Tensor:
    """Of four workers' values, as a compressed average leaves them."""
    out = _rounded(shards(g, 2), "mean/out", 5)
    own = torch.stack([(out[r % 2] + out[r % 2 + 2])[r // 2] / 2 for r in range(4)])
    back = _rounded(own, "mean/back", 5)
    return torch.stack([torch.cat([back[r % 2], back[r % 2 + 2]]) for r in range(4)])


def _encoded_values() -> list[Case]:
    averaged = _averaged_in_pairs(_gradients(4))
    found = [Case(_averages_compressed_in_pairs, 4, _rows(averaged), lockstep=True)]
    for n in (2, 3, 4):
        g = _gradients(n)
        rough = _rounded(g)
        tables = _rounded(shards(g, n)).mean(0)
        joined = _rounded(torch.stack([shards(v, n)[r] for r, v in enumerate(g)])).reshape(-1)[:4]
        found += [
            Case(_mixes_encoded, n, _rows(_ring(rough)), lockstep=True),
            Case(_broadcasts_encoded, n, _rows(rough[-1].expand(n, -1)), lockstep=True),
            Case(_reduces_and_scatters_encoded, n, _rows(tables), lockstep=True),
            Case(_gathers_encoded_strips, n, _rows(joined.expand(n, -1)), lockstep=True),
        ]
    return found


def _by_value() -> list[Case]:
    found = [*_in_groups(), *_encoded_values()]
    for n in (2, 3, 4):
        g = _gradients(n)
        mean = g.mean(0).expand(n, -1)
        found += [
            Case(_mixes, n, _rows(_ring(g)), lockstep=True),
            Case(_all_reduces, n, _rows(mean), lockstep=True),
            Case(_broadcasts, n, _rows(g[-1].expand(n, -1)), lockstep=True),
            Case(_reduces_and_scatters, n, _rows(_strips(mean, n)), lockstep=True),
            Case(_gathers_strips, n, _rows(g[:1].expand(n, -1)), lockstep=True),
            Case(_draws, n, _rows(torch.stack([_draws_of(r) for r in range(n)])), lockstep=True),
        ]
    one, two = _gradients(1), _gradients(2)
    return [
        *found,
        Case(_mixes_one_way, 3, _rows((_gradients(3) + _gradients(3).roll(1, 0)) / 2), lockstep=True),
        Case(_counts_batches, 2, _rows(_second_gradients(2)), lockstep=True),
        Case(_all_reduces, 1, _rows(one)),
        Case(_broadcasts, 1, _rows(one)),
        Case(_reduces_and_scatters, 1, _rows(one)),
        Case(_gathers_strips, 1, _rows(one)),
        Case(_gathers_encoded_strips, 1, _rows(_rounded(one))),
        Case(_joins_segments, 1, _rows(one)),
        Case(_counts_steps, 1, ((0, 1, 2),)),
        Case(_counts_steps, 2, ((0, 1, 2),) * 2, lockstep=False),
        Case(_joins_segments, 2, _rows(two), lockstep=True),
        Case(_hears_its_losses, 2, _losses(2), lockstep=True),
        Case(_hears_its_loss_with_the_first_segment, 2, _losses_with_segments(2), lockstep=True, task=LAYERS),
    ]


# --- pattern operations, in time ----------------------------------------------------------------


async def _gradient_lasts(worker: Worker, log: Log) -> None:
    await log.at(worker)
    await worker.gradient(X)
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
    gradient = await worker.begin(ops.Gradient(X))
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


# --- point to point -----------------------------------------------------------------------------


async def _send_waits_for_its_receive(worker: Worker, log: Log) -> None:
    if worker.rank == 0:
        await worker.send(1, X)
    else:
        await worker.sleep(3 * UNIT)
        log.say((await worker.receive(0, X)).value)
    await log.at(worker)


async def _sends_encoded(worker: Worker, log: Log) -> None:
    if worker.rank == 0:
        await worker.send(1, ROUGH)
    else:
        log.say((await worker.receive(0, ROUGH)).value)


async def _tags_keep_messages_apart(worker: Worker, log: Log) -> None:
    if worker.rank == 0:
        a = await worker.begin(ops.Send(1, X, "a"))
        b = await worker.begin(ops.Send(1, X + 1, "b"))
        await worker.wait(a)
        await worker.wait(b)
    else:
        log.say((await worker.receive(0, X, "b")).value)
        log.say((await worker.receive(0, X, "a")).value)


async def _messages_keep_their_order(worker: Worker, log: Log) -> None:
    if worker.rank == 0:
        started = [await worker.begin(ops.Send(1, X + k)) for k in range(5)]
        for handle in started:
            await worker.wait(handle)
    else:
        for _ in range(5):
            log.say((await worker.receive(0, X)).value[0])


async def _receives_from_anybody(worker: Worker, log: Log) -> None:
    if worker.rank == 0:
        for _ in range(worker.size - 1):
            message = await worker.receive(ops.ANY, X)
            log.say([message.source, message.value[0].item()])
            await log.at(worker)
    else:
        await worker.sleep(2 * (worker.size - worker.rank) * UNIT)
        await worker.send(0, X + worker.rank)


async def _swap(worker: Worker, log: Log) -> None:
    peer = 1 - worker.rank
    answer = await worker.begin(ops.Receive(peer, X))
    await worker.send(peer, X + worker.rank)
    log.say((await worker.wait(answer)).source)


async def _wait_any_takes_the_first(worker: Worker, log: Log) -> None:
    slow = await worker.begin(ops.Sleep(4 * UNIT))
    quick = await worker.begin(ops.Sleep(UNIT))
    log.say(await worker.poll(quick))
    log.say((await worker.wait_any(slow, quick)) is quick)
    await log.at(worker)
    log.say([await worker.poll(quick), await worker.poll(slow)])
    await worker.wait(quick)
    await worker.wait(slow)
    await log.at(worker)


async def _a_message_beats_a_sleep(worker: Worker, log: Log) -> None:
    if worker.rank == 1:
        await worker.sleep(UNIT)
        await worker.send(0, X)
        return
    letter = await worker.begin(ops.Receive(1, X))
    alarm = await worker.begin(ops.Sleep(8 * UNIT))
    log.say((await worker.wait_any(alarm, letter)) is letter)
    await worker.wait(letter)
    await worker.wait(alarm)
    await log.at(worker)


def _serves_while_computing(worker: Worker, log: Log) -> Program:
    async def main() -> None:
        if worker.rank == 0:
            await worker.gradient(X)
            await log.at(worker)
        else:
            for k in range(3):
                await worker.send(0, X + k, "ask")
                log.say((await worker.receive(0, X, "answer")).value[0])

    async def service() -> None:
        while True:
            asked = await worker.receive(ops.ANY, X, "ask")
            await worker.send(asked.source, 2 * asked.value, "answer")

    return Program(main(), (service(),))


def _leaves_services_waiting(worker: Worker, log: Log) -> Program:
    """Services end wherever they are: in a receive from anybody, from one peer, or in a send."""
    peer = (worker.rank + 1) % worker.size

    async def main() -> None:
        log.say("done")

    async def listens() -> None:
        await worker.receive(ops.ANY, X, "never")

    async def expects() -> None:
        await worker.receive(peer, X, "never from you")

    async def calls() -> None:
        await worker.send(peer, X, "nobody listens")

    return Program(main(), (listens(), expects(), calls()))


def _is_woken_by_its_service(worker: Worker, log: Log) -> Program:
    """A signal is kept until it is awaited, each is for one who waits, and names are apart."""

    async def main() -> None:
        await worker.await_signal("now")
        await log.at(worker)
        await worker.sleep(4 * UNIT)
        waiting = await worker.begin(ops.AwaitSignal("now"))
        other = await worker.begin(ops.AwaitSignal("other"))
        log.say((await worker.wait_any(waiting, other)) is waiting)
        await log.at(worker)
        await worker.wait(other)
        await worker.wait(waiting)
        await log.at(worker)

    async def service() -> None:
        await worker.sleep(2 * UNIT)
        await worker.signal("now")
        await worker.sleep(UNIT)
        await worker.signal("now")
        await worker.sleep(5 * UNIT)
        await worker.signal("other")

    return Program(main(), (service(),))


POINT_TO_POINT = [
    Case(_send_waits_for_its_receive, 2, ((), (X.tolist(),)), times=((3,), (3,))),
    Case(_sends_encoded, 2, ((), (decoded(ROUGH).tolist(),))),
    Case(_tags_keep_messages_apart, 2, ((), ((X + 1).tolist(), X.tolist()))),
    Case(_messages_keep_their_order, 2, ((), (0.0, 1.0, 2.0, 3.0, 4.0))),
    Case(
        _receives_from_anybody, 4, (([3, 3.0], [2, 2.0], [1, 1.0]), (), (), ()), times=((2, 4, 6), (), (), ())
    ),
    Case(_swap, 2, ((1,), (0,))),
    Case(_wait_any_takes_the_first, 2, ((False, True, [True, False]),) * 2, times=((1, 4),) * 2),
    Case(_a_message_beats_a_sleep, 2, ((True,), ()), times=((8,), ())),
    Case(_serves_while_computing, 2, ((), (0.0, 2.0, 4.0)), times=((2,), ())),
    Case(_leaves_services_waiting, 3, (("done",),) * 3),
    Case(_is_woken_by_its_service, 2, ((True,),) * 2, times=((2, 6, 8),) * 2),
]

GOOD = [*_by_value(), *PATTERNS_IN_TIME, *POINT_TO_POINT]
CASES = {case.name: case for case in (*GOOD, *FAILURES)}
