"""Synchronous SGD: average the gradients of all workers at every step.

    x(k+1) = x(k) - step of the optimiser at (1/n) sum_i grad F_i(x(k))

It is the update of one process with the n-fold batch. Bytes per step and worker: 2 (n-1)/n x model
with a ring. Waits for: everybody.

``overlap``: parts of the gradient are all-reduced while the backward pass goes on, a layer at a time or in
buckets, as DistributedDataParallel does; of a payload without ``workload.layer_profile`` in equal buckets.
``part_reduce``: every worker owns a shard of the model; gradients
are reduce-scattered, the shard is updated, its optimiser's state nowhere else, and all gather the shards:
the same update and the same bytes. ``compression``: gradients travel encoded.
``quorum``, ``deadline``: whose gradient is late is left out (how, and what it costs: ``quorum/rounds.py``).

Source: Das et al., arXiv 1602.06709 (part-reduce and part-broadcast); QSGD: Alistarh et al., NeurIPS 2017.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field

from ..config.limits import MAX_MODEL_BYTES
from ..config.settings import Settings
from ..config.units import Bytes
from ..errors import InputError
from ..program import operations as ops
from ..program.encoding import Compression
from ..program.worker import Program, Worker
from .compressed import CompressedAllReduce
from .held import REPLACED, Held, Sizes, encoded_share, in_rounds
from .quorum.options import Deadline, Quorum, check_quorum, leaves_out
from .quorum.rounds import Rounds


class AllReduceOptions(Settings):
    """Options of ``all_reduce``."""

    overlap: bool = Field(default=False, description="all-reduce each layer while the backward pass goes on")
    bucket: Annotated[Bytes, Field(gt=0, le=MAX_MODEL_BYTES)] | None = Field(
        default=None,
        description="with overlap: layers are put together until they have this size; a payload without "
        "`workload.layer_profile` is cut into equal buckets of at least this size",
    )
    part_reduce: bool = Field(
        default=False,
        description="every worker updates a shard of the model only, and all gather the shards",
    )
    compression: Compression | None = Field(
        default=None, description="how gradients are encoded when they travel; absent: not at all"
    )
    quorum: Quorum = None
    deadline: Deadline = None


def check(options: AllReduceOptions, workers: int) -> None:
    """Raise ``InputError`` where options exclude each other."""
    if options.bucket is not None and not options.overlap:
        raise InputError("a bucket needs 'overlap: true'")
    chosen = [name for name in ("overlap", "part_reduce", "compression") if getattr(options, name)]
    if len(chosen) > 1:
        raise InputError(f"{' and '.join(chosen)} do not go together; choose one of them")
    check_quorum(options, workers, "overlap", "part_reduce", "compression")


def bucket_bytes(options: AllReduceOptions) -> float | None:
    """Bytes of the parts that are sent during the backward pass; 0: of a layer, None: there are no parts."""
    return (options.bucket or 0.0) if options.overlap else None


def held(options: AllReduceOptions, sizes: Sizes) -> Held:
    """Model, gradient and its mean; with ``part_reduce`` shards of the optimiser, and of the mean."""
    if leaves_out(options):
        return Held(optimizer=sizes.moments, in_flight=in_rounds(sizes))
    if options.part_reduce:
        share = 1 / sizes.workers
        return Held(optimizer=sizes.moments * share, anchors=share, in_flight=1 + share + REPLACED)
    encoded = encoded_share(options.compression)
    shards = 1 if encoded else 0
    return Held(optimizer=sizes.moments, in_flight=1 + shards + encoded + REPLACED)


def all_reduce(worker: Worker, options: AllReduceOptions) -> Program:
    """Synchronous SGD: average the gradients of all workers at every step."""
    if leaves_out(options):
        rounds = Rounds(worker, options.quorum, options.deadline, worker.start)
        return Program(_reduce_in_time(worker, rounds), rounds.services())
    return Program(_part_reduce(worker) if options.part_reduce else _reduce(worker, options))


async def _reduce(worker: Worker, options: AllReduceOptions) -> None:
    x = worker.start
    state = worker.optimizer.init(x)
    average = CompressedAllReduce(worker, options.compression)
    async for k in worker.steps():
        if options.overlap:
            gradient = await _overlapped(worker, x, options.bucket or 0)
        else:
            gradient = await average.all_reduce(await worker.gradient(x), k)
        x, state = worker.optimizer.update(x, gradient, state)
        await worker.publish(k, x, averaged=x)


async def _reduce_in_time(worker: Worker, rounds: Rounds) -> None:
    x = worker.start
    state = worker.optimizer.init(x)
    async for k in worker.steps():
        gradient = await rounds.gradient(x)
        if gradient is not None:
            await rounds.contribute(gradient)
        x, state = worker.optimizer.update(x, await rounds.average(), state)
        await rounds.publish(k, x)
    await rounds.leave()


async def _part_reduce(worker: Worker) -> None:
    x = worker.start
    shard = worker.shard(x)
    state = worker.optimizer.init(shard)
    async for k in worker.steps():
        gradient = await worker.reduce_scatter(await worker.gradient(x))
        shard, state = worker.optimizer.update(shard, gradient, state)
        x = await worker.all_gather_shards(shard, x.shape[-1])
        await worker.publish(k, x, averaged=x)


async def _overlapped(worker: Worker, x: torch.Tensor, bucket: float) -> torch.Tensor:
    """The mean gradient at x [..., d], reduced bucket by bucket."""
    backward = await worker.begin(ops.Gradient(x))
    filling: list[torch.Tensor] = []
    started = []
    length, missing = 0, x.shape[-1]
    enough = int(bucket / worker.element_bytes)  # buckets of a payload differ by an element
    async for segment in worker.segments(backward):
        filling.append(segment.value)
        length += segment.stop - segment.start
        if length >= enough or length == missing:
            started.append(await worker.begin(ops.AllReduce(_concatenate(filling))))
            missing -= length
            filling, length = [], 0
    return _concatenate([await worker.wait(handle) for handle in started])


def _concatenate(parts: list[torch.Tensor]) -> torch.Tensor:
    """One tensor of the parts of a gradient, which come in backward order: the last elements first."""
    return parts[0] if len(parts) == 1 else torch.cat(parts[::-1], dim=-1)
