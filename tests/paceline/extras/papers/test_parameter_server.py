"""Elastic averaging and DOWNPOUR: recursions, closed forms, what is conserved, bytes, refusals."""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.sim.compute.compute_settings import Straggler
from paceline.sim.drivers.job import Job
from paceline.sim.errors import InputError
from paceline.sim.scenario.schema import parse
from paceline.sim.schemes import SCHEMES
from tests.support.closed_forms import bowl, double_well, line_job
from tests.support.factory import make_job, run_events, simulated
from tests.support.quadratics import Array, close, finals_of, gradients_of, quadratic_job, start_of

WORKERS, STEPS, LR = 4, 23, 0.1
ALPHA = 0.9 / WORKERS
SLOW = [Straggler(workers=(1,), slowdown=1.13), Straggler(workers=(2,), slowdown=1.41),
        Straggler(workers=(3,), slowdown=2.07)]  # fmt: skip
"""No two workers are ever ready at the same time, except at the beginning."""


# --- trajectories against numpy -----------------------------------------------------------------


@pytest.mark.parametrize("period", [1, 3])
@pytest.mark.parametrize(("scheme", "momentum"), [("easgd", 0.0), ("eamsgd", 0.8)])
def test_synchronous_elastic_averaging_is_its_recursion(scheme: str, momentum: float, period: int) -> None:
    options: dict[str, Any] = {"period": period} | ({"momentum": momentum} if momentum else {})
    job = quadratic_job(scheme, options, workers=WORKERS, max_iterations=STEPS, lr=LR)
    gradients, x = gradients_of(job), start_of(job)
    centre, v = x[0], np.zeros_like(x)
    for k in range(STEPS):
        old = x
        if k % period == 0:
            x = old - ALPHA * (old - centre)
            centre = centre + ALPHA * (old - centre).sum(0)
        v = momentum * v - LR * gradients(k, old + momentum * v)
        x = x + v
    close(finals_of(job), x)
    close(_leader_of(job), centre)


def _leader_of(job: Job) -> Array:
    leader = run_events(job).leader
    assert leader is not None
    return np.asarray(leader)


def _visits(duration: list[float], steps: int) -> list[tuple[int, int]]:
    """(worker, step) in the order in which steps begin."""
    queue = [(0.0, worker, 0) for worker in range(len(duration))]
    order = []
    while queue:
        time_s, worker, k = heapq.heappop(queue)
        order.append((worker, k))
        if k + 1 < steps:
            heapq.heappush(queue, (time_s + duration[worker], worker, k + 1))
    return order


@pytest.mark.parametrize("host", [0, 2])
@pytest.mark.parametrize("period", [1, 3])
@pytest.mark.parametrize(("scheme", "momentum"), [("easgd", 0.0), ("eamsgd", 0.8)])
def test_asynchronous_elastic_averaging_is_its_recursion(
    scheme: str, momentum: float, period: int, host: int
) -> None:
    options: dict[str, Any] = {"period": period, "asynchronous": True, "host": host}
    options |= {"momentum": momentum} if momentum else {}
    job = quadratic_job(scheme, options, workers=WORKERS, max_iterations=STEPS, lr=LR, stragglers=SLOW)
    gradients, x = gradients_of(job), start_of(job)
    centre, v = x[0], np.zeros_like(x)
    for worker, k in _visits([1.0, 1.13, 1.41, 2.07], STEPS):
        old = x[worker].copy()
        if k % period == 0:
            x[worker] = old - ALPHA * (old - centre)
            centre = centre + ALPHA * (old - centre)
        g = gradients(k, np.tile(old + momentum * v[worker], (WORKERS, 1)))[worker]
        v[worker] = momentum * v[worker] - LR * g
        x[worker] = x[worker] + v[worker]
    close(finals_of(job), x)


@pytest.mark.parametrize("period", [1, 3])
def test_downpour_is_its_recursion(period: int) -> None:
    job = quadratic_job(
        "downpour", {"period": period}, workers=WORKERS, max_iterations=STEPS, lr=LR / 4, stragglers=SLOW
    )
    gradients, x = gradients_of(job), start_of(job)
    centre, v = x[0].copy(), np.zeros_like(x)
    for worker, k in _visits([1.0, 1.13, 1.41, 2.07], STEPS):
        if k % period == 0:
            centre += v[worker]
            x[worker], v[worker] = centre, 0.0
        step = -LR / 4 * gradients(k, x)[worker]
        x[worker] += step
        v[worker] += step
    close(finals_of(job), x)


# --- closed forms -------------------------------------------------------------------------------

STARTS = (1.5, -0.5, 0.25, 2.0)


@pytest.mark.parametrize("steps", [1, 7, 30])
def test_modes_of_elastic_averaging_on_a_bowl(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Deviations contract by 1 - lr h - alpha; the mean and the centre follow a 2 x 2 matrix."""
    h = 0.7
    job = line_job(monkeypatch, "easgd", {"period": 1}, bowl(h), STARTS, lr=LR, max_iterations=steps)
    x, start = finals_of(job)[:, 0], np.array(STARTS)
    close(x - x.mean(), (1 - LR * h - ALPHA) ** steps * (start - start.mean()))
    matrix = np.array([[1 - LR * h - ALPHA, ALPHA], [0.9, 0.1]])
    mean, centre = np.linalg.matrix_power(matrix, steps) @ [start.mean(), 0.0]
    close([x.mean(), _leader_of(job)[0]], [mean, centre])


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("scheme", ["easgd", "eamsgd"])
def test_an_exchange_conserves_the_sum_of_workers_and_centre(
    monkeypatch: pytest.MonkeyPatch, scheme: str, asynchronous: bool
) -> None:
    """The centre's host is the last to end, so that it tells the last value."""
    options = {"period": 2, "asynchronous": asynchronous}
    slow = [Straggler(workers=(0,), slowdown=9)]
    job = line_job(
        monkeypatch, scheme, options, bowl(1.0), STARTS, lr=0.0, max_iterations=9, cv=0.5, latency_s=0.3,
        stragglers=slow,
    )  # fmt: skip
    outcome = run_events(job)
    assert outcome.leader is not None
    close(sum(x.item() for x in outcome.finals) + outcome.leader.item(), sum(STARTS))


@settings(max_examples=50)
@given(
    pull=st.floats(0.01, 1.0),
    order=st.lists(st.integers(0, 4), max_size=60),
    x=st.lists(st.floats(-10, 10), min_size=5, max_size=5),
)
def test_visits_in_any_order_conserve_the_sum_and_stay_within_the_hull(
    pull: float, order: list[int], x: list[float]
) -> None:
    centre, total, low, high = 0.0, sum(x), min(0.0, *x), max(0.0, *x)
    for worker in order:
        difference = pull / 5 * (x[worker] - centre)
        x[worker] -= difference
        centre += difference
        assert sum(x) + centre == pytest.approx(total, abs=1e-9)
        assert low - 1e-9 <= min(centre, *x) <= max(centre, *x) <= high + 1e-9


def test_elastic_workers_can_rest_where_the_gradient_is_not_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a double well, x = +-sqrt(1 - rho) with the centre on the hill between them, rho = alpha / lr."""
    rho, lr = 0.2, 0.4
    alpha, place = lr * rho, np.sqrt(1 - rho)
    options = {"period": 1, "pull": 2 * alpha}
    for starts in [(place, -place), (1.0, -1.0)]:
        job = line_job(
            monkeypatch,
            "easgd",
            options,
            double_well,
            starts,
            lr=lr,
            max_iterations=100,
            record_events=False,
            every=100,
        )
        x = finals_of(job)[:, 0]
        np.testing.assert_allclose(x, [place, -place], rtol=1e-9)
        assert abs(_leader_of(job)[0]) < 1e-12
        assert np.all(np.abs(x**3 - x) > 0.17)


def test_downpour_of_one_worker_is_sgd() -> None:
    job = quadratic_job("downpour", {"period": 1}, workers=1, max_iterations=STEPS, lr=LR)
    gradients, x = gradients_of(job), start_of(job)
    for k in range(STEPS):
        x = x - LR * gradients(k, x)
    close(finals_of(job), x)


def test_downpour_adds_the_updates_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slope every update is -lr: after K rounds of n workers the centre has moved by -lr n K."""
    job = line_job(monkeypatch, "downpour", {"period": 2}, lambda x: x, STARTS, lr=LR, max_iterations=13)
    close(_leader_of(job), [-LR * WORKERS * 12])


# --- bytes, waiting, refusals -------------------------------------------------------------------

MODEL = 4000.0


def _bytes(scheme: str, options: dict[str, Any], workers: int) -> float:
    """Per step, of all workers together, in models."""
    job = make_job(scheme, options, workers=workers, max_iterations=60, bytes_per_parameter=MODEL)
    return simulated(job).bytes_sent / 60 / MODEL


@pytest.mark.parametrize("workers", [2, 5, 8])
@pytest.mark.parametrize("period", [1, 4])
@pytest.mark.parametrize(
    ("scheme", "options"),
    [
        ("easgd", {}),
        ("eamsgd", {}),
        ("easgd", {"asynchronous": True}),
        ("eamsgd", {"asynchronous": True}),
        ("downpour", {}),
    ],
)
def test_bytes_are_two_models_a_period_for_all_but_one(
    scheme: str, options: dict[str, Any], workers: int, period: int
) -> None:
    found = _bytes(scheme, {"period": period, **options}, workers)
    assert found == pytest.approx(2 * (workers - 1) / period, rel=0.01)


def test_a_visitor_waits_for_nobody_but_the_host() -> None:
    """A worker that takes ten times as long delays nobody else, but all where they are synchronous."""

    def ends(asynchronous: bool) -> list[float | None]:
        slow = [Straggler(workers=(3,), slowdown=10)]
        options = {"period": 1, "asynchronous": asynchronous}
        job = make_job("easgd", options, workers=4, max_iterations=5, stragglers=slow, latency_s=0.125)
        return [account.ended_s for account in run_events(job).breakdowns]

    assert ends(True) == [5.0, 6.25, 6.25, 51.25]
    assert min(end for end in ends(False) if end is not None) > 40.0


@pytest.mark.parametrize(
    ("scheme", "options", "words"),
    [
        ("easgd", {"period": 0}, "greater than or equal to 1"),
        ("easgd", {"period": 4, "pull": 1.5}, "less than or equal to 1"),
        ("eamsgd", {"period": 4, "momentum": 1.0}, "less than 1"),
        ("downpour", {"period": 0}, "greater than or equal to 1"),
    ],
)
def test_bad_options_are_refused(scheme: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        SCHEMES[scheme].options(**options)


@pytest.mark.parametrize("scheme", ["easgd", "eamsgd", "downpour"])
def test_a_host_that_is_not_there_is_refused(scheme: str) -> None:
    options = SCHEMES[scheme].options.model_validate({"period": 4, "host": 4})
    with pytest.raises(InputError, match="no worker 4 to host the centre; ranks go from 0 to 3"):
        SCHEMES[scheme].check(options, 4)


def test_momentum_twice_is_refused() -> None:
    text = """
name: twice
workload: {task: quadratic, batch_size: 4, optimizer: {lr: 0.1, momentum: 0.9}}
cluster: {workers: 4, compute: {time: 1 s}, network: {latency: 1 ms, bandwidth: 1 Gbit/s}}
schemes: [{eamsgd: {period: 4}}]
stop: {max_iterations: 4}
"""
    with pytest.raises(
        InputError, match=r"schemes.0.eamsgd: has its own momentum, .* 'optimizer: {lr: ...}'"
    ):
        parse(text)
    assert parse(text.replace("period: 4", "period: 4, optimizer: {lr: 0.1}")).schemes[0].name == "eamsgd"
