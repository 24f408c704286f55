"""Convolutional networks on images from the user's folder: MNIST, CIFAR-10, CIFAR-100.

Pixels of each channel are scaled to mean 0 and variance 1. There is no augmentation.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from pydantic import Field
from torch import nn

from ...config.settings import Settings
from ...devices import constants
from ..supervised import Examples, initial_weights, supervised
from ..workload import Facts, Task, Workload
from .image_files import read_cifar, read_mnist

Tensor = torch.Tensor
Read = Callable[[str], tuple[Examples, Examples]]
MEASURED = 10_000
"""Training images over which the mean and the spread of the pixels are taken."""
METRICS = ("train_loss", "test_loss", "test_accuracy")


class ImageOptions(Settings):
    """Options of the tasks on images."""

    folder: str = Field(description="where the files of the data set are; nothing is downloaded")


class ResidualBlock(nn.Module):
    """Two convolutions with batch norm, added to what came in (padded with zeros where it grows)."""

    def __init__(self, before: int, channels: int, stride: int) -> None:
        super().__init__()
        self.stride, self.added = stride, channels - before
        self.first = nn.Conv2d(before, channels, 3, stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        """From [b, before, h, w] to [b, channels, h / stride, w / stride]."""
        found = self.second_norm(self.second(self.first_norm(self.first(x)).relu()))
        kept = nn.functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.added))
        return torch.relu(found + kept)


def resnet20(channels: int, classes: int) -> nn.Module:
    """ResNet-20 for 32 x 32 pixels, 0.27 million parameters. Source: He et al., CVPR 2016, section 4.2."""
    blocks: list[nn.Module] = []
    before = 16
    for width, stride in ((16, 1), (32, 2), (64, 2)):
        for number in range(3):
            blocks.append(ResidualBlock(before, width, stride if number == 0 else 1))
            before = width
    stem = (nn.Conv2d(channels, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))


class CentreCrop(nn.Module):
    """The middle 28 x 28 of 32 x 32 pixels."""

    def forward(self, x: Tensor) -> Tensor:
        """From [b, c, 32, 32] to [b, c, 28, 28]."""
        return x[:, :, 2:30, 2:30]


def cnn7(channels: int, classes: int) -> nn.Module:
    """The seven layers of the EASGD paper, with dropout. Source: Zhang et al., NeurIPS 2015, section 5."""
    return nn.Sequential(
        CentreCrop(),
        nn.Conv2d(channels, 64, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(64, 128, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(128, 64, 3), nn.ReLU(),
        nn.Flatten(), nn.Linear(256, 256), nn.ReLU(), nn.Dropout(0.5), nn.Linear(256, classes),
    )  # fmt: skip


def small_cnn(channels: int, classes: int) -> nn.Module:
    """Two convolutions of 5 x 5 with max-pooling, then a linear layer."""
    return nn.Sequential(
        nn.Conv2d(channels, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5, padding=2), nn.ReLU(), nn.AdaptiveMaxPool2d(7),
        nn.Flatten(), nn.Linear(32 * 49, classes),
    )  # fmt: skip


def _folder(options: Settings) -> str:
    assert isinstance(options, ImageOptions)
    return options.folder


def _facts(read: Read) -> Callable[[Settings, int], Facts]:
    return lambda options, seed: Facts(len(read(_folder(options))[0][0]), True, METRICS)


def _build(
    task: str, read: Read, make: Callable[[int, int], nn.Module], options: Settings, seed: int
) -> Workload:
    train, test = read(_folder(options))
    channels, classes = train[0].shape[1], int(train[1].max()) + 1
    seen = train[0][:MEASURED].float()
    mean, spread = (t.view(channels, 1, 1) for t in (seen.mean((0, 2, 3)), seen.std((0, 2, 3)).clamp_min(1)))

    scale = constants(mean, spread)

    def scaled(pixels: Tensor) -> Tensor:
        middle, width = scale(pixels.device)
        return (pixels.float() - middle) / width

    with initial_weights(seed):
        module = make(channels, classes)
    return supervised(task, module, nn.functional.cross_entropy, train, test, METRICS, scaled)


def build_mnist_cnn(options: Settings, seed: int) -> Workload:
    """A small convolutional network on MNIST, or any data set in its form; cross-entropy."""
    return _build("mnist-cnn", read_mnist, small_cnn, options, seed)


def build_cifar_cnn7(options: Settings, seed: int) -> Workload:
    """The seven-layer network of the EASGD paper on CIFAR-10 or CIFAR-100, with dropout; cross-entropy."""
    return _build("cifar-cnn7", read_cifar, cnn7, options, seed)


def build_cifar_resnet20(options: Settings, seed: int) -> Workload:
    """ResNet-20 on CIFAR-10 or CIFAR-100, with batch norm; cross-entropy."""
    return _build("cifar-resnet20", read_cifar, resnet20, options, seed)


FALLING = frozenset({"train_loss", "test_loss"})
MNIST_CNN = Task("mnist-cnn", ImageOptions, METRICS, FALLING, _facts(read_mnist), build_mnist_cnn)
CIFAR_CNN7 = Task("cifar-cnn7", ImageOptions, METRICS, FALLING, _facts(read_cifar), build_cifar_cnn7)
CIFAR_RESNET20 = Task(
    "cifar-resnet20", ImageOptions, METRICS, FALLING, _facts(read_cifar), build_cifar_resnet20
)
