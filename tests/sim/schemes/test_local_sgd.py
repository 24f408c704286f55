"""Periodic averaging: recursions, exact facts of the fact sheets, bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from paceline.sim import seeds
from paceline.sim.records.run import Run
from tests.support.factory import make_job, simulated
from tests.support.quadratics import EXAMPLES, close, finals_of, gradients_of, quadratic_job, start_of

WORKERS, STEPS, LR, BETA = 4, 23, 0.1, 0.9


# --- trajectories against numpy -----------------------------------------------------------------


@pytest.mark.parametrize("momentum", ["local", "mixed"])
@pytest.mark.parametrize("warmup", [0, 4])
@pytest.mark.parametrize("period", [1, 3])
def test_local_sgd_is_its_recursion(period: int, warmup: int, momentum: str) -> None:
    options = {"period": period, "warmup": warmup, "momentum": momentum}
    job = quadratic_job("local_sgd", options, workers=WORKERS, max_iterations=STEPS, lr=LR, momentum=BETA)
    gradients, x = gradients_of(job), start_of(job)
    m = np.zeros_like(x)
    for k in range(STEPS):
        m = BETA * m + gradients(k, x)
        x = x - LR * m
        if k < warmup or (k - warmup) % period == period - 1:
            x[:] = x.mean(0)
            if momentum == "mixed":
                m[:] = m.mean(0)
    close(finals_of(job), x)


@pytest.mark.parametrize("momentum", ["local", "mixed"])
def test_post_local_sgd_is_its_recursion(momentum: str) -> None:
    options = {"switch_at": 7, "period": 4, "momentum": momentum}
    job = quadratic_job("post_local_sgd", options, workers=3, max_iterations=STEPS, lr=LR, momentum=BETA)
    gradients, x = gradients_of(job), start_of(job)
    m = np.zeros_like(x)
    for k in range(STEPS):
        g = gradients(k, x)
        m = BETA * m + (np.tile(g.mean(0), (3, 1)) if k < 7 else g)
        x = x - LR * m
        if k >= 7 and (k - 7) % 4 == 3:
            x[:] = x.mean(0)
            if momentum == "mixed":
                m[:] = m.mean(0)
    close(finals_of(job), x)


# --- exact facts --------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"period": 1}, {"period": 5}, {"period": 7, "warmup": 3}])
def test_equal_curvature_lets_the_mean_follow_synchronous_sgd(options: dict[str, Any]) -> None:
    """Linear gradients with the same Hessian: any schedule of averagings has the mean of FULLSGD."""
    job = quadratic_job("local_sgd", options, workers=WORKERS, max_iterations=STEPS, lr=LR)
    full = quadratic_job("all_reduce", {}, workers=WORKERS, max_iterations=STEPS, lr=LR)
    close(finals_of(job).mean(0), finals_of(full)[0])


def test_period_one_is_synchronous_sgd_from_equal_buffers() -> None:
    every = quadratic_job("local_sgd", {"period": 1}, max_iterations=STEPS, lr=LR, momentum=BETA)
    full = quadratic_job("all_reduce", {}, max_iterations=STEPS, lr=LR, momentum=BETA)
    close(finals_of(every), finals_of(full))


def test_models_are_equal_right_after_an_averaging() -> None:
    run = simulated(quadratic_job("local_sgd", {"period": 4}, max_iterations=12, lr=LR))
    apart = {e.step: e.metrics["consensus_distance"] for e in run.evaluations}
    assert [apart[k] for k in (0, 4, 8, 12)] == [0.0] * 4
    assert all(apart[k] for k in (1, 2, 3, 5, 11))


def _spread(curvature: float, lrs: list[float], *, workers: int, repeats: int, drift: bool = False) -> float:
    """Mean variance of the models after a window of local steps with unit noise (or a fixed drift)."""
    rng = seeds.generator(1, seeds.SHARED, "spread")
    b = np.linspace(-1.0, 1.0, workers)[None, :] if drift else np.zeros((1, workers))
    x = np.zeros((repeats, workers))
    for lr in lrs:
        noise = 0.0 if drift else rng.standard_normal((repeats, workers))
        x = x - lr * (curvature * x + b + noise)
    return float(np.mean((x - x.mean(1, keepdims=True)) ** 2))


@pytest.mark.parametrize(
    ("curvature", "lrs"),
    [(0.0, [0.1] * 10), (0.5, [0.1] * 10), (1.0, [0.2] * 60), (0.0, [0.3, 0.2, 0.1])],
    ids=["flat", "curved", "long", "changing learning rate"],
)
def test_variance_of_a_window(curvature: float, lrs: list[float]) -> None:
    """(1 - 1/n) sum_t lr_t^2 (1 - lr h)^2(p - 1 - t): facts 3, 4 and 6, by Monte Carlo."""
    n = 8
    weights = [
        lr**2 * np.prod([(1 - later * curvature) ** 2 for later in lrs[t + 1 :]]) for t, lr in enumerate(lrs)
    ]
    expected = (1 - 1 / n) * sum(weights)
    if len(set(lrs)) == 1 and curvature:
        q = (1 - lrs[0] * curvature) ** 2
        assert expected == pytest.approx((1 - 1 / n) * lrs[0] ** 2 * (1 - q ** len(lrs)) / (1 - q), rel=1e-12)
    found = _spread(curvature, lrs, workers=n, repeats=40_000)
    assert found == pytest.approx(expected, rel=0.02)


def test_variance_under_drift_grows_with_the_square_of_the_period() -> None:
    b = np.linspace(-1.0, 1.0, 6)
    for p in (1, 4, 9):
        found = _spread(0.0, [0.1] * p, workers=6, repeats=1, drift=True)
        assert found == pytest.approx(p**2 * 0.1**2 * np.mean(b**2), rel=1e-12)


@pytest.mark.parametrize(("period", "count"), [(1, 23), (3, 7), (8, 2), (24, 0)])
def test_averagings_of_a_constant_period(period: int, count: int) -> None:
    """Fact 8: floor(K / p) of them."""
    events = simulated(make_job("local_sgd", {"period": period}, max_iterations=STEPS)).events
    assert sum(e.worker == 0 and e.operation == "all_reduce" for e in events) == count


@pytest.mark.parametrize(
    ("scheme", "options"),
    [
        ("local_sgd", {"period": 3}),
        ("local_sgd", {"period": 5, "momentum": "mixed"}),
        ("adaptive_local_sgd", {"initial_period": 2, "calibration": 10}),
        ("post_local_sgd", {"switch_at": 4, "period": 3}),
    ],
)
def test_equal_shards_make_any_period_one_worker(scheme: str, options: dict[str, Any]) -> None:
    """Where all workers see the same data, averaging changes nothing."""
    one: dict[str, Any] = {"batch_size": EXAMPLES, "max_iterations": STEPS, "lr": LR, "momentum": BETA}
    alone = finals_of(quadratic_job("local_sgd", {"period": STEPS}, workers=1, **one))
    job = quadratic_job(scheme, options, workers=WORKERS, **one)
    assert job.problem is not None
    same = replace(job.problem.batches, shards=(np.arange(EXAMPLES),) * WORKERS)
    close(finals_of(replace(job, problem=replace(job.problem, batches=same))), np.tile(alone, (WORKERS, 1)))


# --- bytes, waiting, refusals -------------------------------------------------------------------


def _bytes_per_step(run: Run) -> float:
    return run.bytes_sent / run.iterations / WORKERS


@pytest.mark.parametrize(
    ("scheme", "options", "averagings"),
    [
        ("local_sgd", {"period": 4}, 10),
        ("local_sgd", {"period": 7}, 5),
        ("local_sgd", {"period": 6, "warmup": 4}, 10),
        ("local_sgd", {"period": 4, "momentum": "mixed"}, 20),
        ("post_local_sgd", {"switch_at": 8, "period": 4}, 16),
    ],
)
def test_bytes_are_those_of_the_all_reduces(scheme: str, options: dict[str, Any], averagings: int) -> None:
    job = make_job(scheme, options, task="digits-mlp", workers=WORKERS, max_iterations=40, momentum=0.9)
    model = 4 * job.start.numel()
    ring = 2 * (WORKERS - 1) / WORKERS * model
    assert _bytes_per_step(simulated(job)) == pytest.approx(averagings * ring / 40, rel=0.01)


def test_speed_up_of_a_period() -> None:
    """Fact 12: without stragglers a period p gains (1 + r) / (1 + r / p)."""
    job: dict[str, Any] = dict(workers=4, max_iterations=24, bandwidth_bytes_per_s=4.0, compute_s=1.0)
    full = simulated(make_job("all_reduce", **job)).wall_clock_s
    r = full / 24 - 1.0
    assert r == pytest.approx(1.5)  # 2 (n - 1) / n x 4 bytes at 4 bytes/s
    for p in (2, 8):
        every = simulated(make_job("local_sgd", {"period": p}, **job)).wall_clock_s
        assert full / every == pytest.approx((1 + r) / (1 + r / p), rel=1e-9)


@pytest.mark.slow
def test_a_period_averages_out_the_jitter() -> None:
    """Fact 12: the wait for the slowest of a window grows as sqrt(p), that of a step falls as 1 / sqrt(p)."""

    def waits_s(period: int) -> float:
        job = make_job(
            "local_sgd", {"period": period}, workers=16, max_iterations=640, compute_s=1.0, cv=0.1,
            every=640, record_events=False,
        )  # fmt: skip
        return simulated(job).wall_clock_s / 640 - 1.0

    every = waits_s(1)
    assert every == pytest.approx(0.1 * 1.77, rel=0.1)  # the largest of 16 normal numbers, in mean
    for period in (4, 16):
        assert waits_s(period) == pytest.approx(every / np.sqrt(period), rel=0.1)
