"""What APPFL loads by the path of a file and a name in it: the model, a client's examples, a metric."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import TensorDataset

from benchmarks.speed.work import Perceptron, Work

__all__ = ["Perceptron", "accuracy", "share_of"]


def share_of(worker: int, workers: int) -> tuple[TensorDataset, None]:
    """A client's examples, and none to validate with."""
    inputs, classes = Work(workers, 1).examples()
    return TensorDataset(inputs[worker], classes[worker]), None


def accuracy(classes: NDArray[Any], outputs: NDArray[Any]) -> float:
    """Share of examples whose largest output is that of their class."""
    return float((np.argmax(outputs, axis=-1) == classes).mean())
