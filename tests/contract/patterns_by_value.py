"""What pattern operations return, of values that are worked out from the workers' gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from paceline.sim import seeds, topology
from paceline.sim.drivers.job import Job
from paceline.sim.program import operations as ops
from paceline.sim.program.encoding import Compression, Encoded, decoded, encode
from paceline.sim.program.groups import shards
from paceline.sim.program.worker import Worker
from paceline.sim.schemes.common.compressed import CompressedAllReduce
from paceline.sim.training.optimizer import NullOptimizer
from tests.contract.case import CODEC, ONE_APART, PAIRS, Case, Log, contract_job


def _gradients(workers: int) -> Tensor:
    """The workers' first gradients at the start, [n, d]."""
    job = contract_job(Case(_mixes, workers), {})
    assert job.problem is not None
    return torch.stack([job.problem.gradient(r, 0, job.start).value for r in range(workers)])


def _rows(values: Tensor) -> tuple[tuple[Any, ...], ...]:
    """Each rank says its row."""
    return tuple((row,) for row in values.tolist())


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


async def _averages_in_bf16_in_pairs(worker: Worker, log: Log) -> None:
    wire = CompressedAllReduce(worker, Compression(bf16=True))
    log.say(await wire.all_reduce(await worker.gradient(worker.start), 5, PAIRS))


async def _begins_an_average_in_fp16_in_pairs(worker: Worker, log: Log) -> None:
    wire = CompressedAllReduce(worker, Compression(fp16=True))
    under_way = await wire.begin(await worker.gradient(worker.start), 5, PAIRS)
    await under_way.go_on()
    log.say(await under_way.wait())


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


def _in_half(dtype: torch.dtype) -> Tensor:
    """Means of pairs: two shares, rounded twice, and their sum, rounded once more; the same in any order."""
    shares = _gradients(4).to(dtype) / 2
    return (shares + shares[[2, 3, 0, 1]]).to(torch.float32)


def _encoded_values() -> list[Case]:
    averaged = _averaged_in_pairs(_gradients(4))
    cases = [
        Case(_averages_compressed_in_pairs, 4, _rows(averaged), lockstep=True),
        Case(_averages_in_bf16_in_pairs, 4, _rows(_in_half(torch.bfloat16)), lockstep=True),
        Case(_begins_an_average_in_fp16_in_pairs, 4, _rows(_in_half(torch.float16))),
    ]
    for n in (2, 3, 4):
        g = _gradients(n)
        rough = _rounded(g)
        tables = _rounded(shards(g, n)).mean(0)
        joined = _rounded(torch.stack([shards(v, n)[r] for r, v in enumerate(g)])).reshape(-1)[:4]
        cases += [
            Case(_mixes_encoded, n, _rows(_ring(rough)), lockstep=True),
            Case(_broadcasts_encoded, n, _rows(rough[-1].expand(n, -1)), lockstep=True),
            Case(_reduces_and_scatters_encoded, n, _rows(tables), lockstep=True),
            Case(_gathers_encoded_strips, n, _rows(joined.expand(n, -1)), lockstep=True),
        ]
    return cases


def _cases() -> list[Case]:
    cases = [*_in_groups(), *_encoded_values()]
    for n in (2, 3, 4):
        g = _gradients(n)
        mean = g.mean(0).expand(n, -1)
        cases += [
            Case(_mixes, n, _rows(_ring(g)), lockstep=True),
            Case(_all_reduces, n, _rows(mean), lockstep=True),
            Case(_broadcasts, n, _rows(g[-1].expand(n, -1)), lockstep=True),
            Case(_reduces_and_scatters, n, _rows(_strips(mean, n)), lockstep=True),
            Case(_gathers_strips, n, _rows(g[:1].expand(n, -1)), lockstep=True),
            Case(_draws, n, _rows(torch.stack([_draws_of(r) for r in range(n)])), lockstep=True),
        ]
    one, two = _gradients(1), _gradients(2)
    return [
        *cases,
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


PATTERNS_BY_VALUE = _cases()
