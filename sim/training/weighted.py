"""Gradients as weighted sums over examples, with the norm of each example's own gradient."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..errors import KeyedError
from ..workloads.workload import Workload

SAMPLER_KEY = ("workload", "sampler")

Weighted = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]


def weighted_evaluation(workload: Workload) -> Weighted:
    """Build ``(x [d], inputs [m, ...], targets [m, ...], weights [m])`` -> gradient [d], loss, norms [m].

    Raises ``KeyedError`` where examples of this task have no gradients of their own.
    """
    if workload.num_buffers or workload.stochastic:
        why = "batch norm mixes the examples of a batch" if workload.num_buffers else "it has dropout"
        raise KeyedError(SAMPLER_KEY, f"task '{workload.task}' cannot weigh examples one by one: {why}")

    def loss(x: Tensor, example: Tensor, target: Tensor) -> Tensor:
        return workload.loss(x, example.unsqueeze(0), target.unsqueeze(0))

    each = torch.func.vmap(torch.func.grad_and_value(loss), in_dims=(None, 0, 0))

    def evaluate(
        x: Tensor, inputs: Tensor, targets: Tensor, weights: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        gradients, losses = each(x, inputs, targets)
        return weights @ gradients, weights @ losses, gradients.norm(dim=-1)

    return evaluate
