"""Optimisers as users write them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from paceline.sim.program.worker import Parameter

Moments = tuple[Tensor, ...]


class Lion:
    """Chen et al., arXiv 2302.06675, algorithm 2, without weight decay."""

    def __init__(self, lr: float = 1e-3, beta1: float = 0.9, beta2: float = 0.99) -> None:
        self.lr, self.beta1, self.beta2 = lr, beta1, beta2

    def init(self, x: Tensor) -> Moments:
        return (torch.zeros_like(x),)

    def update(self, x: Tensor, gradient: Tensor, moments: Moments, k: int) -> tuple[Tensor, Moments]:
        (mean,) = moments
        step = torch.sign(torch.lerp(gradient, mean, self.beta1))
        return x - self.lr * step, (torch.lerp(gradient, mean, self.beta2),)


class ByLayer:
    """SGD along each tensor's gradient at length 1; notes how long a moment of another length may be."""

    def __init__(self, parameters: tuple[Parameter, ...], lr: float) -> None:
        self.parameters, self.lr = parameters, lr

    def init(self, x: Tensor) -> Moments:
        return (x.new_zeros(len(self.parameters)), x.new_zeros(3 * len(x)))

    def update(self, x: Tensor, gradient: Tensor, moments: Moments, k: int) -> tuple[Tensor, Moments]:
        norms = torch.stack([each.of(gradient).norm() for each in self.parameters])
        lengths = [each.stop - each.start for each in self.parameters]
        scale = torch.repeat_interleave(norms + 1e-9, torch.tensor(lengths))
        return x - self.lr * gradient / scale, (moments[0] + norms, moments[1])


class Plain:
    """SGD."""

    def __init__(self, lr: float) -> None:
        self.lr = lr

    def init(self, x: Tensor) -> Moments:
        return ()

    def update(self, x: Tensor, gradient: Tensor, moments: Moments, k: int) -> tuple[Tensor, Moments]:
        return torch.add(x, gradient, alpha=-self.lr), moments


class InPlace(Plain):
    def update(self, x: Tensor, gradient: Tensor, moments: Moments, k: int) -> tuple[Tensor, Moments]:
        return x.sub_(gradient, alpha=self.lr), moments


class Short(Plain):
    def update(self, x: Tensor, gradient: Tensor, moments: Moments, k: int) -> tuple[Tensor, Moments]:
        return x[:1], moments


class Counting(Plain):
    def init(self, x: Tensor) -> Moments:
        return (torch.tensor(0),)


class Raising(Plain):
    def update(self, x: Tensor, gradient: Tensor, moments: Moments, k: int) -> tuple[Tensor, Moments]:
        raise ValueError("no")


class Doubled(Plain):
    def update(self, x: Tensor, gradient: Tensor, moments: Moments, k: int) -> tuple[Tensor, Moments]:
        return x.double(), moments


class Alone(Plain):
    def update(self, x: Tensor, gradient: Tensor, moments: Moments, k: int) -> Any:
        return x - self.lr * gradient


class Remembers(Plain):
    """As an optimiser of torch does."""

    def init(self, x: Tensor) -> Moments:
        self.mean = torch.zeros_like(x)
        return ()

    def update(self, x: Tensor, gradient: Tensor, moments: Moments, k: int) -> tuple[Tensor, Moments]:
        self.mean = 0.9 * self.mean + gradient
        return x - self.lr * self.mean, ()


class Accumulates(Remembers):
    def update(self, x: Tensor, gradient: Tensor, moments: Moments, k: int) -> tuple[Tensor, Moments]:
        self.mean.add_(gradient)
        return x - self.lr * self.mean, ()


def nothing(lr: float) -> int:
    return 3
