"""SlowMo: its recursion in numpy, and local SGD as its special case."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from paceline.sim.training.learning_rate import Drops, LearningRate
from paceline.sim.training.optimizer import Sgd
from tests.support.quadratics import close, finals_of, gradients_of, quadratic_job, start_of

WORKERS, STEPS, LR, BETA = 4, 23, 0.1, 0.9


@pytest.mark.parametrize("momentum", ["local", "mixed"])
@pytest.mark.parametrize("slow", [{}, {"slow_lr": 0.7, "slow_momentum": 0.6}], ids=["default", "set"])
@pytest.mark.parametrize("period", [1, 4])
def test_is_its_recursion(period: int, slow: dict[str, Any], momentum: str) -> None:
    """Also where the learning rate drops inside a period: that of its first step counts."""
    options = {"period": period, "momentum": momentum, **slow}
    job = quadratic_job("slowmo", options, workers=WORKERS, max_iterations=STEPS, lr=LR, momentum=BETA)
    drops = LearningRate(drops=Drops.model_validate({"at": ("10 steps",), "factor": 0.5}))
    job = replace(job, optimizer=Sgd(LR, BETA, schedule=drops))
    a, b = slow.get("slow_lr", 1.0), slow.get("slow_momentum", 0.5)
    gradients, x = gradients_of(job), start_of(job)
    m, u, t = np.zeros_like(x), np.zeros(x.shape[1]), x[0].copy()
    for k in range(STEPS):
        m = BETA * m + gradients(k, x)
        x = x - (LR if k < 10 else LR / 2) * m
        if (k + 1) % period == 0:
            lr = LR if k + 1 - period < 10 else LR / 2
            u = b * u + (t - x.mean(0)) / lr
            t = t - a * lr * u
            x[:] = t
            if momentum == "mixed":
                m[:] = m.mean(0)
    close(finals_of(job), x)


@pytest.mark.parametrize("momentum", ["local", "mixed"])
def test_without_slow_momentum_it_is_local_sgd(momentum: str) -> None:
    same: dict[str, Any] = {"workers": WORKERS, "max_iterations": STEPS, "lr": LR, "momentum": BETA}
    options = {"period": 4, "momentum": momentum}
    slow = quadratic_job("slowmo", {**options, "slow_momentum": 0.0}, **same)
    close(finals_of(slow), finals_of(quadratic_job("local_sgd", options, **same)))


def test_encoded_changes_count_from_the_slow_model() -> None:
    """Without rounding to speak of: 8 bits for each element and its own norm."""
    options = {"period": 4, "compression": {"qsgd": {"bits": 8, "bucket": 1}}}
    same: dict[str, Any] = {"workers": WORKERS, "max_iterations": STEPS, "lr": LR, "momentum": BETA}
    rough = finals_of(quadratic_job("slowmo", options, **same))
    plain = finals_of(quadratic_job("slowmo", {"period": 4}, **same))
    assert not np.array_equal(rough, plain)
    np.testing.assert_allclose(rough, plain, rtol=1e-5, atol=1e-6)
