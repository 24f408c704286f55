"""Handwritten digits: the 1,797 images of 8 x 8 pixels that come with scikit-learn.

Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from ... import seeds
from ...config.limits import MAX_WIDTH
from ...config.settings import Settings
from ..supervised import initial_weights, read_packaged, supervised
from ..workload import Examples, Facts, Task, Workload

NUM_TRAIN = 1437
"""Four fifths of the images; the split is the same for every seed."""
DIGITS_METRICS = ("train_loss", "test_accuracy")


class DigitsMlpOptions(Settings):
    """Options of ``digits-mlp``."""

    hidden: int = Field(default=64, ge=1, le=MAX_WIDTH, description="width of the hidden layer")


class DigitsCnnOptions(Settings):
    """Options of ``digits-cnn``."""

    channels: int = Field(
        default=16,
        ge=1,
        le=MAX_WIDTH,
        description="channels of the first convolution; the second has twice as many",
    )


@lru_cache(maxsize=1)
def _images() -> tuple[Tensor, Tensor]:
    # A row per image: 64 pixels from 0 to 16, then its digit. Importing scikit-learn would take a second.
    rows = gzip.decompress(read_packaged("sklearn", "scikit-learn", "datasets/data/digits.csv.gz"))
    table = np.loadtxt(io.BytesIO(rows), delimiter=",")
    table = table[seeds.generator(0, seeds.SHARED, "digits split").permutation(len(table))]
    return (
        torch.from_numpy((table[:, :-1] / 16.0).astype(np.float32)),
        torch.from_numpy(table[:, -1].astype(np.int64)),
    )


def examples() -> tuple[Examples, Examples]:
    """Images [N, 64] of numbers from 0 to 1 and their digits [N]: for training, and for the test."""
    inputs, targets = _images()
    return (inputs[:NUM_TRAIN], targets[:NUM_TRAIN]), (inputs[NUM_TRAIN:], targets[NUM_TRAIN:])


def facts(options: Settings, seed: int) -> Facts:
    """Facts about the digits, common to several tasks."""
    return Facts(NUM_TRAIN, True, DIGITS_METRICS)


def networks_on(
    name: str,
    side: int,
    examples: Callable[[], tuple[Examples, Examples]],
    facts: Callable[[Settings, int], Facts],
    source: str = "",
) -> tuple[Task, Task]:
    """The tasks ``NAME-mlp`` and ``NAME-cnn`` on images [N, side * side] of ten classes.

    ``facts``: of the images alone; ``source``: of these, for the documentation.
    """

    def facts_mlp(options: DigitsMlpOptions, seed: int) -> Facts:
        width = options.hidden
        parameters = (side**2 + 11) * width + 10
        return replace(facts(options, seed), num_parameters=parameters, activations=2 * width)

    def build_mlp(options: DigitsMlpOptions, seed: int) -> Workload:
        width = options.hidden
        with initial_weights(seed):
            module = nn.Sequential(nn.Linear(side**2, width), nn.ReLU(), nn.Linear(width, 10))
        return supervised(f"{name}-mlp", module, nn.functional.cross_entropy, *examples(), DIGITS_METRICS)

    def facts_cnn(options: DigitsCnnOptions, seed: int) -> Facts:
        c = options.channels
        parameters = 18 * c**2 + (20 * (side // 4) ** 2 + 12) * c + 10
        activations = 240 * c * side**2 // 64
        return replace(facts(options, seed), num_parameters=parameters, activations=activations)

    def build_cnn(options: DigitsCnnOptions, seed: int) -> Workload:
        c = options.channels
        with initial_weights(seed):
            module = nn.Sequential(
                nn.Unflatten(1, (1, side, side)),
                nn.Conv2d(1, c, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                nn.Conv2d(c, 2 * c, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                nn.Flatten(), nn.Linear(2 * c * (side // 4) ** 2, 10),
            )  # fmt: skip
        return supervised(f"{name}-cnn", module, nn.functional.cross_entropy, *examples(), DIGITS_METRICS)

    build_mlp.__doc__ = f"A perceptron {side**2} - hidden - 10 with ReLU and cross-entropy{source}."
    layers = "Two convolutions of 3 x 3 with ReLU and max-pooling, then a linear layer"
    build_cnn.__doc__ = f"{layers}{source or '; cross-entropy'}."
    return (
        Task(f"{name}-mlp", DigitsMlpOptions, DIGITS_METRICS, facts_mlp, build_mlp),
        Task(f"{name}-cnn", DigitsCnnOptions, DIGITS_METRICS, facts_cnn, build_cnn),
    )


DIGITS_MLP, DIGITS_CNN = networks_on("digits", 8, examples, facts)
