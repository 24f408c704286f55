"""Handwritten digits: the 1,797 images of 8 x 8 pixels that come with scikit-learn.

Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998.
"""

from __future__ import annotations

import gzip
import importlib.util
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from ... import seeds
from ...config.limits import MAX_WIDTH
from ...config.settings import Settings
from ...seeds import Floats
from ..supervised import Examples, initial_weights, supervised
from ..workload import Facts, Task, Workload

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


def _load_digits() -> tuple[Floats, NDArray[np.int64]]:
    """Images [N, 64] of numbers from 0 to 16 and their digits [N], from scikit-learn's file.

    scikit-learn itself, which is slow to import, is the fallback where the file lies elsewhere.
    """
    package = importlib.util.find_spec("sklearn")
    places = package.submodule_search_locations if package is not None else None
    file = Path(next(iter(places or ()), "")) / "datasets" / "data" / "digits.csv.gz"
    if not file.is_file():
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        return images, labels.astype(np.int64)
    with gzip.open(file, "rt", encoding="ascii") as lines:
        table = np.loadtxt(lines, delimiter=",")
    return table[:, :-1], table[:, -1].astype(np.int64)


@lru_cache(maxsize=1)
def _images() -> tuple[Tensor, Tensor]:
    images, labels = _load_digits()
    order = seeds.generator(0, seeds.SHARED, "digits split").permutation(len(labels))
    return (
        torch.from_numpy((images[order] / 16.0).astype(np.float32)),
        torch.from_numpy(labels[order]),
    )


def examples() -> tuple[Examples, Examples]:
    """Images [N, 64] of numbers from 0 to 1 and their digits [N]: for training, and for the test."""
    inputs, targets = _images()
    return (inputs[:NUM_TRAIN], targets[:NUM_TRAIN]), (inputs[NUM_TRAIN:], targets[NUM_TRAIN:])


def facts(options: Settings, seed: int) -> Facts:
    """Facts about the digits, common to several tasks."""
    return Facts(NUM_TRAIN, True, DIGITS_METRICS)


def facts_mlp(options: DigitsMlpOptions, seed: int) -> Facts:
    """Facts about the digits, and the size of the perceptron."""
    width = options.hidden
    return replace(facts(options, seed), num_parameters=75 * width + 10, activations=2 * width)


def facts_cnn(options: DigitsCnnOptions, seed: int) -> Facts:
    """Facts about the digits, and the size of the convolutional network."""
    c = options.channels
    return replace(facts(options, seed), num_parameters=18 * c**2 + 92 * c + 10, activations=240 * c)


def _workload(task: str, module: nn.Module) -> Workload:
    train, test = examples()
    return supervised(task, module, nn.functional.cross_entropy, train, test, DIGITS_METRICS)


def perceptron(pixels: int, hidden: int) -> nn.Module:
    """A perceptron for images [b, pixels] of ten classes, with one hidden layer and ReLU."""
    return nn.Sequential(nn.Linear(pixels, hidden), nn.ReLU(), nn.Linear(hidden, 10))


def convolutional(side: int, channels: int) -> nn.Module:
    """Two convolutions of 3 x 3 with ReLU and max-pooling and a linear layer, for images [b, side * side]."""
    c = channels
    return nn.Sequential(
        nn.Unflatten(1, (1, side, side)),
        nn.Conv2d(1, c, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(c, 2 * c, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(2 * c * (side // 4) ** 2, 10),
    )  # fmt: skip


def build_mlp(options: DigitsMlpOptions, seed: int) -> Workload:
    """A perceptron 64 - hidden - 10 with ReLU and cross-entropy."""
    with initial_weights(seed):
        module = perceptron(64, options.hidden)
    return _workload("digits-mlp", module)


def build_cnn(options: DigitsCnnOptions, seed: int) -> Workload:
    """Two convolutions of 3 x 3 with ReLU and max-pooling, then a linear layer; cross-entropy."""
    with initial_weights(seed):
        module = convolutional(8, options.channels)
    return _workload("digits-cnn", module)


DIGITS_MLP = Task(
    "digits-mlp", DigitsMlpOptions, DIGITS_METRICS, frozenset({"train_loss"}), facts_mlp, build_mlp
)
DIGITS_CNN = Task(
    "digits-cnn", DigitsCnnOptions, DIGITS_METRICS, frozenset({"train_loss"}), facts_cnn, build_cnn
)
