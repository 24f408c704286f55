"""What happens to a worker's model on its way to the neighbours, or to all, and back.

    exchange = ModelExchange(worker, options.compression, options.momentum, options.inside)
    x, state = await exchange.mix(k, x, state, plan.at(k))         among neighbours; None: the mean of all
    mixed = await exchange.begin(k, x, state, plan.at(k))          and something else is done meanwhile
    x, state = await mixed()

The members of a unit send a shard of the model each (``inside.py``). It is encoded, and what the codes lost
is added to the average. Without these the model itself is sent.

Momentum: the tensors averaged with a worker's model. ``local``: the model alone; every worker keeps the
buffers of its optimiser. One model on the wire. ``mixed``: the optimiser's buffers are averaged in the same
message, with the same weights. One model more on the wire for each buffer (1 for SGD with momentum, none
without).

Source of ``mixed``: Yu et al., ICML 2019 (arXiv 1905.03817), for periodic averaging; DmSGD in Ying et al.,
NeurIPS 2021 (arXiv 2110.13363), for gossip.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from ... import topology
from ...errors import InputError
from ...program import operations as ops
from ...program.encoding import Compression, decoded
from ...program.pattern import Pattern
from ...program.worker import State, Worker
from .compressed import CompressedAllReduce, average_in_flight
from .held import Sizes
from .inside import Inside, Units

Momentum = Annotated[
    Literal["local", "mixed"],
    Field(description="averaged values: model alone, or with the optimiser's buffers"),
]


class ExchangeOptions(topology.MixingOptions):
    """Options of a model's way to the neighbours and back."""

    momentum: Momentum = "local"
    compression: Compression | None = Field(
        default=None, description="encoding of models in transit (default: none)"
    )
    inside: Inside = None


def pack(x: Tensor, state: State, momentum: Momentum) -> Tensor:
    """The value to average: the model [..., d], or with its k buffers [..., (1 + k) d]."""
    return torch.cat([x, *state.moments], dim=-1) if momentum == "mixed" and state.moments else x


def unpack(value: Tensor, state: State, momentum: Momentum) -> tuple[Tensor, State]:
    """The inverse of ``pack``; buffers that were not averaged are those of ``state``."""
    if momentum == "local" or not state.moments:
        return value, state
    widths = [moment.shape[-1] for moment in state.moments]  # shorter than a model with running buffers
    x, *moments = torch.split(value, [value.shape[-1] - sum(widths), *widths], dim=-1)
    return x, state._replace(moments=tuple(moments))


class ModelExchange:
    """One worker's part in the averages of a scheme.

    Attributes:
        units: workers that act as one, with their mean gradient.
    """

    def __init__(
        self,
        worker: Worker,
        compression: Compression | None,
        momentum: Momentum = "local",
        inside: str | None = None,
    ) -> None:
        self.units = Units(worker, inside)
        self._momentum = momentum
        self._average = CompressedAllReduce(worker, compression, shards=self.units.members)

    async def mix(self, k: int, x: Tensor, state: State, pattern: Pattern | None) -> tuple[Tensor, State]:
        """Model [..., d] and state after an average along ``pattern``; codes draw their numbers by ``k``."""
        leaving, mixed = await self._encode(k, x, state, pattern)
        return await mixed(leaving)

    async def begin(
        self, k: int, x: Tensor, state: State, pattern: Pattern | None
    ) -> Callable[[], Coroutine[Any, Any, tuple[Tensor, State]]]:
        """Begin ``mix``; the function returned waits for its result."""
        leaving, mixed = await self._encode(k, x, state, pattern)
        return partial(mixed, ops.Wait(await ops.Start(leaving)))

    def first_average(self) -> Tensor | None:
        """The first ``last`` of ``average_changes``: the initial model and buffers; None if not encoded."""
        return None if self._average.codec is None else pack(*self._average.worker.fresh(), self._momentum)

    async def average_changes(
        self, k: int, x: Tensor, state: State, last: Tensor | None
    ) -> tuple[Tensor, State, Tensor | None]:
        """The mean over all workers of model and buffers; if encoded, of their changes since the ``last``.

        Changes are small where a model is not, and so is their rounding error (FedPAQ: Reisizadeh et al.,
        AISTATS 2020). ``last`` is equal on all workers. Returns model, state and, if needed again, the new
        average.
        """
        own, weighed = pack(x, state, self._momentum), self._average.worker.weighed
        if last is None:
            return *unpack(await self._average.all_reduce(weighed(own), k), state, self._momentum), None
        mean = last + await self._average.all_reduce(weighed(own - last), k)
        return *unpack(mean, state, self._momentum), mean

    async def _encode(
        self, k: int, x: Tensor, state: State, pattern: Pattern | None
    ) -> tuple[
        ops.Operation[Tensor], Callable[[ops.Operation[Tensor]], Coroutine[Any, Any, tuple[Tensor, State]]]
    ]:
        """The operation that averages, and a function from it, or from the wait for it, to the result."""
        own = pack(x, state, self._momentum)
        own = self._average.worker.weighed(own) if pattern is None else own
        shard = self.units.shard(own)
        self._average.whole = own.shape[-1]
        payload = self._average.payload(shard, "mix", k)
        await self._average.spends(encoded=shard.shape[-1])
        among = pattern and self.units.pattern(pattern)

        async def mixed(arriving: ops.Operation[Tensor]) -> tuple[Tensor, State]:
            value = await arriving
            if self._average.codec is not None:  # doubly stochastic weights then keep the workers' mean
                value = value + (shard - decoded(payload))  # (Carli et al., Automatica 2010)
            await self._average.spends(decoded=shard.shape[-1], pattern=among)
            return unpack(await self.units.gather(value, own.shape[-1]), state, self._momentum)

        return ops.Mix(among, payload) if among else ops.AllReduce(payload, self.units.across), mixed


def averages_in_flight(momentum: Momentum, compression: Compression | None, sizes: Sizes) -> float:
    """Models in flight while models, or their changes, are averaged: the message and the average."""
    models, copies = sizes.message(momentum)
    change = 0 if compression is None else models
    return copies + change + models * average_in_flight(compression, sizes)


def refuse_top_k(compression: Compression | None) -> None:
    """Raise ``InputError`` where models would be mixed with neighbours' largest elements only."""
    if compression is not None and compression.top_k is not None:
        raise InputError(
            "top_k leaves out most of a model, so that neighbours hardly come together; "
            "use choco_sgd, which sends changes, or qsgd or bf16"
        )
