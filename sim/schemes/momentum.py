"""Momentum placement: which tensors of a worker travel with its model when models are averaged.

``local``: the model alone; every worker keeps the buffers of its optimiser. One model on the wire.
``mixed``: the optimiser's buffers are averaged in the same message, with the same weights. One model more
on the wire for each buffer (1 for SGD with momentum, none without).

Source of ``mixed``: Yu et al., ICML 2019 (arXiv 1905.03817), for periodic averaging; DmSGD in Ying et al.,
NeurIPS 2021 (arXiv 2110.13363), for gossip.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field

from ..program.worker import Worker
from ..training.optimizer import State
from .wire import Wire

Tensor = torch.Tensor

Momentum = Annotated[
    Literal["local", "mixed"],
    Field(description="what is averaged: the model alone, or the optimiser's buffers with it"),
]


def pack(x: Tensor, state: State, momentum: Momentum) -> Tensor:
    """What travels: the model [..., d], or with its k buffers [..., (1 + k) d]."""
    return torch.cat([x, *state.moments], dim=-1) if momentum == "mixed" and state.moments else x


def unpack(value: Tensor, state: State, momentum: Momentum) -> tuple[Tensor, State]:
    """The inverse of ``pack``; buffers that did not travel are those of ``state``."""
    if momentum == "local" or not state.moments:
        return value, state
    widths = [moment.shape[-1] for moment in state.moments]  # less than the model's where that has buffers
    x, *moments = torch.split(value, [value.shape[-1] - sum(widths), *widths], dim=-1)
    return x, state._replace(moments=tuple(moments))


async def all_average(worker: Worker, x: Tensor, state: State, momentum: Momentum) -> tuple[Tensor, State]:
    """The mean over all workers of the model, and of what travels with it."""
    return unpack(await worker.all_reduce(pack(x, state, momentum)), state, momentum)


async def average_of_changes(
    wire: Wire, index: int, x: Tensor, state: State, momentum: Momentum, last: Tensor
) -> tuple[Tensor, State, Tensor]:
    """The same over a ``wire`` that may compress: what travels is then the change since the last average.

    A change is small where a model is not, and so is the error of its rounding (FedPAQ: Reisizadeh et al.,
    AISTATS 2020).

    Args:
        wire: how values travel.
        index: of its random numbers.
        x, state, momentum: as for ``all_average``.
        last: the last average of what travels, the same on all workers; at first ``pack`` of the start.

    Returns:
        Model, state, and the new average.
    """
    own = pack(x, state, momentum)
    if wire.codec is None:
        mean = await wire.all_reduce(own, index)
    else:
        mean = last + await wire.all_reduce(own - last, index)
    return *unpack(mean, state, momentum), mean
