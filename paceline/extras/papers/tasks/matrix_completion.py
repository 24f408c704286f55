"""Matrix completion: a symmetric matrix of low rank from some of its entries, by its square root.

    F(X) = (size / 4) mean over the known (i, j) of (M_ij - x_i . x_j)^2,   M = A A^T

with X [size, rank] and A_ik ~ Normal(0, 1 / rank), so that F = |M - X X^T|^2 / (4 size) where all entries are
known. Every rotation X Q of a solution is a solution, and the mean of two solutions is none. The initial X is
0.1 times standard normal numbers.

Source: the illustration in Teng et al., NeurIPS 2019 (arXiv 1905.10395), with sizes of our own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from paceline.sim import seeds
from paceline.sim.config.limits import MAX_WIDTH
from paceline.sim.config.problems import mistake
from paceline.sim.config.settings import Settings
from paceline.sim.workloads.workload import Facts, Task, Workload

COMPLETION_METRICS = ("train_loss", "gradient_norm", "relative_error")
_START = 0.1


class MatrixCompletionOptions(Settings):
    """Options of ``matrix-completion``."""

    size: int = Field(default=40, ge=1, le=MAX_WIDTH, description="rows of the symmetric matrix")
    rank: int = Field(default=4, ge=1, le=MAX_WIDTH, description="rank of the matrix and of the solution")
    known: float = Field(default=1.0, gt=0, le=1, description="share of known entries")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.rank > self.size:
            raise mistake(f"a matrix of {self.size} rows has no larger rank than that", "rank")
        return self


def facts(options: MatrixCompletionOptions, seed: int) -> Facts:
    """Facts about the examples: every known entry is one; there are no classes."""
    n, rank = options.size, options.rank
    examples = max(1, round(options.known * n**2))
    whole = 10 * n**2 // examples  # the matrix itself, and the order of all its entries
    return Facts(examples, False, COMPLETION_METRICS, n * rank, example_numbers=whole, activations=3 * rank)


def build(options: MatrixCompletionOptions, seed: int) -> Workload:
    """The problem of one seed; an example is a known entry, its place the input."""
    n, rank = options.size, options.rank
    rng = seeds.generator(seed, seeds.SHARED, "matrix completion")
    root = torch.from_numpy(rng.standard_normal((n, rank))) / rank**0.5
    matrix = (root @ root.T).float()
    entries = torch.from_numpy(rng.permutation(n * n)[: facts(options, seed).num_examples])
    places = torch.stack([entries // n, entries % n], dim=1)
    values = matrix[places[:, 0], places[:, 1]]
    start = _START * torch.from_numpy(rng.standard_normal(n * rank)).float()

    def loss(x: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        rows = x.view(n, rank)
        entries = (rows[inputs[:, 0]] * rows[inputs[:, 1]]).sum(-1)
        return n / 4 * (targets - entries).square().mean()

    def score(x: Tensor) -> Mapping[str, float]:
        point = x.detach().cpu().requires_grad_()
        train_loss = loss(point, places, values)
        (gradient,) = torch.autograd.grad(train_loss, point)
        rows = x.view(n, rank).cpu()
        return {
            "train_loss": train_loss.item(),
            "gradient_norm": gradient.norm().item(),
            "relative_error": ((rows @ rows.T - matrix).norm() / matrix.norm()).item(),
        }

    return Workload(
        task="matrix-completion",
        start=start,
        loss=loss,
        inputs=places,
        targets=values,
        labels=None,
        segments=(("X", 0, n * rank),),
        score=score,
    )


MATRIX_COMPLETION = Task("matrix-completion", MatrixCompletionOptions, COMPLETION_METRICS, facts, build)
