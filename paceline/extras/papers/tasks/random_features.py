"""Regression in the random Fourier features of a Gaussian kernel, which all workers share.

    phi(x)_j = sqrt(2/M) cos(omega_j . x + b_j),   omega_j ~ Normal(0, width^2 I),   b_j uniform on [0, 2 pi)
    F(w) = (1/2N) sum_i (w . phi(x_i) - y_i)^2

so that E phi(x) . phi(x') = exp(-width^2 |x - x'|^2 / 2). The initial w is 0; there is no penalty, early
stopping regularises. With a batch as large as a worker's shard, ``gossip`` is decentralised gradient descent

    w_v <- sum_u P_vu (w_u - lr grad F_u(w_u)).

Source: Rahimi and Recht, NeurIPS 2007 (the features); Richards, Rebeschini and Rosasco, ICML 2020
(arXiv 2007.00360). The synthetic problem is ours: x ~ Normal(0, I), y = cos(2 a . x) + noise with |a| = 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from paceline.sim import seeds
from paceline.sim.config.limits import MAX_EXAMPLES, MAX_FACTOR, MAX_POSITIVE, MAX_WIDTH
from paceline.sim.config.settings import Settings
from paceline.sim.seeds import Floats
from paceline.sim.workloads.supervised import scaled_table
from paceline.sim.workloads.workload import Facts, Task, Workload

RANDOM_FEATURES_METRICS = ("train_loss", "test_loss", "test_accuracy")
SYNTHETIC_TESTED: Final = 2000
"""Test examples of the synthetic problem; without noise."""
KERNEL_HELD_OUT: Final = 5
"""One of this many examples of a real data set is for the test."""


class RandomFeaturesOptions(Settings):
    """Options of ``random-features``."""

    data: Literal["synthetic", "breast_cancer", "diabetes"] = Field(
        default="synthetic",
        description="a noisy cosine of one direction, or a data set of scikit-learn, features and targets "
        "scaled to mean 0 and variance 1 (targets of breast_cancer: -1 and 1)",
    )
    features: int = Field(default=200, ge=1, le=MAX_WIDTH, description="random features M, the model's size")
    width: float = Field(
        default=1.0,
        gt=0,
        le=MAX_POSITIVE,
        description="deviation of the frequencies: one over the kernel's width",
    )
    examples: int = Field(default=2000, ge=1, le=MAX_EXAMPLES, description="synthetic: training examples")
    dimension: int = Field(default=2, ge=1, le=MAX_WIDTH, description="synthetic: numbers of an example")
    noise: float = Field(default=0.5, ge=0, le=MAX_FACTOR, description="synthetic: deviation of the targets")


def fourier_features(points: Floats, features: int, width: float, seed: int) -> Floats:
    """phi of every point, from [N, k] to [N, features]; the seed alone decides the frequencies."""
    rng = seeds.generator(seed, seeds.SHARED, "random features")
    frequencies = width * rng.standard_normal((points.shape[1], features))
    shifts = rng.uniform(0, 2 * math.pi, features)
    mapped: Floats = points @ frequencies
    mapped += shifts
    np.cos(mapped, out=mapped)
    mapped *= math.sqrt(2 / features)
    return mapped


@lru_cache(maxsize=2)
def _read_table(data: str) -> tuple[Floats, Floats]:
    """A real data set, scaled, in an order that is the same for every seed."""
    points, targets = scaled_table(data)
    order = seeds.generator(0, seeds.SHARED, "random features split").permutation(len(targets))
    scaled = 2.0 * targets - 1 if data == "breast_cancer" else (targets - targets.mean()) / targets.std()
    return points[order], scaled[order]


def _examples(options: RandomFeaturesOptions, seed: int) -> tuple[Floats, Floats, int]:
    """Points [N, k] and targets [N], and the number of test examples at their end."""
    if options.data != "synthetic":
        points, targets = _read_table(options.data)
        return points, targets, len(targets) // KERNEL_HELD_OUT
    rng = seeds.generator(seed, seeds.SHARED, "synthetic regression")
    total = options.examples + SYNTHETIC_TESTED
    points = rng.standard_normal((total, options.dimension))
    direction = rng.standard_normal(options.dimension)
    targets = np.cos(2 * (points @ (direction / np.linalg.norm(direction))))  # no second copy of all points
    targets[: options.examples] += options.noise * rng.standard_normal(options.examples)
    return points, targets, SYNTHETIC_TESTED


def facts(options: RandomFeaturesOptions, seed: int) -> Facts:
    """Facts about the examples; those of a real data set are the same for every seed."""
    m = options.features  # computed with 64 bits
    if options.data == "synthetic":
        num_train = options.examples
        drawn = 2 * options.dimension * (num_train + SYNTHETIC_TESTED + m)  # points and frequencies, 64 bits
    else:
        total = len(_read_table(options.data)[1])
        num_train, drawn = total - total // KERNEL_HELD_OUT, 0
    example_numbers = 5 * m + -(-drawn // num_train)
    return Facts(num_train, True, RANDOM_FEATURES_METRICS, m, example_numbers=example_numbers, activations=m)


def build(options: RandomFeaturesOptions, seed: int) -> Workload:
    """Least squares in random Fourier features of a Gaussian kernel; starts at 0.

    The features of every example are computed once. ``test_loss`` of the synthetic problem is half the mean
    squared distance from the true function. An example's class, of which
    ``test_accuracy`` is the share that is right, is its target's sign.
    """
    points, values, tested = _examples(options, seed)
    mapped = fourier_features(points, options.features, options.width, seed)
    inputs, targets = torch.from_numpy(mapped).float(), torch.from_numpy(values).float()
    cut = len(targets) - tested

    def loss(w: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        return 0.5 * (inputs @ w - targets).square().mean()

    @torch.no_grad()
    def score(w: Tensor) -> Mapping[str, float]:
        guesses = inputs.to(w) @ w
        halves = 0.5 * (guesses - targets.to(w)).square()
        right = (guesses[cut:] > 0) == (targets[cut:].to(w) > 0)
        return {
            "train_loss": halves[:cut].mean().item(),
            "test_loss": halves[cut:].mean().item(),
            "test_accuracy": right.double().mean().item(),
        }

    return Workload(
        task="random-features",
        start=torch.zeros(options.features),
        loss=loss,
        inputs=inputs[:cut],
        targets=targets[:cut],
        labels=(targets[:cut] > 0).long(),
        segments=(("weight", 0, options.features),),
        score=score,
        smoothness=inputs[:cut].square().sum(1),
    )


RANDOM_FEATURES = Task("random-features", RandomFeaturesOptions, RANDOM_FEATURES_METRICS, facts, build)
