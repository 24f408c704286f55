"""The vocabulary of schemes: the operations that a driver carries out.

A scheme is a coroutine; ``await`` is the only place where time passes. Awaiting an operation hands
it, a frozen value, to the driver, which decides what it means on its clock and sends the reply
back. The set is closed: an operation holds data only, never a callable or an environment.

*Pattern operations* (``Mix``, ``AllReduce``, ``ReduceScatter``, ``AllGatherShards``, ``AllGather``,
``Broadcast``, ``Barrier``, with ``Gradient``, ``Encode``, ``Evaluate``, ``SpendRound``, ``BatchLoss``,
``NextStep`` and ``Publish``) are issued by every worker in the same order. A scheme made of them alone is
*synchronous* and runs unchanged with values of shape ``[d]`` (one worker) or ``[n, d]`` (all workers at
once). The others are *point-to-point*.

Values are never written in place: an operation keeps a reference. A ``Payload`` is a tensor or an encoded
value; the receiver gets it decoded.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, Generic, TypeVar

from torch import Tensor

from .encoding import Encoded, Payload, Qsgd, TopK
from .groups import Groups
from .pattern import Pattern

Reply = TypeVar("Reply")

ANY: Final = -1
"""Source of a ``Receive`` that takes a message from any sender, the first one."""


@dataclass(frozen=True, slots=True, eq=False)
class Operation(Generic[Reply]):
    """Root of the closed set; awaiting it suspends the coroutine until the driver replies."""

    def __await__(self) -> Generator[Operation[Any], Any, Reply]:
        reply: Reply = yield self
        return reply


@dataclass(frozen=True, slots=True, eq=False)
class Handle:
    """A ticket for a begun operation of one worker, good for one ``Wait``.

    >>> import torch
    >>> from paceline import ops
    >>> async def scheme(x):
    ...     computing = await ops.Start(ops.Gradient(x))  # goes on at once
    ...     mean = await ops.AllReduce(x)  # while the gradient is computed
    ...     return mean - await ops.Wait(computing)
    >>> driven = scheme(torch.zeros(1))
    >>> started = driven.send(None)
    >>> started
    Start(operation=Gradient(point=tensor([0.])))
    >>> driven.send(Handle(7, started.operation))
    AllReduce(value=tensor([0.]), groups=None)
    >>> driven.send(torch.zeros(1))
    Wait(handle=Handle(number=7, operation=Gradient(point=tensor([0.]))))
    >>> driven.close()
    """

    number: int
    operation: Operation[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """A named slice ``[start, stop)`` of the last axis of a gradient, as the backward pass makes it."""

    name: str
    start: int
    stop: int
    value: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Message:
    """The reply of a ``Receive``: sender and value."""

    source: int
    value: Tensor


# --- pattern operations -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class NextStep(Operation[bool]):
    """Ask whether step ``step`` is to be done; takes no time."""

    step: int


@dataclass(frozen=True, slots=True, eq=False)
class Publish(Operation[None]):
    """Report that a step is done and ``value`` is this worker's model; takes no time.

    ``leader`` is the model that stands for all workers, where the scheme has one (an elastic centre, a
    server's model), from any worker that knows it. ``averaged`` is the average over all workers of this step,
    where there was one. ``notes`` are numbers about this step, by name. ``kept`` is all that the worker needs
    to resume from here after a fault: tensors, numbers, states of optimisers.
    """

    step: int
    value: Tensor
    leader: Tensor | None = None
    averaged: Tensor | None = None
    notes: Mapping[str, float] = field(default_factory=dict)
    kept: tuple[Any, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class Gradient(Operation[Tensor]):
    """The gradient of this worker's loss on its next batch at ``point``, same shape as ``point``.

    The batch is fixed when the operation begins; the compute model gives its duration. The coroutine that
    began a ``droppable`` one may end before it is complete. A ``stepped`` one computes a segment only while
    the scheme waits for it, so that a backward pass can wait for parameters in between. ``part``: the number
    of one of ``Worker.accumulate`` equal parts of the batch, which begin in order; None: all of them.
    """

    point: Tensor
    droppable: bool = field(default=False, repr=False)
    stepped: bool = field(default=False, repr=False)
    part: int | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class Forward(Operation[None]):
    """The forward pass of the layers whose parameters lie in [start, stop), ahead of the next gradient.

    Lasts their share of that gradient's time, which is shorter by as much. It is time only: the gradient is
    computed as a whole at the point that it is given.
    """

    start: int
    stop: int


@dataclass(frozen=True, slots=True, eq=False)
class Encode(Operation[None]):
    """The time in which a worker encodes, or decodes, ``elements``: a number, or one of each worker [n].

    It is time only, and none at all where ``cluster.compute.encoding`` has no rate for the codec.
    """

    codec: Qsgd | TopK
    elements: float | Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Evaluate(Operation[None]):
    """The time in which a worker evaluates its model; it is time only."""

    duration_s: float


@dataclass(frozen=True, slots=True, eq=False)
class SpendRound(Operation[None]):
    """The time that an average costs a worker besides its exchange: an outer step, software; time only."""

    duration_s: float


@dataclass(frozen=True, slots=True, eq=False)
class BatchLoss(Operation[Tensor]):
    """The loss that came with this worker's latest gradient: on its batch, at its point, ``[..., 1]``.

    Takes no time, since a gradient computes it anyway. The latest gradient is the one whose value, or first
    segment, the scheme got last.
    """


@dataclass(frozen=True, slots=True, eq=False)
class Mix(Operation[Tensor]):
    """Weighted average over the neighbours: ``sum_j W[i, j] x_j`` with row i of ``pattern``."""

    pattern: Pattern
    value: Payload


@dataclass(frozen=True, slots=True, eq=False)
class AllReduce(Operation[Tensor]):
    """The mean of ``value`` over the members of this worker's group, the same bits on each.

    An encoded value has to be in 16 bits: then it is summed in them, at half the bytes. ``groups``, here and
    below: a partition of the workers, equal on all of them, each part of which runs its own operation; None:
    one group of all workers. ``wide``, here and in ``ReduceScatter``: at twice the bytes of the model's
    numbers, as gradients in single precision beside parameters in 16 bits.
    """

    value: Payload
    groups: Groups | None = None
    wide: bool = field(default=False, repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class ReduceScatter(Operation[Tensor]):
    """This worker's shard of the mean of ``value`` over its group: [..., d] becomes [..., ceil(d / g)].

    Of g members the one at position p (by rank) gets elements p ceil(d / g) and following of the last axis;
    zeros pad a shard that goes beyond the end. An encoded value is that of all shards, [g, ceil(d / g)].
    """

    value: Payload
    groups: Groups | None = None
    wide: bool = field(default=False, repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class AllGatherShards(Operation[Tensor]):
    """The shards of all members, one after another: the inverse of ``ReduceScatter``.

    [..., ceil(length / g)] becomes [..., length].
    """

    value: Payload
    length: int
    groups: Groups | None = None


@dataclass(frozen=True, slots=True, eq=False)
class AllGather(Operation[Tensor]):
    """The members' values as rows in rank order: ``[..., k]`` becomes ``[n, k]`` (replicated).

    With ``groups``, one worker gets ``[g, k]``, and all of them at once ``[n, g, k]``. For a few numbers:
    they count their own bytes, whatever a model stands for.
    """

    value: Tensor
    groups: Groups | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Broadcast(Operation[Tensor]):
    """The value of the worker ``root`` of this worker's group, on every member.

    ``root``: a rank, or ranks ``[...]``, one for each worker of the value.
    """

    value: Payload
    root: int | Tensor
    groups: Groups | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Barrier(Operation[None]):
    """Return when every member of this worker's group has arrived."""

    groups: Groups | None = None


# --- point-to-point operations ------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Send(Operation[None]):
    """Send ``value``; returns when its bytes have left, which is never before the receive is posted."""

    destination: int
    value: Payload
    tag: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Receive(Operation[Message]):
    """Receive a message shaped like ``like`` from ``source`` (or ``ANY``) under ``tag``."""

    source: int
    like: Payload
    tag: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Sleep(Operation[None]):
    """Do nothing for ``duration_s`` seconds."""

    duration_s: float


@dataclass(frozen=True, slots=True, eq=False)
class Now(Operation[float]):
    """Seconds since the run began, on the driver's clock; takes no time."""


@dataclass(frozen=True, slots=True, eq=False)
class Signal(Operation[None]):
    """Wake a coroutine of this worker that awaits the signal ``name``, now or later.

    Takes no time; each signal is for one ``AwaitSignal``. So a service can wake its worker's main coroutine.
    """

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class AwaitSignal(Operation[None]):
    """Wait until another coroutine of this worker has given the signal ``name``."""

    name: str


# --- operations on operations -------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Start(Operation[Handle]):
    """Begin an operation without waiting; takes no time. Every handle must be waited for."""

    operation: Operation[Any]


def adds_in_half(operation: Operation[Any]) -> bool:
    """Whether values are summed in 16 bits."""
    value = operation.value if isinstance(operation, AllReduce) else None
    return isinstance(value, Encoded) and value.half is not None


def computes(operation: Operation[Any]) -> bool:
    """Whether an operation begins a gradient."""
    return isinstance(operation, Gradient) or (
        isinstance(operation, Start) and isinstance(operation.operation, Gradient)
    )


def is_droppable(operation: Operation[Any]) -> bool:
    """Whether the coroutine that began an operation may end before it is complete."""
    return isinstance(operation, Gradient) and operation.droppable


@dataclass(frozen=True, slots=True, eq=False)
class Wait(Operation[Any]):
    """The reply of a begun operation, once it is complete."""

    handle: Handle


@dataclass(frozen=True, slots=True, eq=False)
class WaitAny(Operation[Handle]):
    """The first of several begun operations to complete (the earliest in the list if several are)."""

    handles: tuple[Handle, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Poll(Operation[bool]):
    """Whether a begun operation has completed; takes no time."""

    handle: Handle


@dataclass(frozen=True, slots=True, eq=False)
class NextSegment(Operation[Segment | None]):
    """The next segment of a begun ``Gradient``, in backward order, or None after the last."""

    handle: Handle


# --- names --------------------------------------------------------------------------------------


def name_of(kind: type) -> str:
    """The class name in the records' spelling: ``AllReduce`` becomes ``all_reduce``."""
    return _spelled(kind.__name__)


@cache
def _spelled(name: str) -> str:
    if name == "AllGatherShards":
        return "gather_strips"  # its name in all records since the first; old ones must load
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")


def describe(operation: Operation[Any]) -> str:
    """A human-readable name of an operation, with its peer."""
    match operation:
        case Send(destination=peer, tag=tag):
            return f"send to {peer}" + (f" ({tag})" if tag else "")
        case Receive(source=peer, tag=tag):
            whom = "anybody" if peer == ANY else str(peer)
            return f"receive from {whom}" + (f" ({tag})" if tag else "")
        case AwaitSignal(name=name):
            return f"await the signal {name}"
        case Forward(start=start, stop=stop):
            return f"forward pass of parameters {start} to {stop}"
        case Wait(handle=handle):
            return f"wait for {describe(handle.operation)}"
        case WaitAny(handles=handles):
            return "wait for any of " + ", ".join(describe(handle.operation) for handle in handles)
        case _:
            groups = getattr(operation, "groups", None)
            return name_of(type(operation)) + (f" in groups {groups}" if groups is not None else "")
