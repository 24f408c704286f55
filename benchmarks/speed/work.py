"""The work that every side does: worker-iterations of the digits MLP with plain SGD, in batches of 32.

Nothing of Paceline is imported here: peers run in an environment of their own.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

FEATURES: Final = 64
CLASSES: Final = 10
BATCH_SIZE: Final = 32
LR: Final = 0.1
PERIOD: Final = 10
"""Steps between two averagings of local SGD."""
EXAMPLES: Final = 128
"""Examples of each worker, with replacement: the digits are too few for full batches of many workers."""


class Perceptron(torch.nn.Sequential):
    """The model: one hidden layer."""

    def __init__(self, hidden: int) -> None:
        super().__init__(torch.nn.Linear(FEATURES, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, CLASSES))


@dataclass(frozen=True)
class Work:
    """The size of the work.

    Attributes:
        workers: n.
        hidden: width of the hidden layer; the model has 64 h + h + 10 h + 10 parameters.
    """

    workers: int
    hidden: int

    @property
    def parameters(self) -> int:
        """Number of the model's parameters."""
        return (FEATURES + 1) * self.hidden + (self.hidden + 1) * CLASSES

    def module(self) -> Perceptron:
        """Build the model."""
        return Perceptron(self.hidden)

    def examples(self) -> tuple[Tensor, Tensor]:
        """Inputs [workers, EXAMPLES, 64] and classes [workers, EXAMPLES]."""
        from sklearn.datasets import load_digits

        digits = load_digits()
        random = torch.Generator().manual_seed(0)
        picked = torch.randint(len(digits.target), (self.workers, EXAMPLES), generator=random)
        inputs = torch.from_numpy(digits.data / 16).float()
        return inputs[picked], torch.from_numpy(digits.target).long()[picked]


def parse_work(arguments: list[str]) -> tuple[str, Work]:
    """Read ``WAY WORKERS HIDDEN``, as the programs of this folder are called."""
    parser = argparse.ArgumentParser()
    parser.add_argument("way")
    parser.add_argument("workers", type=int)
    parser.add_argument("hidden", type=int)
    given = parser.parse_args(arguments)
    return given.way, Work(given.workers, given.hidden)
