"""Decentralised SGD: average with the neighbours of a topology at every step.

With d_j the step of the optimiser at g_j = grad F_j(x_j(k)) and W(k) the mixing matrix of step k:

    adapt_then_combine:      x_i(k+1) = sum_j W_ij(k) (x_j(k) - d_j(k))
    combine_while_adapting:  x_i(k+1) = sum_j W_ij(k) x_j(k) - d_i(k)

The second order sends x(k) while the gradient at x(k) is computed, so a step lasts as long as the longer of
the two. With ``global_period`` H every H-th combination is the mean over all workers. With ``momentum:
mixed`` the optimiser's buffers are combined too; for heavy-ball momentum b and adapt then combine:

    m_i(k+1) = sum_j W_ij(k) u_j,   x_i(k+1) = sum_j W_ij(k) (x_j(k) - lr u_j),   u_j = b m_j(k) + g_j

With ``compression`` Q each average is x_i + sum_j W_ij (Q(x_j) - Q(x_i)): the mean of all models is kept
where W is doubly stochastic. With ``inside`` the workers of a host (or of a site) act as one: they average
their gradients at every step, and the topology joins hosts (``inside.py``).

Bytes per step and worker: out-degree models, twice that with one mixed buffer; an all-reduce's in a global
step. Waits for: this step's neighbours, in both directions (a send completes when its receiver is ready), so
a straggler's delay spreads one hop a step; for all workers in a global step.

Source: combine while adapting is D-PSGD of Lian et al., NeurIPS 2017, AWC in BlueFog; adapt then combine is
ATC there, and what the code of Ying et al., NeurIPS 2021 (arXiv 2110.13363) runs on exponential graphs;
mixed momentum is their DmSGD (the paper's box is quoted from memory); the global period is Gossip-PGA of Chen
et al., ICML 2021 (arXiv 2105.09080).
"""

from __future__ import annotations

import math
from typing import Final, Literal

from pydantic import Field
from torch import Tensor

from .. import topology
from ..errors import InputError
from ..network.network import Network
from ..program import operations as ops
from ..program.encoding import Compression, Payload
from ..program.worker import Worker
from ..topology import MixingOptions
from .common.compressed import CompressedAllReduce, Momentum, add_lost_part, pack, refuse_top_k, unpack
from .common.held import REPLACED, Held, Sizes, encoded_share, most_neighbours
from .common.inside import Inside, Units, count_units
from .scheme import Scheme, cycle_of_graphs, publishes_none


class GossipOptions(MixingOptions):
    """Options of ``gossip``."""

    order: Literal["adapt_then_combine", "combine_while_adapting"] = Field(
        default="adapt_then_combine",
        description="average after the step, or while the gradient is computed",
    )
    momentum: Momentum = "local"
    global_period: int | None = Field(
        default=None,
        ge=2,
        description="steps between averages of all workers, instead of neighbours (default: never)",
    )
    compression: Compression | None = Field(
        default=None, description="encoding of models in transit (default: none)"
    )
    inside: Inside = None


def check(options: GossipOptions, workers: int) -> None:
    """Raise ``InputError`` where the topology or its weights are not possible, or give no average."""
    if options.compression is not None and options.global_period is not None:
        raise InputError("compression and global_period do not go together; choose one of them")
    refuse_top_k(options.compression)
    if options.inside is None:
        _check_plan(options, workers)


def check_network(options: GossipOptions, network: Network) -> None:
    """Raise ``InputError`` where the network's hosts or sites cannot act as one worker each."""
    if options.inside is not None:
        _check_plan(options, count_units(options.inside, network))


def _check_plan(options: GossipOptions, workers: int) -> None:
    plan = topology.plan(options.topology, workers, options.weights)
    if not plan.row_stochastic:
        raise InputError(
            f"{plan.weights} weights on topology {plan.name} have rows that do not sum to 1:"
            " use weights: auto, or the scheme sgp"
        )


def cycle(options: GossipOptions, workers: int) -> int:
    """Number of steps after which graphs and global averages repeat; random graphs count as 1."""
    return math.lcm(cycle_of_graphs(options, workers), options.global_period or 1)


def collectives(options: GossipOptions) -> bool:
    """Whether all workers, or those inside a unit, average at once."""
    return options.global_period is not None or options.inside is not None


def held(options: GossipOptions, sizes: Sizes) -> Held:
    """Model and gradient; messages of the neighbours, and the average."""
    plan = topology.plan(options.topology, sizes.units or sizes.workers, options.weights)
    travels = 1 + (sizes.moments if options.momentum == "mixed" else 0)
    copies = travels if travels > 1 else 0
    coming = most_neighbours(plan) * travels / sizes.members
    encoded = encoded_share(options.compression) * travels / sizes.members
    inside = 1 if sizes.members > 1 else 0  # the mean gradient of its members
    beside = 1 if options.order == "combine_while_adapting" else 0  # the concurrent gradient
    in_flight = copies + encoded + coming + travels + inside + beside + REPLACED * travels
    return Held(optimizer=sizes.moments, in_flight=in_flight)


async def gossip(worker: Worker, options: GossipOptions) -> None:
    """Decentralised SGD: average with the neighbours of a topology at every step."""
    units = Units(worker, options.inside)
    plan = topology.plan(options.topology, units.number, options.weights, worker.seed)
    x, state = worker.kept or worker.fresh()
    whole = pack(x, state, options.momentum).shape[-1]
    average = CompressedAllReduce(worker, options.compression, whole, units.members)

    def combine(k: int, value: Tensor, payload: Payload) -> ops.Operation[Tensor]:
        if options.global_period is not None and (k + 1) % options.global_period == 0:
            return ops.AllReduce(average.plain(value), units.across)
        return ops.Mix(units.pattern(plan.at(k)), payload)

    async for k in worker.steps():
        if options.order == "adapt_then_combine":
            gradient = await units.gradient(x)
            x, state = worker.optimizer.update(x, gradient, state)
            own = pack(x, state, options.momentum)
            shard = units.shard(own)
            payload = average.payload(shard, "mix", k)
            await average.spends(encoded=shard.shape[-1])
            combined = add_lost_part(await combine(k, shard, payload), shard, payload)
            await average.spends(decoded=shard.shape[-1], pattern=units.pattern(plan.at(k)))
            x, state = unpack(await units.gather(combined, own.shape[-1]), state, options.momentum)
        else:
            own = pack(x, state, options.momentum)
            shard = units.shard(own)
            payload = average.payload(shard, "mix", k)
            await average.spends(encoded=shard.shape[-1])
            combining = await worker.begin(combine(k, shard, payload))
            gradient = await units.gradient(x)
            combined = add_lost_part(await worker.wait(combining), shard, payload)
            await average.spends(decoded=shard.shape[-1], pattern=units.pattern(plan.at(k)))
            x, state = unpack(await units.gather(combined, own.shape[-1]), state, options.momentum)
            x, state = worker.optimizer.update(x, gradient, state)
        await worker.publish(k, x, kept=(x, state))


GOSSIP: Final = Scheme(
    "gossip", gossip, GossipOptions, True, check, publishes=publishes_none, cycle=cycle,
    check_network=check_network,
    held=held, inside=lambda options: options.inside, collectives=collectives,
    shrinks=lambda options: True,
)  # fmt: skip
