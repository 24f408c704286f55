"""The adaptive period: its recursion, the controller's fixed points, bytes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.extras.papers.adaptive_local_sgd import Period
from paceline.sim.errors import InputError
from paceline.sim.schemes import SCHEMES
from paceline.sim.training.learning_rate import Drops, LearningRate
from paceline.sim.training.optimizer import Sgd
from tests.support.factory import make_job, run_events, simulated
from tests.support.quadratics import close, finals_of, gradients_of, quadratic_job, start_of

WORKERS, LR, BETA = 4, 0.1, 0.9


def test_adaptive_local_sgd_is_its_recursion() -> None:
    steps, drop = 160, 60
    options = {"initial_period": 3, "calibration": 30, "warmup": 5}
    job = quadratic_job("adaptive_local_sgd", options, workers=WORKERS, max_iterations=steps)
    schedule = LearningRate(drops=Drops.model_validate({"at": (f"{drop} steps",), "factor": 0.1}))
    job = replace(job, optimizer=Sgd(LR, BETA, schedule=schedule))
    gradients, x = gradients_of(job), start_of(job)
    m = np.zeros_like(x)
    period, since, ratios, ups = 3, 0, [], 0
    for k in range(steps):
        lr = LR if k < drop else LR * 0.1
        m = BETA * m + gradients(k, x)
        x = x - lr * m
        since += 1
        if k >= 5 and since < period:
            continue
        spread = np.mean([np.sum((x[i] - x.mean(0)) ** 2) for i in range(WORKERS)])
        x[:] = x.mean(0)
        since = 0
        if 5 <= k < 35:
            ratios.append(spread / lr)
        elif k >= 35 and spread < 0.7 * lr * np.mean(ratios):
            period, ups = period + 1, ups + 1
        elif k >= 35 and spread > 1.3 * lr * np.mean(ratios):
            period = max(1, period - 1)
    assert ups >= 3  # the test sees a period that moves
    close(finals_of(job), x)


def _settled(period: Period, lr: float, noise: float = 1.0) -> Period:
    """The controller on the expected variance of fact 3, lr^2 p (constants dropped), until it rests."""
    for _ in range(1000):
        after = period.adapted(lr**2 * period.steps * noise, lr)
        if after == period:
            return period
        assert abs(after.steps - period.steps) == 1
        period = after
    raise AssertionError("never rests")


def test_fixed_points_of_the_controller() -> None:
    """Fact 7: after a tenfold drop of the learning rate the period climbs from 4 to 28, then to 280."""
    period = Period(4)
    for _ in range(25):
        period = period.calibrated(4 * 10.0**2, 10.0)
    assert period.ratio == 40.0
    assert _settled(period, 10.0).steps == 4
    first = _settled(period, 1.0)
    assert first.steps == 28
    assert _settled(first, 0.1).steps == 280
    assert _settled(replace(period, steps=60), 1.0).steps == 52
    assert _settled(replace(period, steps=3), 10.0, noise=100.0).steps == 1


@settings(max_examples=50)
@given(ratios=st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=30))
def test_calibration_is_a_mean(ratios: list[float]) -> None:
    period = Period(4)
    for ratio in ratios:
        period = period.calibrated(ratio * 0.5, 0.5)
    assert period.steps == 4
    assert period.ratio == pytest.approx(np.mean(ratios), rel=1e-9)


def test_a_climb_takes_the_sum_of_its_periods() -> None:
    """Fact 8: after a drop that leaves no variance every averaging adds 1: 4, 5, 6, ... steps apart."""
    options = {"initial_period": 4, "calibration": 40}
    job = quadratic_job("adaptive_local_sgd", options, max_iterations=40 + sum(range(4, 13)), lr=LR)
    drop = LearningRate(drops=Drops.model_validate({"at": ("40 steps",), "factor": 1e-6}))
    events = run_events(replace(job, optimizer=Sgd(LR, schedule=drop))).events
    steps = [e.step for e in events if e.worker == 0 and e.operation == "all_reduce"]
    apart = [later - earlier for earlier, later in pairwise([-1, *steps])]
    assert apart == [4] * 10 + list(range(4, 13))


def test_bytes_of_the_adaptive_period() -> None:
    """Its averagings, each with one number to everybody."""
    options = {"initial_period": 4, "calibration": 200}
    job = make_job("adaptive_local_sgd", options, task="digits-mlp", workers=WORKERS, max_iterations=40)
    model = 4 * job.start.numel()
    ring = 2 * (WORKERS - 1) / WORKERS * model
    run = simulated(job)
    expected = 10 * (ring + (WORKERS - 1) * 4) / 40
    assert run.bytes_sent / run.iterations / WORKERS == pytest.approx(expected, rel=1e-4)


def test_a_run_without_training_keeps_the_period() -> None:
    job = make_job("adaptive_local_sgd", {"initial_period": 4, "calibration": 4}, max_iterations=40)
    events = [e for e in simulated(job).events if e.worker == 0]
    assert sum(e.operation == "all_reduce" for e in events) == 10


@pytest.mark.parametrize(
    ("scheme", "options", "workers", "text"),
    [
        ("adaptive_local_sgd", {"initial_period": 8, "calibration": 7}, 4, "use at least 8"),
        ("adaptive_local_sgd", {}, 1, "use at least 2 workers"),
    ],
)
def test_what_cannot_work_is_refused(scheme: str, options: dict[str, Any], workers: int, text: str) -> None:
    found = SCHEMES[scheme]
    with pytest.raises(InputError, match=text):
        found.check(found.options(**options), workers)
