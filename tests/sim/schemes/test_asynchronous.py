"""AD-PSGD and asynchronous push-sum against short recursions in numpy, in a known order of events."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from paceline.sim import seeds, topology
from paceline.sim.compute.compute_settings import Straggler
from tests.support.quadratics import close, finals_of, gradients_of, quadratic_job, start_of

WORKERS, STEPS, LR, BETA = 4, 23, 0.1, 0.5
LASTS = (1.0, 1.13, 1.41, 2.07)
"""Seconds of each worker's gradient: no two workers are ever ready at the same time, but at the beginning."""

SLOW = [Straggler(workers=(w,), slowdown=LASTS[w]) for w in (1, 2, 3)]


def _in_order() -> Iterator[tuple[int, int]]:
    """(worker, steps it has done) whenever one begins, or ends its last step."""
    queue = [(0.0, worker, 0) for worker in range(WORKERS)]
    while queue:
        time_s, worker, done = heapq.heappop(queue)
        yield worker, done
        if done < STEPS:
            heapq.heappush(queue, (time_s + LASTS[worker], worker, done + 1))


def test_ad_psgd_is_its_recursion() -> None:
    """Gradients are made at the model before the swap, and applied to what it has become since."""
    job = quadratic_job(
        "ad_psgd", {}, workers=WORKERS, max_iterations=STEPS, lr=LR, momentum=BETA,
        stragglers=SLOW,
    )  # fmt: skip
    gradients, x = gradients_of(job), start_of(job)
    made, m, published = np.zeros_like(x), np.zeros_like(x), np.zeros_like(x)
    for worker, done in _in_order():
        if done:
            m[worker] = BETA * m[worker] + made[worker]
            x[worker] -= LR * m[worker]
            published[worker] = x[worker]
        if done == STEPS:
            continue
        made[worker] = gradients(done, x)[worker]
        if worker % 2 == 0:
            peer = (1, 3)[seeds.integer(job.seed, worker, "peer", done, 2)]
            x[[worker, peer]] = x[[worker, peer]].mean(0)
    close(finals_of(job), published)


def _out_neighbours(plan: topology.Plan, rank: int) -> Iterator[int]:
    return (peer for k in itertools.count() for peer in plan.at(k).destinations[rank])


@pytest.mark.parametrize("name", ["star", "one_peer_exponential"])
def test_asynchronous_push_sum_is_its_recursion(name: str) -> None:
    """What comes is added when it comes, also while a gradient is computed at an older model.

    What comes to a worker that is through goes on to one neighbour after another, up to one that steps.
    """
    job = quadratic_job(
        "sgp", {"topology": name, "asynchronous": True}, workers=WORKERS, max_iterations=STEPS, lr=LR,
        momentum=BETA, stragglers=SLOW,
    )  # fmt: skip
    gradients, x = gradients_of(job), start_of(job)
    plan = topology.plan(name, WORKERS, "column_stochastic")
    w = np.ones((WORKERS, 1))
    made, m, published = np.zeros_like(x), np.zeros_like(x), np.zeros_like(x)
    steps = set(range(WORKERS))
    onward = [_out_neighbours(plan, rank) for rank in range(WORKERS)]
    for worker, done in _in_order():
        if done:
            m[worker] = BETA * m[worker] + made[worker]
            x[worker] -= LR * m[worker]
            split = plan.at(done - 1).matrix[:, worker]
            held, kept = (x[worker].copy(), w[worker].copy()), split[worker]
            x[worker], w[worker] = kept * held[0], kept * held[1]
            published[worker] = x[worker] / w[worker]
            steps -= {worker} if done == STEPS else set()
            for receiver in plan.at(done - 1).destinations[worker]:
                last = receiver
                while last not in steps and steps:
                    last = next(onward[last])
                x[last] += split[receiver] * held[0]
                w[last] += split[receiver] * held[1]
        if done < STEPS:
            made[worker] = gradients(done, x / w)[worker]
    assert np.ptp(w) > 0.01
    assert w.sum() == pytest.approx(WORKERS, rel=1e-12)
    close(finals_of(job), published)
