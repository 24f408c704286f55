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

from .. import topology
from ..errors import InputError
from ..program.worker import Worker
from . import scheme
from .common import exchange
from .common import held as memory


class GossipOptions(exchange.ExchangeOptions):
    """Options of ``gossip``."""

    order: Literal["adapt_then_combine", "combine_while_adapting"] = Field(
        default="adapt_then_combine",
        description="average after the step, or while the gradient is computed",
    )
    global_period: int | None = Field(
        default=None,
        ge=2,
        description="steps between averages of all workers, instead of neighbours (default: never)",
    )


def check(options: GossipOptions, units: int) -> None:
    """Raise ``InputError`` where the topology or its weights are not possible, or give no average."""
    if options.compression is not None and options.global_period is not None:
        raise InputError("compression and global_period do not go together; choose one of them")
    exchange.refuse_top_k(options.compression)
    plan = topology.plan(options.topology, units, options.weights)
    if not plan.row_stochastic:
        raise InputError(
            f"{plan.weights} weights on topology {plan.name} have rows that do not sum to 1:"
            " use weights: auto, or the scheme sgp"
        )


def cycle(options: GossipOptions, workers: int) -> int:
    """Number of steps after which graphs and global averages repeat; random graphs count as 1."""
    return math.lcm(scheme.cycle_of_graphs(options, workers), options.global_period or 1)


def collectives(options: GossipOptions) -> bool:
    """Whether all workers, or those inside a unit, average at once."""
    return options.global_period is not None or options.inside is not None


def held(options: GossipOptions, sizes: memory.Sizes) -> memory.Held:
    """Model and gradient; messages of the neighbours, and the average."""
    plan = topology.plan(options.topology, sizes.units or sizes.workers, options.weights)
    models, copies = sizes.message(options.momentum)
    coming = memory.most_neighbours(plan) * models / sizes.members
    encoded = memory.encoded_share(options.compression) * models / sizes.members
    inside = 1 if sizes.members > 1 else 0  # the mean gradient of its members
    beside = 1 if options.order == "combine_while_adapting" else 0  # the concurrent gradient
    in_flight = copies + encoded + coming + models + inside + beside + memory.REPLACED * models
    return memory.Held(optimizer=sizes.moments, in_flight=in_flight)


async def gossip(worker: Worker, options: GossipOptions) -> None:
    """Decentralised SGD: average with the neighbours of a topology at every step."""
    mixing = exchange.ModelExchange(worker, options.compression, options.momentum, options.inside)
    plan = topology.plan(options.topology, mixing.units.number, options.weights, worker.seed)
    x, state = worker.kept or worker.fresh()
    async for k in worker.steps():
        of_all = options.global_period is not None and (k + 1) % options.global_period == 0
        pattern = None if of_all else plan.at(k)
        if options.order == "adapt_then_combine":
            gradient = await mixing.units.gradient(x)
            stepped, state = worker.optimizer.update(x, gradient, state)
            x, state = await mixing.mix(k, stepped, state, pattern)
        else:
            mixed = await mixing.begin(k, x, state, pattern)
            gradient = await mixing.units.gradient(x)
            combined, state = await mixed()
            x, state = worker.optimizer.update(combined, gradient, state)
        await worker.publish(k, x, kept=(x, state))


GOSSIP: Final = scheme.Scheme(
    "gossip", gossip, GossipOptions, True, check, publishes=scheme.publishes_none, cycle=cycle,
    held=held, inside=lambda options: options.inside, collectives=collectives,
    shrinks=lambda options: True,
)  # fmt: skip
