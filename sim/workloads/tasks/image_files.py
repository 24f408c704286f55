"""The files in which MNIST and CIFAR are distributed, read from the user's folder. Nothing is downloaded.

MNIST (and what uses its form, such as Fashion-MNIST) is in four IDX files, which may be compressed with
gzip: http://yann.lecun.com/exdb/mnist. CIFAR-10 and CIFAR-100 are read in their binary version; the Python
version is pickled and therefore not read: https://www.cs.toronto.edu/~kriz/cifar.html.
"""

from __future__ import annotations

import gzip
import zlib
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from ...errors import InputError
from ..supervised import Examples

Tensor = torch.Tensor

IDX_FILES = (
    ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
)
CIFAR_10_FILES = (tuple(f"data_batch_{k}.bin" for k in range(1, 6)), ("test_batch.bin",))
CIFAR_100_FILES = (("train.bin",), ("test.bin",))
CIFAR_PIXELS = 3 * 32 * 32


@lru_cache(maxsize=2)
def read_mnist(folder: str) -> tuple[Examples, Examples]:
    """Images [N, 1, rows, columns], uint8, and classes [N]: those to train on, those to test on.

    Raises:
        InputError: a file is not there, or is not what its name says.
    """
    where = Path(folder).expanduser()
    train, test = (
        (
            torch.from_numpy(_idx(where / images, 3)).unsqueeze(1),
            torch.from_numpy(_idx(where / labels, 1)).long(),
        )
        for images, labels in IDX_FILES
    )
    for images, labels in (train, test):
        if len(images) != len(labels) or len(images) == 0:
            raise InputError(f"{where}: {len(images)} images have {len(labels)} labels")
    return train, test


def _idx(path: Path, dimensions: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
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

    Raises:
        InputError: a file is not there, or is not what its name says.
    """
    where = Path(folder).expanduser()
    hundred = (where / CIFAR_100_FILES[0][0]).exists()
    files, num_labels = (CIFAR_100_FILES, 2) if hundred else (CIFAR_10_FILES, 1)
    if not (where / files[0][0]).exists() and (where / "data_batch_1").exists():
        raise InputError(f"{where}: is the Python version, which is pickled; get the binary version")
    train, test = (_records([where / name for name in names], num_labels) for names in files)
    return train, test


def _records(paths: list[Path], num_labels: int) -> Examples:
    """Records of ``num_labels`` bytes, of which the last counts, and the pixels."""
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
            return gzip.decompress(packed.read_bytes())
        return path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
