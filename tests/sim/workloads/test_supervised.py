"""Losses of batches of models."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from paceline.sim.workloads.supervised import cross_entropy


@pytest.mark.parametrize("examples", [7, 32])
def test_the_cross_entropy_of_models_in_a_batch_is_that_of_torch_to_the_bit(examples: int) -> None:
    outputs = 3 * torch.randn(5, examples, 10, generator=torch.Generator().manual_seed(1))
    targets = torch.randint(0, 10, (5, examples), generator=torch.Generator().manual_seed(2))

    def loss_and_gradient(loss: Callable[[Tensor, Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        point = outputs.clone().requires_grad_()
        losses = torch.func.vmap(loss)(point, targets)
        (gradient,) = torch.autograd.grad(losses.sum(), point)
        return losses.detach(), gradient

    for own, of_torch in zip(
        loss_and_gradient(cross_entropy), loss_and_gradient(torch.nn.functional.cross_entropy), strict=True
    ):
        assert torch.equal(own, of_torch)
