"""Synchronous SGD whose workers share the optimiser, the gradients, or the whole model: ZeRO, FSDP.

    x(k+1) = x(k) - step of the optimiser at (1/n) sum_i grad F_i(x(k))

The update is that of ``all_reduce``, but n workers (with ``inside`` those of a host or site) hold a shard
each of every unit of layers: of the optimiser's state, of gradients too, or of the ``full`` model. Bytes per
step and worker: 3 m (n-1)/n models, with m batches (``accumulate``); without ``reshard`` 2 m (n-1)/n; of
``gradients`` (m+1) (n-1)/n, of ``optimizer`` 2 (n-1)/n. Waits for: all workers. ``reduce: last`` saves
(m-1) (n-1)/n of it; ``inside`` adds 2 (r-1)/r of a shard, with r replicas, for each batch that is reduced
among them.

*Forward pass.* A unit is gathered before it, ``prefetch`` units ahead meanwhile, and dropped after it.
*Backward pass.* It is gathered again, and its gradient is reduce-scattered after it; before the next one is,
that one has arrived, so that computing is at most a unit ahead. Each communicator keeps the order of issue:
one for gathers and reduce-scatters, one for the all-reduces of shards among replicas, which run beside it.

*The new model* is nowhere whole after an update. A step is published once the gathers of the next forward
pass have made it so; after the last step workers gather it once more.

Source: Rajbhandari et al., SC 2020 (ZeRO-1, 2, 3); Zhao et al., VLDB 2023 (FSDP, hybrid shards); the order of
collectives is that of torch 2.13's ``fully_shard``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Final, Literal

import torch
from pydantic import Field
from torch import Tensor

from ..config.limits import MAX_MODEL_BYTES
from ..config.settings import Settings
from ..config.units import Bytes
from ..errors import InputError
from ..program import operations as ops
from ..program.worker import Program, Worker
from .common.held import Held, Sizes
from .common.inside import Inside, Units
from .scheme import Scheme, publishes_averages


class ShardedOptions(Settings):
    """Options of ``sharded``."""

    shard: Literal["optimizer", "gradients", "full"] = Field(
        default="full", description="what workers share: ZeRO-1, ZeRO-2, or ZeRO-3 and FSDP"
    )
    inside: Inside = None
    unit: Annotated[Bytes, Field(gt=0, le=MAX_MODEL_BYTES)] | None = Field(
        default=None, description="least size of a unit of layers (default: a layer each)"
    )
    prefetch: int = Field(default=1, ge=0, le=64, description="units gathered ahead of the one computed")
    reshard: bool = Field(
        default=True,
        description="with shard: full, drop a unit after its forward pass and gather it again "
        "(reshard_after_forward)",
    )
    gradients: Literal["float32"] | None = Field(
        default=None,
        description="with workload.precision: bf16, reduce gradients in single precision, at twice the bytes "
        "(reduce_dtype)",
    )
    reduce: Literal["each", "last", "inside"] | None = Field(
        default=None,
        description="with workload.accumulate: reduce gradients after each batch, the last one, or each "
        "inside and the last among replicas (default: each; with shard: optimizer the last)",
    )


def check(options: ShardedOptions, workers: int) -> None:
    """Raise ``InputError`` where options exclude each other."""
    if not options.reshard and options.shard != "full":
        raise InputError(f"with 'shard: {options.shard}' parameters stay whole; leave 'reshard' out")
    if options.reduce == "inside" and options.inside is None:
        raise InputError(
            "'reduce: inside' needs replicas: write 'inside: hosts' beside it, or 'reduce: each'"
        )
    if options.reduce in ("each", "inside") and options.shard == "optimizer":
        raise InputError(
            f"with 'shard: optimizer' gradients stay whole up to the last batch, and 'reduce: "
            f"{options.reduce}' would keep shards of them; write 'shard: gradients'"
        )


@dataclass(eq=False)
class _Communicator:
    """Collectives of one worker that go one after another."""

    worker: Worker
    name: str
    _issued: deque[_Issued] = field(default_factory=deque)

    async def issue(self, done: str, operation: ops.Operation[Tensor], then: _Then) -> None:
        """Let a collective begin after those before it; ``then`` gets its reply, ``done`` is a signal."""
        self._issued.append((done, operation, then))
        await self.worker.signal(self.name)

    async def carry(self) -> None:
        """Carry out what is issued: a service."""
        while True:
            await self.worker.await_signal(self.name)
            done, operation, then = self._issued.popleft()
            await then(await operation)
            await self.worker.signal(done)


_Then = Callable[[Tensor], Awaitable[None]]
_Issued = tuple[str, ops.Operation[Tensor], _Then]


@dataclass(frozen=True)
class _Unit:
    """Layers that are gathered together: elements [start, stop), in ``layers`` segments of a gradient."""

    number: int
    start: int
    stop: int
    layers: int

    def signal(self, done: str) -> str:
        """Name of the signal that this is done."""
        return f"unit {self.number} {done}"


def cut(layers: Iterable[float], least: float) -> Iterator[list[float]]:
    """Cut sizes of layers, in forward order, into units of at least ``least``, but for the last one."""
    unit: list[float] = []
    for size in layers:
        unit.append(size)
        if sum(unit) >= least:
            yield unit
            unit = []
    if unit:
        yield unit


def _units(worker: Worker, least_bytes: float) -> Iterator[_Unit]:
    """The units of a worker's model, in forward order."""
    layers = worker.layers or ((0, worker.start.shape[-1]),)
    least, done = int(least_bytes / worker.element_bytes), 0
    for number, unit in enumerate(cut((stop - start for start, stop in layers), least)):
        mine = layers[done : done + len(unit)]
        done += len(unit)
        yield _Unit(number, mine[0][0], mine[-1][1], len(unit))


class _Shards:
    """One worker's shards, unit by unit, and its passes over the ``units``, in forward order."""

    def __init__(self, worker: Worker, options: ShardedOptions) -> None:
        self._worker, self._prefetch, self._reduce = worker, options.prefetch, reduces(options)
        self._wide = options.gradients is not None
        places = Units(worker, options.inside)
        self._inside, self._across = places.groups, places.across
        self._sharing = _Communicator(worker, "collective of shards")
        self._averaging = _Communicator(worker, "average of replicas")
        self.units = list(_units(worker, options.unit or 0.0))
        self._values = [worker.start[..., unit.start : unit.stop] for unit in self.units]
        self._shards = [worker.shard(value, self._inside) for value in self._values]
        self._rules = [worker.optimizer_of_shard(u.start, u.stop, self._inside) for u in self.units]
        self._states = [rule.init(shard) for rule, shard in zip(self._rules, self._shards, strict=True)]
        self._whole: dict[int, Tensor] = {}  # sums of gradients that are not reduced yet
        self._sums: dict[int, Tensor] = {}  # and of shards of their means
        self._averages = 0  # under way for each unit

    def services(self) -> tuple[Coroutine[Any, Any, None], ...]:
        """The worker's communicators."""
        return self._sharing.carry(), self._averaging.carry()

    @property
    def _model(self) -> Tensor:
        return torch.cat(self._values, dim=-1)

    async def gather(self, units: Sequence[_Unit]) -> AsyncIterator[_Unit]:
        """Gather units one after another, and some ahead; yields each as soon as it is whole."""
        issued = 0
        for place, unit in enumerate(units):
            issued = await self._gather_up_to(place, units, issued)
            await self._worker.await_signal(unit.signal("gathered"))
            issued = await self._gather_up_to(place + self._prefetch, units, issued)
            yield unit

    async def _gather_up_to(self, place: int, units: Sequence[_Unit], issued: int) -> int:
        """Issue gathers up to a place, of which some are issued; returns how many are now."""
        for unit in units[issued : place + 1]:
            shard = self._shards[unit.number]
            gather = ops.AllGatherShards(shard, unit.stop - unit.start, self._inside)
            await self._sharing.issue(unit.signal("gathered"), gather, partial(self._take, unit.number))
        return max(issued, min(place + 1, len(units)))

    async def _take(self, number: int, value: Tensor) -> None:
        self._values[number] = value

    async def forward(self, *, gathers: bool) -> None:
        """Pass forward, unit by unit."""
        async for unit in self.gather(self.units) if gathers else _in_turn(self.units):
            await self._worker.forward(unit.start, unit.stop)

    async def backward(self, part: int | None, *, gathers: bool, last: bool) -> None:
        """Pass backward, unit by unit, with the gradient of a part of the batch; the ``last`` ends it."""
        units, under_way = self.units[::-1], ""
        gradient = ops.Gradient(self._model, stepped=True, part=part)
        segments = self._worker.segments(await self._worker.begin(gradient))
        async for unit in self.gather(units) if gathers else _in_turn(units):
            layers = [(await anext(segments)).value for _ in range(unit.layers)]
            value = torch.cat(layers[::-1], dim=-1)
            if part is not None:
                value = value / self._worker.accumulate
            value = _sum(self._whole.pop(unit.number, None), value)
            if self._reduce == "last" and not last:
                self._whole[unit.number] = value
                continue
            if under_way:  # one at a time, as its whole gradient is held meanwhile
                await self._worker.await_signal(under_way)
            under_way = unit.signal("reduced")
            then = partial(self._average, unit, last)
            await self._sharing.issue(under_way, ops.ReduceScatter(value, self._inside, self._wide), then)
        async for _ in segments:
            pass
        if under_way:
            await self._worker.await_signal(under_way)

    async def _average(self, unit: _Unit, last: bool, shard: Tensor) -> None:
        """Average a reduced shard among replicas, if it is due, or add it to the others."""
        if self._across is None or not (last or self._reduce == "each"):
            await self._add(unit.number, shard)
            return
        if self._reduce == "inside":
            shard = _sum(self._sums.pop(unit.number, None), shard)
        average = ops.AllReduce(shard, self._across, self._wide)
        self._averages += unit.number == 0
        await self._averaging.issue(unit.signal("averaged"), average, partial(self._add, unit.number))

    async def _add(self, number: int, shard: Tensor) -> None:
        self._sums[number] = _sum(self._sums.get(number), shard)

    async def update(self) -> None:
        """Take a step of the optimiser on each shard, as soon as its gradient is averaged."""
        for unit in self.units[::-1]:
            for _ in range(self._averages):
                await self._worker.await_signal(unit.signal("averaged"))
            number = unit.number
            self._shards[number], self._states[number] = self._rules[number].update(
                self._shards[number], self._sums.pop(number), self._states[number]
            )
        self._averages = 0

    async def publish(self, step: int) -> None:
        """Publish the model as gathered last."""
        model = self._model
        await self._worker.publish(step, model, averaged=model)


def _sum(before: Tensor | None, value: Tensor) -> Tensor:
    return value if before is None else before + value


async def _in_turn(units: Sequence[_Unit]) -> AsyncIterator[_Unit]:
    for unit in units:
        yield unit


def reduces(options: ShardedOptions) -> Literal["each", "last", "inside"]:
    """After which batches gradients are reduced."""
    return options.reduce or ("last" if options.shard == "optimizer" else "each")


async def _steps(worker: Worker, options: ShardedOptions, shards: _Shards) -> None:
    parts = range(worker.accumulate) if worker.accumulate > 1 else (None,)
    full, updated = options.shard == "full", -1
    async for k in worker.steps():
        for part in parts:
            begins = part in (None, 0)
            await shards.forward(gathers=full or (begins and updated >= 0))
            if begins and updated >= 0:
                await shards.publish(updated)
            last = part in (None, worker.accumulate - 1)
            await shards.backward(part, gathers=full and options.reshard, last=last)
        await shards.update()
        updated = k
    if updated >= 0:
        async for _ in shards.gather(shards.units):
            pass
        await shards.publish(updated)


def sharded(worker: Worker, options: ShardedOptions) -> Program:
    """Synchronous SGD whose workers share the optimiser, the gradients or the whole model."""
    shards = _Shards(worker, options)
    return Program(_steps(worker, options, shards), shards.services())


def held(options: ShardedOptions, sizes: Sizes) -> Held:
    """Shards, what is not shared whole, and the units that are gathered and reduced.

    Source: Rajbhandari et al., SC 2020, figure 1; ``prefetch`` units ahead, and one behind, of that computed.
    """
    share = 1 / (sizes.members if options.inside else sizes.workers)
    units = [sum(layers) for layers in cut(sizes.layers, options.unit or 0.0)]
    largest = max(units) / sum(units) if units else 0.0
    full, whole = options.shard == "full", options.shard == "optimizer" or reduces(options) == "last"
    return Held(
        parameters=share + (2 + options.prefetch) * largest if full else 1.0,
        gradients=1.0 if whole else share,
        optimizer=sizes.moments * share,
        in_flight=2 * largest * (2 if options.gradients else 1),
        master=share,
    )


SHARDED: Final = Scheme(
    "sharded", sharded, ShardedOptions, True, check, publishes=publishes_averages, held=held,
    in_shards=lambda options: True, inside=lambda options: options.inside,
    bucket_bytes=lambda options: (options.unit or 0.0,) * 2,
)  # fmt: skip
