"""Handwritten digits: the 1,797 images of 8 x 8 pixels that come with scikit-learn.

Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
import torch
from pydantic import Field

from sim import seeds
from sim.settings import Settings
from sim.workloads.modules import apply_flat, backward_segments, flatten
from sim.workloads.workload import Task, Workload

Tensor = torch.Tensor

NUM_TRAIN = 1437
"""Four fifths of the images; the split is the same for every seed."""


class DigitsMlpOptions(Settings):
    """Options of ``digits-mlp``."""

    hidden: int = Field(default=64, ge=1, description="width of the hidden layer")


@lru_cache(maxsize=1)
def _images() -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = seeds.generator(0, seeds.SHARED, "digits split").permutation(len(labels))
    return (
        torch.from_numpy((images[order] / 16.0).astype(np.float32)),
        torch.from_numpy(labels[order].astype(np.int64)),
    )


def build_mlp(options: Settings, seed: int) -> Workload:
    """A perceptron 64 - hidden - 10 with ReLU and cross-entropy."""
    assert isinstance(options, DigitsMlpOptions)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(seeds.generator(seed, seeds.SHARED, "initial model").integers(2**62)))
        module = torch.nn.Sequential(
            torch.nn.Linear(64, options.hidden), torch.nn.ReLU(), torch.nn.Linear(options.hidden, 10)
        )
    forward = apply_flat(module)
    inputs, targets = _images()
    train, held_out = slice(0, NUM_TRAIN), slice(NUM_TRAIN, None)

    def loss(x: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(forward(x, inputs), targets)

    @torch.no_grad()
    def score(x: Tensor) -> Mapping[str, float]:
        where = x.device
        guess = forward(x, inputs[held_out].to(where)).argmax(dim=1)
        return {
            "train_loss": loss(x, inputs[train].to(where), targets[train].to(where)).item(),
            "test_accuracy": (guess == targets[held_out].to(where)).double().mean().item(),
        }

    return Workload(
        task="digits-mlp",
        start=flatten(module),
        loss=loss,
        inputs=inputs[train],
        targets=targets[train],
        labels=targets[train],
        segments=backward_segments(module),
        score=score,
    )


DIGITS_MLP = Task(
    name="digits-mlp",
    options=DigitsMlpOptions,
    metrics=("train_loss", "test_accuracy"),
    falling=frozenset({"train_loss"}),
    num_examples=lambda options: NUM_TRAIN,
    build=build_mlp,
)
