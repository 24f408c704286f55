"""Convolutional networks on images: MNIST, CIFAR-10, CIFAR-100 from the user's folder, and enlarged digits.

Pixels of each channel are scaled to mean 0 and variance 1; digits are from 0 to 1. There is no augmentation.
Nothing is downloaded.

MNIST (and others of its form, such as Fashion-MNIST) is in four IDX files, optionally compressed with gzip:
http://yann.lecun.com/exdb/mnist. CIFAR-10 and CIFAR-100 are read in their binary version; the Python version
is pickled and therefore not read: https://www.cs.toronto.edu/~kriz/cifar.html.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from paceline.sim.config.settings import Settings
from paceline.sim.config.yaml_file import expand_home, read_bytes
from paceline.sim.devices import constants
from paceline.sim.errors import InputError
from paceline.sim.workloads.supervised import initial_weights, supervised
from paceline.sim.workloads.tasks import digits
from paceline.sim.workloads.workload import Examples, Facts, Task, Workload

IDX_FILES = (
    ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
)
CIFAR_10_FILES = (tuple(f"data_batch_{k}.bin" for k in range(1, 6)), ("test_batch.bin",))
CIFAR_100_FILES = (("train.bin",), ("test.bin",))
CIFAR_PIXELS = 3 * 32 * 32
MAX_IMAGE_BYTES = 512 * 2**20
"""Largest file that is read, unpacked."""
LEAST_PIXELS = 2
"""Fewest rows and columns of an image, which pooling halves."""


@lru_cache(maxsize=2)
def read_mnist(folder: str) -> tuple[Examples, Examples]:
    """Images [N, 1, rows, columns], uint8, and classes [N]: for training, and for the test.

    Raises ``InputError`` where a file is missing, or is not what its name says.
    """
    where = expand_home(folder)
    train, test = (
        (
            torch.from_numpy(_read_idx(where / images, 3)).unsqueeze(1),
            torch.from_numpy(_read_idx(where / labels, 1)).long(),
        )
        for images, labels in IDX_FILES
    )
    for images, labels in (train, test):
        if len(images) != len(labels) or len(images) == 0:
            raise InputError(f"{where}: {len(images)} images have {len(labels)} labels")
    sizes = [tuple(images.shape[2:]) for images, _ in (train, test)]
    if sizes[0] != sizes[1] or min(sizes[0]) < LEAST_PIXELS:
        rows = ", ".join(f"{height} x {width}" for height, width in sizes)
        raise InputError(
            f"{where}: images to train and to test on have {rows} pixels; both have the same size, of at "
            f"least {LEAST_PIXELS} x {LEAST_PIXELS}"
        )
    return train, test


def _read_idx(path: Path, dimensions: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """An IDX file of bytes: two zeros, type 8, the number of dimensions, each of them, the data."""
    data = _read(path)
    if data[:4] != bytes([0, 0, 8, dimensions]):
        raise InputError(f"{path}: is not an IDX file of bytes in {dimensions} dimensions")
    shape = tuple(int(n) for n in np.frombuffer(data, ">u4", dimensions, 4))
    start = 4 + 4 * dimensions
    if len(data) - start != int(np.prod(shape, dtype=np.int64)):
        raise InputError(f"{path}: holds {len(data) - start} bytes of data; its head says {shape}")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape).copy()


@lru_cache(maxsize=2)
def read_cifar(folder: str) -> tuple[Examples, Examples]:
    """Images [N, 3, 32, 32], uint8, and classes [N], of CIFAR-10 or CIFAR-100 (the 100 fine classes).

    Raises ``InputError`` as ``read_mnist``.
    """
    where = expand_home(folder)
    hundred = (where / CIFAR_100_FILES[0][0]).exists()
    files, num_labels = (CIFAR_100_FILES, 2) if hundred else (CIFAR_10_FILES, 1)
    if not (where / files[0][0]).exists() and (where / "data_batch_1").exists():
        raise InputError(f"{where}: is the Python version, which is pickled; get the binary version")
    train, test = (_read_records([where / name for name in names], num_labels) for names in files)
    return train, test


def _read_records(paths: list[Path], num_labels: int) -> Examples:
    """Images and classes from records of ``num_labels`` bytes, of which the last counts, and the pixels."""
    rows = []
    for path in paths:
        data = np.frombuffer(_read(path), np.uint8)
        if len(data) == 0 or len(data) % (num_labels + CIFAR_PIXELS):
            text = f"is not a whole number of records of {num_labels + CIFAR_PIXELS}"
            raise InputError(f"{path}: has {len(data)} bytes, which {text}")
        rows.append(data.reshape(-1, num_labels + CIFAR_PIXELS))
    every = np.concatenate(rows)
    images = torch.from_numpy(every[:, num_labels:].reshape(-1, 3, 32, 32).copy())
    return images, torch.from_numpy(every[:, num_labels - 1].astype(np.int64))


def _read(path: Path) -> bytes:
    packed = path.with_name(path.name + ".gz")
    try:
        if packed.exists() and not path.exists():
            with gzip.GzipFile(fileobj=io.BytesIO(read_bytes(packed, MAX_IMAGE_BYTES))) as file:
                data = file.read(MAX_IMAGE_BYTES + 1)
            if len(data) > MAX_IMAGE_BYTES:
                raise InputError(f"{packed}: holds more than {MAX_IMAGE_BYTES // 2**20} MiB")
            return data
        return read_bytes(path, MAX_IMAGE_BYTES)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None


Read = Callable[[str], tuple[Examples, Examples]]
MEASURED_EXAMPLES = 10_000
"""Training images for the mean and the spread of the pixels."""
IMAGE_METRICS = ("train_loss", "test_loss", "test_accuracy")
DIGITS_SCORED = 256
"""Enlarged digits in the mean of the training loss."""


class ImageOptions(Settings):
    """Options of the tasks on images."""

    folder: str = Field(description="folder of the data set's files; nothing is downloaded")


class ResidualBlock(nn.Module):
    """Two convolutions with batch norm, added to the input (padded with zeros where it grows)."""

    def __init__(self, before: int, channels: int, stride: int) -> None:
        super().__init__()
        self.stride, self.added = stride, channels - before
        self.first = nn.Conv2d(before, channels, 3, stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs [b, channels, h / stride, w / stride] for inputs ``x`` [b, before, h, w]."""
        change = self.second_norm(self.second(self.first_norm(self.first(x)).relu()))
        kept = nn.functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.added))
        return torch.relu(change + kept)


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


def cnn7(channels: int, classes: int) -> nn.Module:
    """The seven layers of the EASGD paper, with dropout. Source: Zhang et al., NeurIPS 2015, section 5."""
    return nn.Sequential(
        nn.ZeroPad2d(-2),  # the middle 28 x 28 of 32 x 32 pixels
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


def _task(name: str, read: Read, make: Callable[[int, int], nn.Module], text: str) -> Task:
    """The task that trains ``make(channels, classes)`` on the images that are ``read``; ``text`` says so."""

    def facts(options: ImageOptions, seed: int) -> Facts:
        return Facts(len(read(options.folder)[0][0]), True, IMAGE_METRICS)

    def build(options: ImageOptions, seed: int) -> Workload:
        train, test = read(options.folder)
        channels = train[0].shape[1]
        classes = int(max(labels.max() for _, labels in (train, test))) + 1
        seen = train[0][:MEASURED_EXAMPLES].float()
        moments = seen.mean((0, 2, 3)), seen.std((0, 2, 3)).clamp_min(1)
        scale = constants(*(each.view(channels, 1, 1) for each in moments))

        def scaled(pixels: Tensor) -> Tensor:
            middle, width = scale(pixels.device)
            return (pixels.float() - middle) / width

        with initial_weights(seed):
            module = make(channels, classes)
        return supervised(name, module, nn.functional.cross_entropy, train, test, IMAGE_METRICS, scaled)

    build.__doc__ = text
    return Task(name, ImageOptions, IMAGE_METRICS, facts, build)


def enlarge_digits(pixels: Tensor) -> Tensor:
    """Enlarge digits [b, 64] to CIFAR's size [b, 3, 32, 32]: every pixel becomes 4 x 4 grey ones."""
    rows = pixels.view(-1, 1, 8, 8).repeat_interleave(4, dim=2)
    return rows.repeat_interleave(4, dim=3).expand(-1, 3, -1, -1)


def build_digits_resnet20(options: Settings, seed: int) -> Workload:
    """ResNet-20 on scikit-learn's digits, enlarged to CIFAR's size, with batch norm; cross-entropy."""
    train, test = digits.examples()
    with initial_weights(seed):
        module = resnet20(3, 10)
    loss = nn.functional.cross_entropy
    return supervised(
        "digits-resnet20", module, loss, train, test, digits.DIGITS_METRICS, enlarge_digits, DIGITS_SCORED
    )


MNIST_CNN = _task(
    "mnist-cnn", read_mnist, small_cnn,
    "A small convolutional network on MNIST, or any data set in its form; cross-entropy.",
)  # fmt: skip
CIFAR_CNN7 = _task(
    "cifar-cnn7", read_cifar, cnn7,
    "The seven-layer network of the EASGD paper on CIFAR-10 or CIFAR-100, with dropout; cross-entropy.",
)  # fmt: skip
CIFAR_RESNET20 = _task(
    "cifar-resnet20", read_cifar, resnet20,
    "ResNet-20 on CIFAR-10 or CIFAR-100, with batch norm; cross-entropy.",
)  # fmt: skip
DIGITS_RESNET20 = Task(
    "digits-resnet20", Settings, digits.DIGITS_METRICS, digits.facts, build_digits_resnet20
)
