"""Batches of different sizes on real processes: one process with the whole batch takes the same steps."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.realrun.driver.one_run import run_job
from paceline.realrun.group.group import Group
from tests.support.cluster_pool import Pool
from tests.support.uneven import FORMS, SPLITS, in_one_process, job_of, off_by, split


def steps_of(group: Group, cases: list[tuple[list[int], Any, dict[str, Any]]]) -> list[float]:
    """In a process of the pool: how far its last model is from that of one process, of each case."""
    distances = []
    for sizes, scheme, workload in cases:
        job = job_of(sizes, scheme, **workload)
        measured = run_job(group, job, timeout_s=20.0, warm_up=False)
        assert measured.error is None
        distances.append(off_by(measured.final, in_one_process(job)))
    return distances


def check_distances(pool: Pool, cases: list[tuple[list[int], Any, dict[str, Any]]]) -> None:
    for distances in pool.ask(steps_of, cases=cases):
        assert len(distances) == len(cases)
        assert max(distances) < 1e-6, distances


@pytest.mark.parametrize(("scheme", "workload"), FORMS[:2], ids=str)
def test_drawn_splits(four: Pool, scheme: Any, workload: dict[str, Any]) -> None:
    check_distances(four, [(split(seed), scheme, workload) for seed in range(SPLITS)])


def test_every_scheme_that_averages(four: Pool) -> None:
    check_distances(four, [(split(50 + number), *form) for number, form in enumerate(FORMS[2:])])


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "workload"), FORMS[2:], ids=str)
def test_every_scheme_with_every_split(four: Pool, scheme: Any, workload: dict[str, Any]) -> None:
    check_distances(four, [(split(seed), scheme, workload) for seed in range(SPLITS)])
