"""Federated averaging: its recursion in numpy, who takes part, and what it costs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from paceline.extras.papers.fedavg import participants
from tests.support.factory import make_job, simulated
from tests.support.quadratics import close, finals_of, gradients_of, quadratic_job, start_of

WORKERS, STEPS, PERIOD, LR, BETA = 5, 24, 4, 0.1, 0.9


@pytest.mark.parametrize(("participation", "number"), [(1.0, 5), (0.4, 2), (0.01, 1)])
def test_is_its_recursion(participation: float, number: int) -> None:
    """A worker's batches run on from where its last round has ended; its momentum does not."""
    options = {"period": PERIOD, "participation": participation}
    job = quadratic_job("fedavg", options, workers=WORKERS, max_iterations=STEPS, lr=LR, momentum=BETA)
    gradients, x = gradients_of(job), start_of(job)
    done = [0] * WORKERS
    for turn in range(STEPS // PERIOD):
        m = np.zeros_like(x)
        chosen = participants(job.seed, turn, WORKERS, number)
        assert len(chosen) == number
        for _ in range(PERIOD):
            for i in chosen:
                m[i] = BETA * m[i] + gradients(done[i], x)[i]
                x[i] = x[i] - LR * m[i]
                done[i] += 1
        x[:] = x[list(chosen)].mean(0)
    close(finals_of(job), x)


def test_all_workers_with_plain_sgd_are_local_sgd() -> None:
    same: dict[str, Any] = {"workers": WORKERS, "max_iterations": STEPS, "lr": LR}
    local = quadratic_job("local_sgd", {"period": PERIOD}, **same)
    close(finals_of(quadratic_job("fedavg", {"period": PERIOD}, **same)), finals_of(local))


def test_everybody_is_drawn_alike() -> None:
    counts = Counter(i for turn in range(2000) for i in participants(7, turn, 8, 3))
    assert set(counts) == set(range(8))
    assert max(abs(count - 750) for count in counts.values()) < 5 * np.sqrt(2000 * 3 / 8 * 5 / 8)


def test_who_does_not_take_part_computes_nothing() -> None:
    job = make_job("fedavg", {"period": 2, "participation": 0.25}, workers=4, max_iterations=8, seed=3)
    gradients = Counter(e.worker for e in simulated(job).events if e.operation == "gradient")
    expected = Counter(dict.fromkeys(range(4), 0))
    for turn in range(4):
        expected.update(dict.fromkeys(participants(3, turn, 4, 1), 2))
    assert gradients == Counter({i: count for i, count in expected.items() if count})


def test_what_is_left_out_of_a_change_waits_for_the_next_round_of_its_worker() -> None:
    options = {"period": PERIOD, "participation": 0.4, "compression": {"top_k": {"share": 0.4}}}
    job = quadratic_job("fedavg", options, workers=WORKERS, max_iterations=80, lr=0.04, every=80)
    plain = quadratic_job(
        "fedavg",
        {"period": PERIOD, "participation": 0.4},
        workers=WORKERS,
        max_iterations=80,
        lr=0.04,
        every=80,
    )
    found, expected = finals_of(job)[0], finals_of(plain)[0]
    assert np.abs(found - expected).max() < 0.3 * np.abs(expected - start_of(job)[0]).max()
