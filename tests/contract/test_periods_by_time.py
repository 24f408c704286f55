"""Periods by time on real processes: every worker has the models of a simulation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from paceline.realrun.driver.one_run import run_job
from paceline.realrun.group.group import Group
from paceline.sim.drivers.job import Job
from tests.support.cluster_pool import Pool
from tests.support.factory import run_events
from tests.support.uneven import job_of, off_by

BY_TIME = {"period": {"by": "time", "steps": 4}}
FORMS: list[dict[str, dict[str, Any]]] = [
    {"local_sgd": BY_TIME},
    {"post_local_sgd": {"switch_at": 2, **BY_TIME}},
    {"slowmo": BY_TIME},
    {"diloco": {**BY_TIME, "fragments": 2, "delay": 1}},
]


def job_by_time(scheme: dict[str, dict[str, Any]]) -> Job:
    """Workers of speeds 4, 2, 4 and 1, which take 12, 6, 12 and 3 steps."""
    job = job_of(8, scheme, optimizer={"adamw": {"lr": 0.01}})
    return replace(job, max_iterations=12)


def run_all(group: Group) -> list[float]:
    """In a process of the pool: how far its last model is from its own in a simulation, of each form."""
    distances = []
    for scheme in FORMS:
        job = job_by_time(scheme)
        measured = run_job(group, job, timeout_s=20.0, warm_up=False)
        assert measured.error is None
        distances.append(off_by(measured.final, run_events(job).finals[group.rank]))
    return distances


def test_real_processes_take_the_same_steps(four: Pool) -> None:
    for distances in four.ask(run_all):
        assert len(distances) == len(FORMS)
        assert max(distances) < 1e-6, distances
