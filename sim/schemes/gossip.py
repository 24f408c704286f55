"""Decentralised SGD: average with the neighbours of a topology at every step.

With d_j the step of the optimiser at g_j = grad F_j(x_j(k)) and W(k) the mixing matrix of step k:

    adapt_then_combine:      x_i(k+1) = sum_j W_ij(k) (x_j(k) - d_j(k))
    combine_while_adapting:  x_i(k+1) = sum_j W_ij(k) x_j(k) - d_i(k)

The second order sends x(k) while the gradient is computed at it, so that a step lasts as long as the longer
of the two. With ``global_period`` H every H-th combination is the mean over all workers. With ``momentum:
mixed`` the optimiser's buffers are combined too; for heavy-ball momentum b and adapt then combine:

    m_i(k+1) = sum_j W_ij(k) u_j,   x_i(k+1) = sum_j W_ij(k) (x_j(k) - lr u_j),   u_j = b m_j(k) + g_j

With ``compression`` Q each average is x_i + sum_j W_ij (Q(x_j) - Q(x_i)): the mean of all models stays as it
is where W is doubly stochastic.

Bytes per step and worker: out-degree x model, twice that with one mixed buffer; an all-reduce's in a global
step. Waits for: the neighbours of this step (to a receiver too: a message leaves when it is awaited), so that
a straggler's delay spreads one hop a step; for everybody in a global step.

Source: combine while adapting is D-PSGD of Lian et al., NeurIPS 2017, AWC in BlueFog; adapt then combine is
ATC there, and what the code of Ying et al., NeurIPS 2021 (arXiv 2110.13363) runs on exponential graphs;
mixed momentum is their DmSGD (the paper's box is quoted from memory); the global period is Gossip-PGA of Chen
et al., ICML 2021 (arXiv 2105.09080).
"""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field
from torch import Tensor

from .. import topology
from ..errors import InputError
from ..program import operations as ops
from ..program.encoding import Compression, Payload
from ..program.worker import Worker
from ..topology import MixingOptions
from .compressed import CompressedAllReduce, Momentum, add_lost_part, pack, refuse_top_k, unpack


class GossipOptions(MixingOptions):
    """Options of ``gossip``."""

    order: Literal["adapt_then_combine", "combine_while_adapting"] = Field(
        default="adapt_then_combine",
        description="average what the step has led to, or average while the gradient is computed",
    )
    momentum: Momentum = "local"
    global_period: int | None = Field(
        default=None, ge=2, description="every so many steps all workers average instead; absent: never"
    )
    compression: Compression | None = Field(
        default=None, description="how models are encoded on their way to the neighbours; absent: not at all"
    )


def check(options: GossipOptions, workers: int) -> None:
    """Raise ``InputError`` where the topology or its weights cannot be had, or take no average."""
    if options.compression is not None and options.global_period is not None:
        raise InputError("compression and global_period do not go together; choose one of them")
    refuse_top_k(options.compression)
    plan = topology.plan(options.topology, workers, options.weights)
    if not plan.row_stochastic:
        raise InputError(
            f"what a worker takes with {plan.weights} weights on topology {plan.name} does not sum to 1:"
            " use weights: auto, or the scheme sgp"
        )


def cycle(options: GossipOptions, workers: int) -> int:
    """Steps after which graphs and global averages repeat themselves; one where graphs are random."""
    plan = topology.plan(options.topology, workers, options.weights)
    return math.lcm(plan.period or 1, options.global_period or 1)


async def gossip(worker: Worker, options: GossipOptions) -> None:
    """Decentralised SGD: average with the neighbours of a topology at every step."""
    plan = topology.plan(options.topology, worker.size, options.weights, worker.seed)
    x = worker.start
    state = worker.optimizer.init(x)
    average = CompressedAllReduce(worker, options.compression)

    def combine(k: int, value: Tensor, payload: Payload) -> ops.Operation[Tensor]:
        if options.global_period is not None and (k + 1) % options.global_period == 0:
            return ops.AllReduce(value)
        return ops.Mix(plan.at(k), payload)

    async for k in worker.steps():
        if options.order == "adapt_then_combine":
            gradient = await worker.gradient(x)
            x, state = worker.optimizer.update(x, gradient, state)
            own = pack(x, state, options.momentum)
            payload = average.payload(own, "mix", k)
            combined = await combine(k, own, payload)
            x, state = unpack(add_lost_part(combined, own, payload), state, options.momentum)
        else:
            own = pack(x, state, options.momentum)
            payload = average.payload(own, "mix", k)
            combining = await worker.begin(combine(k, own, payload))
            gradient = await worker.gradient(x)
            combined = await worker.wait(combining)
            x, state = unpack(add_lost_part(combined, own, payload), state, options.momentum)
            x, state = worker.optimizer.update(x, gradient, state)
        await worker.publish(k, x)
