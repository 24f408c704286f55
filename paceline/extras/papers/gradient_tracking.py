"""Decentralised SGD with corrections to plain gossip: for unequal data, and for compressed messages.

With d(y) the step of the optimiser along y, and W the mixing matrix:

``gradient_tracking``: each worker steps along y_i, its estimate of the mean gradient of all workers:

    y_i(k) = sum_j W_ij y_j(k-1) + g_i(k) - g_i(k-1),   y_i(0) = g_i(0)
    x_i(k+1) = sum_j W_ij (x_j(k) - d(y_j(k)))

The sum of all y is the sum of all gradients at every step, whatever W does, so that with a constant learning
rate and unequal data workers reach the common optimum, where ``gossip`` stops beside it. W has to be doubly
stochastic. With ``compression`` Q each average is v_i + sum_j W_ij (Q(v_j) - Q(v_i)), which keeps both sums.
Source: Pu and Nedic, Mathematical Programming 2021 (arXiv 1805.11454), DSGT; d is its learning rate times y
with plain SGD, other optimisers are ours.

``choco_sgd``: messages are changes of public copies, which all neighbours of a worker keep. With Q the
compression, v_j the public copy of worker j's model, v_j(0) = x(0), and consensus step size ``gamma``:

    x_i <- x_i - d(g_i)
    q_i = Q(x_i - v_i),   v_j <- v_j + q_j   for i and its neighbours j
    x_i <- x_i + gamma sum_j W_ij (v_j - v_i)

A part of a change lost in Q is in the next change, so models converge however little is sent, if gamma is
small enough; the mean of all models is kept. A worker stores only the sum of W_ij v_j, so W must be constant.
Without compression and
with gamma = 1 it is ``gossip``, adapt then combine. Source: Koloskova, Stich, Jaggi, ICML 2019
(arXiv 1902.00340), algorithm 2; v_j(0) = 0 there.
"""

from __future__ import annotations

from typing import Final

import torch
from pydantic import Field

from paceline.sim import topology
from paceline.sim.errors import InputError
from paceline.sim.program.encoding import Compression, decoded
from paceline.sim.program.worker import Worker
from paceline.sim.schemes.common.compressed import CompressedAllReduce
from paceline.sim.schemes.common.exchange import ModelExchange, refuse_top_k
from paceline.sim.schemes.common.held import REPLACED, Held, Sizes, encoded_share, most_neighbours
from paceline.sim.schemes.scheme import Scheme, cycle_of_graphs, publishes_none
from paceline.sim.topology import MixingOptions, Plan, TopologyEntry


class TrackingOptions(MixingOptions):
    """Options of ``gradient_tracking``."""

    compression: Compression | None = Field(
        default=None,
        description="encoding of model and tracked gradient in transit (default: none)",
    )


def check_tracking(options: TrackingOptions, workers: int) -> None:
    """Raise ``InputError`` where the weights would lose a part of the tracked gradients."""
    refuse_top_k(options.compression)
    _require_doubly_stochastic(topology.plan(options.topology, workers, options.weights))


def held_tracking(options: TrackingOptions, sizes: Sizes) -> Held:
    """Model, gradient, the previous and the tracked one; model and tracked gradient share a message."""
    plan = topology.plan(options.topology, sizes.workers, options.weights)
    encoded = encoded_share(options.compression)
    in_flight = 2 * (1 + encoded + most_neighbours(plan) + 1) + REPLACED
    return Held(optimizer=sizes.moments, anchors=2, in_flight=in_flight)


async def gradient_tracking(worker: Worker, options: TrackingOptions) -> None:
    """Gradient tracking: gossip in which each worker steps along its estimate of the mean gradient of all.

    Bytes per step and worker: 2 x out-degree models, in one message. Waits for: the neighbours of this step.
    """
    plan = topology.plan(options.topology, worker.size, options.weights, worker.seed)
    x, state = worker.kept or worker.fresh()
    exchange = ModelExchange(worker, options.compression)
    tracked = before = torch.zeros_like(x)  # anew after a fault: else y would lack the lost part
    async for k in worker.steps():
        gradient = await worker.gradient(x)
        tracked = tracked + (gradient - before)
        before = gradient
        stepped, state = worker.optimizer.update(x, tracked, state)
        both, state = await exchange.mix(k, torch.cat([stepped, tracked], dim=-1), state, plan.at(k))
        x, tracked = both.chunk(2, dim=-1)
        await worker.publish(k, x, kept=(x, state))


class ChocoOptions(MixingOptions):
    """Options of ``choco_sgd``."""

    topology: TopologyEntry = Field(description="topology of neighbours, the same at every step")
    gamma: float = Field(default=1.0, gt=0, le=1, description="consensus step size")
    compression: Compression | None = Field(
        default=None, description="encoding of changes of the public copies (default: none)"
    )


def check_choco(options: ChocoOptions, workers: int) -> None:
    """Raise ``InputError`` where graphs change, or a compression would not converge."""
    plan = topology.plan(options.topology, workers, options.weights)
    _require_doubly_stochastic(plan)
    if plan.period != 1:
        raise InputError(
            f"topology {plan.name} changes from step to step, but workers keep copies of the models of "
            "neighbours that stay: use a static one, for example ring"
        )
    top_k = None if options.compression is None else options.compression.top_k
    if top_k is not None and top_k.share < 1 and options.gamma == 1:
        raise InputError(
            "gamma: 1 diverges where top_k leaves elements out; write for example "
            f"'gamma: {min(0.5, max(0.01, round(top_k.share, 2))):g}'"
        )


def held_choco(options: ChocoOptions, sizes: Sizes) -> Held:
    """Model and gradient; the own public copy and the sum of the neighbours'; changes in transit."""
    plan = topology.plan(options.topology, sizes.workers, options.weights)
    change = encoded_share(options.compression) or 1
    return Held(optimizer=sizes.moments, anchors=2, in_flight=change + most_neighbours(plan) + 1)


async def choco_sgd(worker: Worker, options: ChocoOptions) -> None:
    """CHOCO-SGD: gossip of compressed changes, to copies of the neighbours' models that lose nothing.

    Bytes per step and worker: out-degree encoded models. Waits for: the neighbours.
    """
    pattern = topology.plan(options.topology, worker.size, options.weights, worker.seed).at(0)
    x, state = worker.kept or worker.fresh()
    average = CompressedAllReduce(worker, options.compression)
    public = neighbours = x
    if worker.kept:  # after a fault neighbours send their public copies again, whole
        neighbours = await worker.mix(pattern, x)
    async for k in worker.steps():
        gradient = await worker.gradient(x)
        x, state = worker.optimizer.update(x, gradient, state)
        change = average.payload(x - public, "mix", k)
        await average.spends(encoded=x.shape[-1])
        neighbours = neighbours + await worker.mix(pattern, change)
        await average.spends(decoded=x.shape[-1], pattern=pattern)
        public = public + decoded(change)
        x = x + options.gamma * (neighbours - public)
        await worker.publish(k, x, kept=(x, state))


def _require_doubly_stochastic(plan: Plan) -> None:
    if not (plan.row_stochastic and plan.column_stochastic):
        raise InputError(
            f"rows and columns of the mixing matrix have to sum to 1; those of topology {plan.name} with "
            f"{plan.weights} weights do not: use weights: metropolis on an undirected topology"
        )


GRADIENT_TRACKING: Final = Scheme(
    "gradient_tracking", gradient_tracking, TrackingOptions, True, check_tracking, publishes=publishes_none,
    cycle=cycle_of_graphs, held=held_tracking,
    shrinks=lambda options: True,
)  # fmt: skip
CHOCO_SGD: Final = Scheme(
    "choco_sgd", choco_sgd, ChocoOptions, True, check_choco, publishes=publishes_none, held=held_choco,
    shrinks=lambda options: True,
)  # fmt: skip
