"""What a scheme sees: its worker.

A scheme is ``async def scheme(worker, options)``, or a function that returns a ``Program`` when it
also has services. The methods of ``Worker`` wrap the operations of ``sim.program.operations``, so that a
forgotten ``await`` is reported by Python and by mypy.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .. import seeds
from ..devices import to_device
from ..errors import SchemeError
from . import groups as groups_of
from . import operations as ops
from .encoding import Payload
from .groups import Groups
from .pattern import Pattern


class State(NamedTuple):
    """What an optimiser remembers.

    Attributes:
        updates: how many were done; says which learning rate is next.
        moments: running means of gradients [..., d]: () or (velocity,) or (mean, mean of squares).
    """

    updates: int
    moments: tuple[Tensor, ...]


class Optimizer(Protocol):
    """An update rule; pure, and elementwise over all axes but the last."""

    def init(self, x: Tensor) -> State:
        """The state before the first update at ``x``."""

    def update(self, x: Tensor, gradient: Tensor, state: State) -> tuple[Tensor, State]:
        """One step from ``x``; returns the new value and the new state, writes nothing in place."""

    def lr_at(self, k: int) -> float:
        """Learning rate of update ``k``, counted from 0."""


Reply = TypeVar("Reply")


@dataclass(frozen=True)
class Program:
    """The coroutines of one worker: a main one, and services that share its host and its values.

    Services are closed when the mains of all workers have ended.
    """

    main: Coroutine[Any, Any, None]
    services: tuple[Coroutine[Any, Any, None], ...] = ()


@dataclass(frozen=True)
class Worker:
    """One participant, or all of them at once under the stacked driver.

    Attributes:
        ranks: the workers that this object stands for: one, or 0..n-1 when stacked.
        size: number of workers n.
        start: the initial model, [d] or [n, d].
        optimizer: the update rule.
        seed: the scenario's seed (of this repeat).
        sites: the site of each of the n workers, as a number.
        element_bytes: what one element of a value stands for on the wire.
    """

    ranks: tuple[int, ...]
    size: int
    start: Tensor
    optimizer: Optimizer
    seed: int
    sites: tuple[int, ...] = ()
    element_bytes: float = 4.0

    @property
    def rank(self) -> int:
        """This worker's rank; a scheme that needs it cannot be stacked."""
        if len(self.ranks) != 1:
            raise SchemeError("a stacked scheme has no single rank: run it on the event driver")
        return self.ranks[0]

    def draw(self, purpose: str, index: int, bound: int) -> int:
        """A random integer in [0, bound): number ``index`` of this worker's stream ``purpose``."""
        return seeds.integer(self.seed, self.rank, purpose, index, bound)

    def uniform(self, purpose: str, index: int, shape: Sequence[int]) -> Tensor:
        """Numbers uniform on [0, 1): draw ``index`` of this worker's stream ``purpose``.

        Returns:
            [*shape] of the model's type, or [n, *shape] when stacked: the same numbers.
        """
        return self._drawn(seeds.uniform_array, purpose, index, shape)

    def normal(self, purpose: str, index: int, shape: Sequence[int]) -> Tensor:
        """The same with standard normal numbers."""
        return self._drawn(seeds.normal_array, purpose, index, shape)

    def _drawn(
        self, draw: Callable[..., NDArray[np.floating]], purpose: str, index: int, shape: Sequence[int]
    ) -> Tensor:
        double = self.start.dtype == torch.float64
        rows = [
            torch.from_numpy(draw(self.seed, rank, purpose, index, tuple(shape), double))
            for rank in self.ranks
        ]
        drawn = torch.stack(rows) if self.stacked else rows[0]
        return to_device(drawn.to(self.start.dtype), self.start.device)

    @property
    def stacked(self) -> bool:
        """Whether values are [n, d], of all workers at once."""
        return self.start.dim() > 1

    def members(self, groups: Groups | None = None) -> Tensor:
        """The ranks of this worker's group, ascending: [g], or [n, g] when stacked (groups of one size)."""
        rows = [torch.tensor(groups_of.members(groups, self.size, rank)) for rank in self.ranks]
        return torch.stack(rows) if self.stacked else rows[0]

    def shard(self, value: Tensor, groups: Groups | None = None) -> Tensor:
        """What ``reduce_scatter`` would leave of ``value`` here if all workers had it: [..., ceil(d / g)]."""
        rows = []
        for rank, row in zip(self.ranks, value.unbind() if self.stacked else [value], strict=True):
            members = groups_of.members(groups, self.size, rank)
            rows.append(groups_of.shard(row, members.index(rank), len(members)))
        return torch.stack(rows) if self.stacked else rows[0]

    async def steps(self) -> AsyncIterator[int]:
        """Count 0, 1, 2, ... until the driver says that the run is over."""
        step = 0
        while await ops.NextStep(step):
            yield step
            step += 1

    async def publish(self, step: int, value: Tensor, leader: Tensor | None = None, **notes: float) -> None:
        """Say that ``step`` is done and this worker's model is ``value``. Takes no time.

        ``leader``, shaped like ``value``, is the model that stands for all workers, where the scheme has
        one; otherwise that is the worker's with the lowest training loss. ``notes`` are numbers about this
        step: their mean and maximum over all workers since the last evaluation stand among its metrics.
        """
        await ops.Publish(step, value, leader, notes)

    async def gradient(self, point: Tensor) -> Tensor:
        """Gradient of the loss on the next batch at ``point``; lasts one computation."""
        return await ops.Gradient(point)

    async def batch_loss(self) -> Tensor:
        """Loss [..., 1] on the batch of the latest gradient, at the point of that. Takes no time."""
        return await ops.BatchLoss()

    async def mix(self, pattern: Pattern, value: Payload) -> Tensor:
        """Weighted average of ``value`` over the neighbours in ``pattern``."""
        return await ops.Mix(pattern, value)

    async def all_reduce(self, value: Tensor, groups: Groups | None = None) -> Tensor:
        """Mean of ``value`` over all workers, or over this worker's group."""
        return await ops.AllReduce(value, groups)

    async def reduce_scatter(self, value: Payload, groups: Groups | None = None) -> Tensor:
        """This worker's shard of that mean: [..., d] becomes [..., ceil(d / group size)]."""
        return await ops.ReduceScatter(value, groups)

    async def all_gather_shards(self, value: Payload, length: int, groups: Groups | None = None) -> Tensor:
        """All members' shards joined: [..., length]."""
        return await ops.AllGatherShards(value, length, groups)

    async def all_gather(self, value: Tensor, groups: Groups | None = None) -> Tensor:
        """Everybody's ``value`` [..., k], as [n, k] in rank order; with groups, the members': [..., g, k]."""
        return await ops.AllGather(value, groups)

    async def broadcast(self, value: Payload, root: int | Tensor, groups: Groups | None = None) -> Tensor:
        """The value of worker ``root`` of this worker's group; see ``sim.program.operations.Broadcast``."""
        return await ops.Broadcast(value, root, groups)

    async def barrier(self, groups: Groups | None = None) -> None:
        """Wait for everybody, or for this worker's group."""
        await ops.Barrier(groups)

    async def send(self, destination: int, value: Payload, tag: str = "") -> None:
        """Send ``value``; blocks until the receive is posted and the bytes have left."""
        await ops.Send(destination, value, tag)

    async def receive(self, source: int, like: Payload, tag: str = "") -> ops.Message:
        """Receive a value shaped like ``like`` from ``source`` (or ``ANY``)."""
        return await ops.Receive(source, like, tag)

    async def sleep(self, duration_s: float) -> None:
        """Do nothing for a while."""
        await ops.Sleep(duration_s)

    async def now(self) -> float:
        """Seconds since the run began."""
        return await ops.Now()

    async def begin(self, operation: ops.Operation[Any]) -> ops.Handle:
        """Start an operation and go on; ``wait`` for the handle later. Takes no time."""
        return await ops.Start(operation)

    async def wait(self, handle: ops.Handle) -> Any:
        """The reply of a started operation."""
        return await ops.Wait(handle)

    async def wait_any(self, *handles: ops.Handle) -> ops.Handle:
        """The first of several started operations to complete; it still has to be waited for."""
        return await ops.WaitAny(handles)

    async def poll(self, handle: ops.Handle) -> bool:
        """Whether a started operation has completed. Takes no time."""
        return await ops.Poll(handle)

    async def segments(self, gradient: ops.Handle) -> AsyncIterator[ops.Segment]:
        """The segments of a started gradient, each as soon as the backward pass has made it.

        After the last one the handle counts as waited for.
        """
        while (segment := await ops.NextSegment(gradient)) is not None:
            yield segment
