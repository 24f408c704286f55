"""Synchronous SGD: average the gradients of all workers at every step.

    x(k+1) = x(k) - step of the optimiser at (1/n) sum_i grad F_i(x(k))

This is one process's update with the n-fold batch. Bytes per step and worker: 2 (n-1)/n models (ring).
Waits for: all workers.

``overlap``: parts of the gradient are all-reduced during the backward pass, by layers or in buckets, as in
DistributedDataParallel; a payload without ``workload.layer_profile`` has equal buckets. With ``send_order`` a
communication thread sends one at a time, and with ``next_forward`` the next step begins before all have
arrived (``overlap/buckets.py``). ``part_reduce``: every worker owns a shard of the model; gradients are
reduce-scattered, the owner alone updates its shard and keeps its optimiser state, and all gather the shards:
the same update and the same bytes. ``buffers``: worker 0 broadcasts them before every forward pass, as
DistributedDataParallel does (``broadcast_buffers``). ``compression``: gradients are sent encoded. ``quorum``,
``deadline``: gradients of stragglers are left out (``common/rounds.py``). ``outer``: every ``period`` steps
an outer step along the change since the last one, DiLoCo's with all workers as one; nothing more is sent.

Source: Das et al., arXiv 1602.06709 (part-reduce and part-broadcast); QSGD: Alistarh et al., NeurIPS 2017.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Final

import torch
from pydantic import Field

from ..config.limits import MAX_MODEL_BYTES
from ..config.settings import Settings
from ..config.units import Bytes
from ..errors import InputError
from ..program.encoding import Compression
from ..program.worker import Program, Worker
from .common.buckets import Buckets, SendOrder
from .common.compressed import CompressedAllReduce, average_in_flight, encodes_averages
from .common.held import REPLACED, Held, Sizes, in_rounds
from .common.outer import OuterSteps, WithOuterSteps
from .common.rounds import Deadline, Quorum, Rounds, check_quorum, leaves_out
from .scheme import Scheme, publishes_averages


class AllReduceOptions(Settings):
    """Options of ``all_reduce``."""

    overlap: bool = Field(default=False, description="all-reduce each layer during the backward pass")
    bucket: Annotated[Bytes, Field(gt=0, le=MAX_MODEL_BYTES)] | None = Field(
        default=None,
        description="with overlap: least size of a bucket of layers; a payload without "
        "`workload.layer_profile` has equal buckets",
    )
    first_bucket: Annotated[Bytes, Field(gt=0, le=MAX_MODEL_BYTES)] | None = Field(
        default=None,
        description="with a bucket: size of the first one (DistributedDataParallel: 1 MiB, then 25 MiB)",
    )
    send_order: SendOrder | None = Field(
        default=None,
        description="with overlap: a communication thread sends one bucket at a time, in order of readiness "
        "or of need in the next forward pass (default: no thread, each when ready)",
    )
    next_forward: bool = Field(
        default=False,
        description="with overlap: begin the next forward pass layer by layer as gradients arrive",
    )
    part_reduce: bool = Field(
        default=False,
        description="every worker updates a shard of the model; all gather the shards",
    )
    buffers: Annotated[Bytes, Field(gt=0, le=MAX_MODEL_BYTES)] | None = Field(
        default=None,
        description="buffers of a module, which worker 0 broadcasts before every forward pass "
        "(DistributedDataParallel: all of them, unless broadcast_buffers=False)",
    )
    compression: Compression | None = Field(
        default=None, description="encoding of gradients in transit (default: none)"
    )
    outer: OuterSteps | None = Field(default=None, description="an outer optimiser, SGD (default: none)")
    quorum: Quorum = None
    deadline: Deadline = None


def check(options: AllReduceOptions, workers: int) -> None:
    """Raise ``InputError`` where options exclude each other."""
    if options.bucket is not None and not options.overlap:
        raise InputError("a bucket needs 'overlap: true'")
    if options.first_bucket is not None and options.bucket is None:
        raise InputError("first_bucket needs a 'bucket' for those that follow, for example 'bucket: 25 MiB'")
    for name in ("send_order", "next_forward"):
        if getattr(options, name) and not options.overlap:
            raise InputError(f"{name} needs 'overlap: true'")
    forms = {
        "overlap": options.overlap,
        "part_reduce": options.part_reduce,
        "compression": options.compression is not None,
    }
    chosen = [name for name, given in forms.items() if given]
    if len(chosen) > 1:
        raise InputError(f"{' and '.join(chosen)} do not go together; choose one of them")
    check_quorum(options, workers, **forms)
    if options.outer is not None and options.part_reduce:
        raise InputError("outer steps are of whole models; leave outer or part_reduce out")
    if options.buffers is not None and (leaves_out(options) or options.part_reduce or options.next_forward):
        raise InputError(
            "buffers are broadcast before a forward pass that waits for whole gradients of all workers; "
            "leave part_reduce, next_forward, quorum and deadline out"
        )


def bucket_bytes(options: AllReduceOptions) -> tuple[float, float] | None:
    """Bytes of the first part sent during the backward pass, and of the others; 0: of a layer."""
    bucket = options.bucket or 0.0
    return (options.first_bucket or bucket, bucket) if options.overlap else None


def averages_gradients(options: AllReduceOptions) -> bool:
    """Whether every gradient is all-reduced whole: neither sharded nor without stragglers."""
    return not (options.part_reduce or leaves_out(options))


def held(options: AllReduceOptions, sizes: Sizes) -> Held:
    """Model, gradient and its mean; with ``part_reduce`` shards of the optimiser, and of the mean."""
    momentum = options.outer.momentum if options.outer else 0
    outer = Held(anchors=float(options.outer is not None), outer_momentum=float(momentum > 0))
    if leaves_out(options):
        return replace(outer, optimizer=sizes.moments, in_flight=in_rounds(sizes))
    if options.part_reduce:
        share = 1 / sizes.workers
        in_flight = 1 + share + REPLACED
        return Held(optimizer=sizes.moments * share, anchors=share, in_flight=in_flight, master=share)
    in_flight = average_in_flight(options.compression, sizes) + REPLACED
    return replace(outer, optimizer=sizes.moments, in_flight=in_flight)


def all_reduce(worker: Worker, options: AllReduceOptions) -> Program:
    """Synchronous SGD: average the gradients of all workers at every step."""
    if options.outer is not None:
        worker = replace(worker, optimizer=WithOuterSteps.of(worker, options.outer))
    if leaves_out(options):
        rounds = Rounds(worker, options.quorum, options.deadline, worker.start)
        return Program(_reduce_in_time(worker, rounds), rounds.services())
    if options.part_reduce:
        return Program(_part_reduce(worker))
    if sizes := bucket_bytes(options):
        buckets = Buckets(worker, *sizes, options.send_order)
        main = _reduce_in_buckets(worker, buckets, options)
        return Program(main, (buckets.carry(),) if options.send_order else ())
    return Program(_reduce(worker, options))


async def _reduce(worker: Worker, options: AllReduceOptions) -> None:
    x, state = worker.kept or worker.fresh()
    average = CompressedAllReduce(worker, options.compression)
    async for k in worker.steps():
        await _broadcast_buffers(worker, options)
        gradient = await average.all_reduce(await worker.gradient(x), k)
        x, state = worker.optimizer.update(x, gradient, state)
        await worker.publish(k, x, averaged=x, kept=(x, state))


async def _broadcast_buffers(worker: Worker, options: AllReduceOptions) -> None:
    if options.buffers is not None:
        stack = worker.start.shape[:-1]
        one = worker.start.new_zeros((*stack, 1), dtype=torch.uint8)
        await worker.broadcast(one.expand(*stack, round(options.buffers)), 0)


async def _reduce_in_buckets(worker: Worker, buckets: Buckets, options: AllReduceOptions) -> None:
    x, state = worker.kept or worker.fresh()
    next_forward = options.next_forward
    sent = 0  # steps whose gradients were sent
    async for k in worker.steps():
        if next_forward and sent:
            x, state = worker.optimizer.update(x, await buckets.mean(next_forward=True), state)
            await worker.publish(k - 1, x, averaged=x, kept=(x, state))
        await _broadcast_buffers(worker, options)
        await buckets.send(x)
        sent = k + 1
        if not next_forward:
            x, state = worker.optimizer.update(x, await buckets.mean(next_forward=False), state)
            await worker.publish(k, x, averaged=x, kept=(x, state))
    if next_forward and sent:
        x, state = worker.optimizer.update(x, await buckets.mean(next_forward=False), state)
        await worker.publish(sent - 1, x, averaged=x)


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
    shard, rule = worker.shard(x), worker.optimizer_of_shard(0, x.shape[-1])
    state = rule.init(shard)
    async for k in worker.steps():
        gradient = await worker.reduce_scatter(await worker.gradient(x))
        shard, state = rule.update(shard, gradient, state)
        x = await worker.all_gather_shards(shard, x.shape[-1])
        await worker.publish(k, x, averaged=x)


ALL_REDUCE: Final = Scheme(
    "all_reduce", all_reduce, AllReduceOptions, True, check, publishes=publishes_averages,
    bucket_bytes=bucket_bytes,
    held=held, depends_on_timing=leaves_out, averages_gradients=averages_gradients, encodes=encodes_averages,
    shrinks=averages_gradients, in_shards=lambda options: options.part_reduce,
)  # fmt: skip
