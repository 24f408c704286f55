"""Logistic regression on the digits: a convex problem with real data.

F(x) = (1/N) sum_j cross_entropy(W a_j + b, class of j) + l2/2 |x|^2,   x = (W, b)
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor

from ...config.limits import MAX_FACTOR
from ...config.settings import Settings
from ..workload import Task, Workload
from . import digits

NUM_PIXELS, NUM_CLASSES = 64, 10


class LogisticOptions(Settings):
    """Options of ``logistic``."""

    l2: float = Field(
        default=1e-3, ge=0, le=MAX_FACTOR, description="weight of the penalty l2/2 |x|^2, a part of the loss"
    )


def build(options: LogisticOptions, seed: int) -> Workload:
    """Multinomial logistic regression on the digits; starts at 0, strongly convex where l2 is above 0."""
    train, test = digits.examples()
    cut = NUM_CLASSES * NUM_PIXELS

    def scores_of_classes(x: Tensor, inputs: Tensor) -> Tensor:
        return torch.nn.functional.linear(inputs, x[:cut].view(NUM_CLASSES, NUM_PIXELS), x[cut:])

    def loss(x: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        fit = torch.nn.functional.cross_entropy(scores_of_classes(x, inputs), targets)
        return fit + 0.5 * options.l2 * x.square().sum()

    @torch.no_grad()
    def score(x: Tensor) -> Mapping[str, float]:
        guesses = scores_of_classes(x, test[0].to(x.device)).argmax(dim=1)
        return {
            "train_loss": loss(x, train[0].to(x.device), train[1].to(x.device)).item(),
            "test_accuracy": (guesses == test[1].to(x.device)).double().mean().item(),
        }

    return Workload(
        task="logistic",
        start=torch.zeros(cut + NUM_CLASSES),
        loss=loss,
        inputs=train[0],
        targets=train[1],
        labels=train[1],
        segments=(("bias", cut, cut + NUM_CLASSES), ("weight", 0, cut)),
        score=score,
        # Half the squared norm of the input and the bias's 1 bounds the softmax's curvature, and l2 is added.
        smoothness=0.5 * (train[0].square().sum(1) + 1) + options.l2,
    )


LOGISTIC = Task("logistic", LogisticOptions, digits.DIGITS_METRICS, digits.facts, build)
