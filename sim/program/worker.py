"""The interface of a scheme to its driver: the worker.

A scheme is ``async def scheme(worker, options)``, or a function that returns a ``Program`` when it
also has services. The methods of ``Worker`` wrap the operations of ``sim.program.operations``, so that a
forgotten ``await`` is reported by Python and by mypy.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .. import seeds
from ..devices import to_device
from ..errors import NotInLockstep
from . import groups as groups_of
from . import operations as ops
from .encoding import Payload
from .pattern import Pattern


class State(NamedTuple):
    """The state of an optimiser between two updates.

    Attributes:
        updates: number of updates so far; determines the next learning rate.
        moments: running means of gradients [..., d]: () or (velocity,) or (mean, mean of squares).
    """

    updates: int
    moments: tuple[Tensor, ...]


class Parameter(NamedTuple):
    """A tensor of a model: elements [start, stop) of the model's vector, in row-major order."""

    name: str
    shape: tuple[int, ...]
    start: int

    @property
    def stop(self) -> int:
        """The first element behind it."""
        return self.start + math.prod(self.shape)

    def of(self, x: Tensor) -> Tensor:
        """A view of it in a model or gradient x [..., d], [..., *shape]."""
        return x[..., self.start : self.stop].view(*x.shape[:-1], *self.shape)


class Optimizer(Protocol):
    """An update rule; pure, and elementwise over all axes but the last.

    ``coarse``: a difference in a gradient's last bit may move x by as much as rounding to 16 bits.
    """

    coarse: bool = False

    def init(self, x: Tensor) -> State:
        """The state before the first update at ``x``."""

    def update(self, x: Tensor, gradient: Tensor, state: State) -> tuple[Tensor, State]:
        """Take one step from ``x``; returns the new value and state, writes nothing in place."""

    def lr_at(self, k: int) -> float:
        """Learning rate of update ``k``, counted from 0."""


@dataclass(frozen=True)
class Program:
    """The coroutines of one worker: a main one, and services that share its host and its values.

    Services are closed when the mains of all workers have ended.
    """

    main: Coroutine[Any, Any, None]
    services: tuple[Coroutine[Any, Any, None], ...] = ()


@dataclass(frozen=True)
class Worker:
    """One participant, or all of them at once under the lockstep driver, which is vectorised.

    A scheme awaits its worker's methods; a driver takes each operation and sends the reply back:

    >>> async def averaged(worker: Worker) -> None:
    ...     x = worker.start
    ...     state = worker.optimizer.init(x)
    ...     async for k in worker.steps():
    ...         mean = await worker.all_reduce(await worker.gradient(x))
    ...         x, state = worker.optimizer.update(x, mean, state)
    ...         await worker.publish(k, x)
    >>> from paceline.sim.training.optimizer import Sgd
    >>> driven = averaged(Worker(ranks=(0,), size=2, start=torch.zeros(2), optimizer=Sgd(lr=0.5), seed=1))
    >>> driven.send(None)
    NextStep(step=0)
    >>> driven.send(True)
    Gradient(point=tensor([0., 0.]))
    >>> driven.send(torch.tensor([4.0, 2.0]))
    AllReduce(value=tensor([4., 2.]), groups=None)
    >>> driven.send(torch.tensor([2.0, 1.0]))
    Publish(step=0, value=tensor([-1.0000, -0.5000]), leader=None, averaged=None, notes={})
    >>> driven.close()

    Attributes:
        ranks: the workers of this object: one, or 0..n-1 when vectorised.
        size: number of workers n.
        start: the initial model, [d] or [n, d].
        optimizer: the update rule.
        seed: the scenario's seed (of this repeat).
        sites: number of each worker's site, [n].
        hosts: number of each worker's host, [n]; workers of one host are its GPUs.
        element_bytes: bytes on the wire per element of a value.
        sums_inside: ``hosts`` or ``sites``, whose workers sum values before encoding; None: they do not.
        evaluation_s, every: seconds for which it evaluates its model, and between how many steps.
        first_step: number of its first step.
        kept: what it resumes from after a fault, as published before that step; (): it begins anew.
        layers: first and last element (exclusive) of each layer, in forward order; (): unknown.
        accumulate: batches of a gradient, which ``ops.Gradient.part`` numbers.
        parameters: the model's trained tensors in the order in which its module has them, which is that of
            its vector; running buffers come behind them. Without a module: one vector, or the layers'.
        weight: what this worker's models count by in a mean of all, [1] or [n, 1]; None: all count alike.
        speeds: mean gradients a second of each worker, for periods by time, [n]; (): all are equally fast.
    """

    ranks: tuple[int, ...]
    size: int
    start: Tensor
    optimizer: Optimizer
    seed: int
    sites: tuple[int, ...] = ()
    hosts: tuple[int, ...] = ()
    element_bytes: float = 4.0
    sums_inside: str | None = None
    evaluation_s: float = 0.0
    every: int = 1
    layers: tuple[tuple[int, int], ...] = ()
    accumulate: int = 1
    first_step: int = 0
    kept: tuple[Any, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    weight: Tensor | None = None
    speeds: tuple[float, ...] = ()

    @property
    def rank(self) -> int:
        """This worker's rank; a scheme that needs it cannot be vectorised."""
        if len(self.ranks) != 1:
            raise NotInLockstep("the scheme makes differences by a worker's rank: run it on the event driver")
        return self.ranks[0]

    def draw(self, purpose: str, index: int, bound: int) -> int:
        """Draw a random integer in [0, bound): number ``index`` of this worker's stream ``purpose``.

        Each worker has its own. One alike on all is ``seeds.integer(worker.seed, seeds.SHARED, ...)``.
        """
        return seeds.integer(self.seed, self.rank, purpose, index, bound)

    def uniform(self, purpose: str, index: int, shape: Sequence[int]) -> Tensor:
        """Draw ``index`` of this worker's stream ``purpose``: uniform on [0, 1), ``[*shape]`` of the
        model's type; vectorised ``[n, *shape]``, row i with worker i's numbers.
        """
        return self._draw(seeds.uniform_array, purpose, index, shape)

    def normal(self, purpose: str, index: int, shape: Sequence[int]) -> Tensor:
        """Draw ``index`` of this worker's stream ``purpose``: standard normal, ``[*shape]`` of the model's
        type; vectorised ``[n, *shape]``, row i with worker i's numbers.
        """
        return self._draw(seeds.normal_array, purpose, index, shape)

    def _draw(
        self, draw: Callable[..., NDArray[np.floating]], purpose: str, index: int, shape: Sequence[int]
    ) -> Tensor:
        double = self.start.dtype == torch.float64
        rows = [
            torch.from_numpy(draw(self.seed, rank, purpose, index, tuple(shape), double))
            for rank in self.ranks
        ]
        return to_device(self._of_ranks(rows).to(self.start.dtype), self.start.device)

    @property
    def vectorised(self) -> bool:
        """Whether values are [n, d], of all workers at once."""
        return self.start.dim() > 1

    def _of_ranks(self, rows: list[Tensor]) -> Tensor:
        """A value per rank in a scheme's form: the only one, or all as [n, ...]."""
        return torch.stack(rows) if self.vectorised else rows[0]

    def members(self, groups: groups_of.Groups | None = None) -> Tensor:
        """List this worker's group, ascending: ranks [g]; vectorised, of groups of one size, [n, g]."""
        of_rank = (groups_of.members(groups, self.size, rank) for rank in self.ranks)
        return self._of_ranks([torch.tensor(ranks) for ranks in of_rank])

    def shard(self, value: Tensor, groups: groups_of.Groups | None = None) -> Tensor:
        """Cut out this worker's shard of ``value``, as ``reduce_scatter`` would: [..., ceil(d / g)]."""
        rows = []
        for rank, row in zip(self.ranks, value.unbind() if self.vectorised else [value], strict=True):
            members = groups_of.members(groups, self.size, rank)
            rows.append(groups_of.shard(row, members.index(rank), len(members)))
        return self._of_ranks(rows)

    def optimizer_of_shard(self, start: int, stop: int, groups: groups_of.Groups | None = None) -> Optimizer:
        """The update rule for this worker's shard of the model's elements [start, stop)."""
        between = getattr(self.optimizer, "between", None)
        if between is None:
            return self.optimizer
        members = groups_of.members(groups, self.size, self.rank)
        length = groups_of.shard_length(stop - start, len(members))
        first = start + members.index(self.rank) * length
        rule: Optimizer = between(first, first + length, self.start.shape[-1])
        return rule

    def weighed(self, value: Tensor) -> Tensor:
        """``value`` [..., d] as it enters a mean of models, which counts them by their steps' examples."""
        return value if self.weight is None else self.weight * value

    def fresh(self) -> tuple[Tensor, State]:
        """The initial model, and the optimiser's state at it."""
        return self.start, self.optimizer.init(self.start)

    async def steps(self) -> AsyncIterator[int]:
        """Count 0, 1, 2, ..., or from ``first_step`` on, until the driver ends the run."""
        step = self.first_step
        while await ops.NextStep(step):
            yield step
            step += 1

    async def publish(
        self,
        step: int,
        value: Tensor,
        leader: Tensor | None = None,
        averaged: Tensor | None = None,
        kept: tuple[Any, ...] = (),
        **notes: float,
    ) -> None:
        """Report that ``step`` is done and ``value`` is this worker's model, after an evaluation if due.

        Args:
            step: 0, 1, 2, ...
            value: the model [..., d].
            leader: the scheme's model for all workers; default: that with the lowest training loss.
            averaged: the average over all workers of this step, alike on all: ``evaluate.on: averaged``.
            kept: what this worker needs to resume from here after a fault (``Worker.kept``).
            **notes: numbers about the step, reported at an evaluation as mean and maximum over all workers
                and the steps up to its number, from the evaluation before on.
        """
        if self.evaluation_s and (step + 1) % self.every == 0:
            await ops.Evaluate(self.evaluation_s)
        await ops.Publish(step, value, leader, averaged, notes, kept)

    async def spend(self, round_s: float) -> None:
        """Pass the seconds that an average costs a worker besides its exchange (``round``), if any."""
        if round_s:
            await ops.SpendRound(round_s)

    async def gradient(self, point: Tensor) -> Tensor:
        """Compute the gradient of the loss on the next batch at ``point``; lasts one computation."""
        return await ops.Gradient(point)

    async def forward(self, start: int, stop: int) -> None:
        """Run the forward pass of the layers with parameters in [start, stop) ahead of the next gradient,
        which is shorter by as much. Once per layer and gradient: later parameters may still be in transit.
        """
        await ops.Forward(start, stop)

    async def batch_loss(self) -> Tensor:
        """Return the loss [..., 1] on the batch, and at the point, of the latest gradient. Takes no time."""
        return await ops.BatchLoss()

    async def mix(self, pattern: Pattern, value: Payload) -> Tensor:
        """Average ``value`` over the neighbours in ``pattern``, with its weights."""
        return await ops.Mix(pattern, value)

    async def all_reduce(self, value: Payload, groups: groups_of.Groups | None = None) -> Tensor:
        """Average ``value`` over all workers, or over this worker's group."""
        return await ops.AllReduce(value, groups)

    async def reduce_scatter(self, value: Payload, groups: groups_of.Groups | None = None) -> Tensor:
        """Average, and keep this worker's shard of the mean: [..., d] becomes [..., ceil(d / group size)]."""
        return await ops.ReduceScatter(value, groups)

    async def all_gather_shards(
        self, value: Payload, length: int, groups: groups_of.Groups | None = None
    ) -> Tensor:
        """Join the shards of all members: [..., length]."""
        return await ops.AllGatherShards(value, length, groups)

    async def all_gather(self, value: Tensor, groups: groups_of.Groups | None = None) -> Tensor:
        """Collect all workers' ``value`` [..., k] as [n, k], by rank; with groups, members': [..., g, k]."""
        return await ops.AllGather(value, groups)

    async def broadcast(
        self, value: Payload, root: int | Tensor, groups: groups_of.Groups | None = None
    ) -> Tensor:
        """Get the value of worker ``root`` of this worker's group; see ``ops.Broadcast``."""
        return await ops.Broadcast(value, root, groups)

    async def barrier(self, groups: groups_of.Groups | None = None) -> None:
        """Wait for all workers, or for this worker's group."""
        await ops.Barrier(groups)

    async def send(self, destination: int, value: Payload, tag: str = "") -> None:
        """Send ``value``; blocks until the receive is posted and the bytes have left."""
        await ops.Send(destination, value, tag)

    async def receive(self, source: int, like: Payload, tag: str = "") -> ops.Message:
        """Receive a value shaped like ``like`` from ``source`` (or ``ANY``)."""
        return await ops.Receive(source, like, tag)

    async def sleep(self, duration_s: float) -> None:
        """Do nothing for ``duration_s`` seconds."""
        await ops.Sleep(duration_s)

    async def now(self) -> float:
        """Return the seconds since the run began. Takes no time."""
        return await ops.Now()

    async def signal(self, name: str) -> None:
        """Wake a coroutine of this worker that awaits the signal ``name``. Takes no time."""
        await ops.Signal(name)

    async def await_signal(self, name: str) -> None:
        """Wait until another coroutine of this worker has given the signal ``name``."""
        await ops.AwaitSignal(name)

    async def begin(self, operation: ops.Operation[Any]) -> ops.Handle:
        """Begin an operation without waiting; ``wait`` for the handle later. Takes no time."""
        return await ops.Start(operation)

    async def wait(self, handle: ops.Handle) -> Any:
        """Wait for the reply of a begun operation."""
        return await ops.Wait(handle)

    async def wait_any(self, *handles: ops.Handle) -> ops.Handle:
        """Wait for the first of several begun operations; it still has to be waited for itself."""
        return await ops.WaitAny(handles)

    async def poll(self, handle: ops.Handle) -> bool:
        """Whether a begun operation has completed. Takes no time."""
        return await ops.Poll(handle)

    async def segments(self, gradient: ops.Handle) -> AsyncIterator[ops.Segment]:
        """Yield the segments of a begun gradient, each as soon as the backward pass has made it.

        They are the layers of the trained model. A ``payload`` has no known layers, and so no segments: a
        scheme of your own cannot ask for them there. After the last one the handle counts as waited for.

        >>> async def overlapped(worker: Worker) -> None:
        ...     computing = await worker.begin(ops.Gradient(worker.start))
        ...     async for segment in worker.segments(computing):  # the last layer comes first
        ...         averaging = await worker.begin(ops.AllReduce(segment.value))
        ...         await worker.wait(averaging)
        >>> from paceline.sim.training.optimizer import Sgd
        >>> driven = overlapped(Worker((0,), size=2, start=torch.zeros(3), optimizer=Sgd(lr=0.5), seed=1))
        >>> computing = ops.Handle(0, driven.send(None).operation)
        >>> driven.send(computing)
        NextSegment(handle=Handle(number=0, operation=Gradient(point=tensor([0., 0., 0.]))))
        >>> driven.send(ops.Segment("last.weight", 1, 3, torch.ones(2)))
        Start(operation=AllReduce(value=tensor([1., 1.]), groups=None))
        >>> driven.close()
        """
        while (segment := await ops.NextSegment(gradient)) is not None:
            yield segment
