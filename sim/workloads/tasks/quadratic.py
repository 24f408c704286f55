"""A noisy quadratic with known optimum.

    F(x) = (1/N) sum_j 1/2 sum_k h_k (x_k - z_jk)^2,   h_k from 1/condition to 1,   z_j ~ Normal(1, noise^2 I)

Its gradient on a batch is h * (x - mean of the batch's z), its optimum x* = mean of all z.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor

from ... import seeds
from ...config.limits import MAX_EXAMPLES, MAX_FACTOR, MAX_PARAMETERS
from ...config.settings import Settings
from ...devices import constants
from ..workload import Facts, Task, Workload

QUADRATIC_METRICS = ("train_loss", "suboptimality", "distance_to_optimum")


class QuadraticOptions(Settings):
    """Options of ``quadratic``."""

    dimension: int = Field(default=100, ge=1, le=MAX_PARAMETERS, description="number of parameters")
    examples: int = Field(default=4096, ge=1, le=MAX_EXAMPLES, description="number of training examples")
    condition: float = Field(default=10.0, ge=1, le=1e12, description="condition number")
    noise: float = Field(default=1.0, ge=0, le=MAX_FACTOR, description="spread of the examples")


def build(options: QuadraticOptions, seed: int) -> Workload:
    """The quadratic; starts at 0."""
    d = options.dimension
    draws = seeds.generator(seed, seeds.SHARED, "quadratic").standard_normal((options.examples, d))
    examples = torch.from_numpy(1.0 + options.noise * draws).float()
    curvature = torch.logspace(-1, 0, d, base=options.condition) if d > 1 else torch.ones(1)
    optimum = examples.double().mean(0)
    spread = 0.5 * (curvature.double() * (examples.double() - optimum).square().mean(0)).sum().item()
    curvature_on = constants(curvature)

    def loss(x: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        return 0.5 * (curvature_on(x.device)[0] * (x - inputs).square()).sum(-1).mean()

    def score(x: Tensor) -> Mapping[str, float]:
        away = x.double().cpu() - optimum
        excess = 0.5 * (curvature.double() * away.square()).sum().item()
        return {
            "train_loss": spread + excess,
            "suboptimality": excess,
            "distance_to_optimum": away.norm().item(),
        }

    return Workload(
        task="quadratic",
        start=torch.zeros(d),
        loss=loss,
        inputs=examples,
        targets=torch.zeros(options.examples),
        labels=None,
        segments=(("x", 0, d),),
        score=score,
        smoothness=curvature.max().expand(options.examples),
    )


def facts(options: QuadraticOptions, seed: int) -> Facts:
    """Facts about the examples, which have no classes."""
    d = options.dimension  # drawn, and averaged, with 64 bits
    return Facts(options.examples, False, QUADRATIC_METRICS, d, example_numbers=6 * d, activations=d)


QUADRATIC = Task("quadratic", QuadraticOptions, QUADRATIC_METRICS, facts, build)
