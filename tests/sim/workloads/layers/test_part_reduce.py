"""Hybrid parallelism: one node's update for every number of groups, by part-reduce and part-broadcast."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from paceline.sim.program.groups import Groups
from paceline.sim.program.worker import Worker
from tests.support.factory import NoOptions, make_job, make_scheme, run_events

NODES, BATCH, STEPS, LR = 6, 12, 3, 0.5
WIDTHS = 5, 12, 6
"""Inputs, hidden, outputs of a perceptron with one hidden layer."""


def start() -> tuple[Tensor, ...]:
    """Weights of both layers [out, in], a batch of inputs and one of targets."""
    generator = torch.Generator().manual_seed(1)
    inputs, hidden, outputs = WIDTHS
    shapes = ((hidden, inputs), (outputs, hidden), (BATCH, inputs), (BATCH, outputs))
    return tuple(torch.randn(shape, dtype=torch.float64, generator=generator) for shape in shapes)


def trained_alone() -> tuple[Tensor, Tensor]:
    """The weights after some steps of one node on the whole batch."""
    first, second, inputs, targets = start()
    for _ in range(STEPS):
        weights = [w.clone().requires_grad_() for w in (first, second)]
        outputs = torch.relu(inputs @ weights[0].T) @ weights[1].T
        loss = 0.5 * (outputs - targets).square().sum() / BATCH
        first, second = (
            w.detach() - LR * g for w, g in zip(weights, torch.autograd.grad(loss, weights), strict=True)
        )
    return first, second


async def part_broadcast(worker: Worker, strip: Tensor, groups: Groups, members: int) -> Tensor:
    """All members' strips [rows, columns] below each other."""
    whole = await worker.all_gather_shards(strip.flatten(), strip.numel() * members, groups)
    return whole.view(-1, strip.shape[1])


async def part_reduce(worker: Worker, partial: Tensor, groups: Groups, members: int) -> Tensor:
    """This node's strip of the members' sum; zeros fill up the last one."""
    return members * await worker.reduce_scatter(partial.flatten(), groups)


@pytest.mark.parametrize("num_groups", [groups for groups in range(1, NODES + 1) if NODES % groups == 0])
def test_the_update_is_that_of_one_node(num_groups: int) -> None:
    size = NODES // num_groups
    inside = tuple(tuple(range(g * size, (g + 1) * size)) for g in range(num_groups))
    across = tuple(tuple(range(p, NODES, size)) for p in range(size))
    strips: dict[int, tuple[Tensor, Tensor]] = {}

    async def program(worker: Worker, options: NoOptions) -> None:
        group, position = divmod(worker.rank, size)
        first, second, inputs, targets = start()
        own_first, own_second = first.chunk(size)[position], second.chunk(size)[position]
        mine = inputs.chunk(NODES)[worker.rank]  # the examples that this node has read
        goal = targets.chunk(num_groups)[group].chunk(size, dim=1)[position]
        for _ in range(STEPS):
            x = await part_broadcast(worker, mine, inside, size)
            hidden = x @ own_first.T
            strip = torch.relu(hidden)
            activations = (await part_broadcast(worker, strip.T, inside, size)).T
            error = (activations @ own_second.T - goal) / BATCH
            below = await part_reduce(worker, (error @ own_second).T, inside, size)
            error_below = below.view(strip.shape[1], -1).T * (hidden > 0)
            own_first = await update(worker, own_first, error_below.T @ x)
            own_second = await update(worker, own_second, error.T @ activations)
        strips[worker.rank] = own_first, own_second

    async def update(worker: Worker, weights: Tensor, gradient: Tensor) -> Tensor:
        """Sum a strip's gradient across groups, step in the part that this node owns of it, and gather."""
        part = await part_reduce(worker, gradient, across, num_groups)
        stepped = weights.flatten()
        length = part.numel()
        own = stepped[worker.rank // size * length :][:length]
        stepped = await worker.all_gather_shards(
            torch.nn.functional.pad(own, (0, length - own.numel())) - LR * part, weights.numel(), across
        )
        return stepped.view_as(weights)

    run_events(make_job(make_scheme(program), workers=NODES, start=torch.zeros(1, dtype=torch.float64)))
    for layer, expected in enumerate(trained_alone()):
        for group in inside:
            whole = torch.cat([strips[rank][layer] for rank in group])
            torch.testing.assert_close(whole, expected, rtol=1e-12, atol=1e-12)
