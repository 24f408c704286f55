"""HALoS: its recursion in numpy in a known order of events, and what crosses between sites."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from paceline.sim.compute.compute_settings import Straggler
from tests.support.factory import make_job, simulated, sites_of
from tests.support.quadratics import Array, close, finals_of, gradients_of, quadratic_job, start_of

STEPS, LR, BETA = 24, 0.05, 0.5
LASTS = (1.0, 1.13, 1.41, 2.07)
"""Seconds of each worker's gradient: no two workers are ever ready at the same time."""
SLOW = [Straggler(workers=(w,), slowdown=LASTS[w]) for w in (1, 2, 3)]
TWO_SITES = {"a": 2, "b": 2}


def _in_order() -> Iterator[tuple[int, int]]:
    """(worker, steps that it has done) whenever one ends a step."""
    queue = [(LASTS[worker], worker, 1) for worker in range(4)]
    while queue:
        time_s, worker, done = heapq.heappop(queue)
        yield worker, done
        if done < STEPS:
            heapq.heappush(queue, (time_s + LASTS[worker], worker, done + 1))


class _Server:
    """Delayed Nesterov, written for the learning rate h N of the paper's code."""

    def __init__(self, model: Array, lr: float, momentum: float, every: int) -> None:
        self.model, self.rate, self.b, self.every = model.copy(), lr * every, momentum, every
        self.m, self.sum, self.count = np.zeros_like(model), np.zeros_like(model), 0

    def arrive(self, g: Array) -> None:
        self.sum = self.sum + g
        self.count += 1
        step = g / self.every
        if self.count % self.every == 0:
            self.m = self.b * self.m + self.sum / self.every
            self.sum = np.zeros_like(self.m)
            step = step + self.b * self.m
        self.model = self.model - self.rate * step


def _sent(change: Array, left: Array, share: float) -> Array:
    """The largest elements of a change and of what is left, as they travel; ``left`` becomes the rest."""
    if share == 1:
        return change
    whole = change + left
    sent = np.zeros_like(whole)
    largest = np.argsort(-abs(whole), kind="stable")[: math.ceil(share * whole.size)]
    sent[largest] = whole[largest].astype(np.float32)
    left[:] = whole - sent
    return sent


@pytest.mark.parametrize(("exchange", "share"), [(2, 1.0), (3, 1.0), (3, 0.4)])
def test_is_its_recursion(exchange: int, share: float) -> None:
    """With ``share`` below 1, what travels is cut short; hosts of servers visit these without travelling."""
    options: dict[str, Any] = {
        "period": 3, "exchange": exchange, "alpha": 0.25, "local": {"every": 3}, "top": {"every": 2},
    }  # fmt: skip
    if share < 1:
        options["compression"] = {"top_k": {"share": share}}
    job = quadratic_job(
        "halos", options, workers=4, max_iterations=STEPS, lr=LR, momentum=BETA, stragglers=SLOW,
        network=sites_of(TWO_SITES),
    )  # fmt: skip
    gradients, x = gradients_of(job), start_of(job)
    began, m = x.copy(), np.zeros_like(x)
    servers = [_Server(x[0], 0.2, 0.9, 3) for _ in range(2)]
    top = _Server(x[0], 0.15, 0.5, 2)
    arrivals, merged = [0, 0], [x[0].copy(), x[0].copy()]
    away: Array | None = None
    left = np.zeros_like(x)

    def take_over(site: int, model: Array) -> None:
        before = servers[site].model
        servers[site].model = 0.75 * before + 0.25 * model
        merged[site] = merged[site] + servers[site].model - before

    for worker, done in _in_order():
        m[worker] = BETA * m[worker] + gradients(done - 1, x)[worker]
        x[worker] = x[worker] - LR * m[worker]
        site = worker // 2
        if done % 3 == 0:
            change = began[worker] - x[worker]
            servers[site].arrive(_sent(change, left[worker], share) if worker % 2 else change)
            arrivals[site] += 1
            x[worker] = began[worker] = servers[site].model
        if worker % 2:
            continue
        if site == 1 and away is not None:
            take_over(1, away)
            away = None
        if arrivals[site] >= exchange:
            arrivals[site] = 0
            change = merged[site] - servers[site].model
            top.arrive(_sent(change, left[worker], share) if site else change)
            merged[site] = servers[site].model
            if site == 1 and done < STEPS:
                away = top.model.copy()  # it has come back when the host looks again, after its next step
            else:
                take_over(site, top.model)
    assert top.count >= 4
    close(finals_of(job), x)


def test_only_servers_send_between_sites() -> None:
    job = make_job(
        "halos", {"period": 2, "exchange": 4}, workers=4, max_iterations=32, cv=0.3,
        network=sites_of(TWO_SITES),
    )  # fmt: skip
    sent = [(e.worker, e.peer) for e in simulated(job).events if e.operation == "send" and e.bytes]
    crossing = [pair for pair in sent if (pair[0] < 2) != (pair[1] < 2)]
    assert set(crossing) == {(0, 2), (2, 0)}
    assert set(sent) - set(crossing) == {(1, 0), (0, 1), (3, 2), (2, 3)}
    # 2 workers x 16 visits to a site's server, four of them for each visit to the global one
    assert crossing.count((2, 0)) == pytest.approx(2 * 16 / 4, abs=1)


def test_a_site_alone_goes_on_from_its_own_server() -> None:
    """One site: its server takes everything from the global one at every exchange, where alpha is 1."""
    options: dict[str, Any] = {
        "period": 1, "exchange": 1, "alpha": 1.0, "local": {"every": 1, "momentum": 0.0, "lr": 1.0},
        "top": {"every": 1, "momentum": 0.0, "lr": 1.0},
    }  # fmt: skip
    job = quadratic_job("halos", options, workers=1, max_iterations=STEPS, lr=LR)
    close(
        finals_of(job),
        finals_of(quadratic_job("local_sgd", {"period": 1}, workers=1, max_iterations=STEPS, lr=LR)),
    )
