"""The cluster driver keeps the contract on real processes; times are lower bounds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from realrun.group import Group
from realrun.run import run_job
from sim.errors import InputError
from tests import driver_contract
from tests.cluster_pool import Pool
from tests.driver_contract import Case, Log, close_to, contract_job, says
from tests.factory import make_job

TIMEOUT_S = 2.0


def run_case(group: Group, name: str) -> dict[str, Any]:
    """In a process of the pool: run a case and tell what this worker noted."""
    case = driver_contract.CASES[name]
    logs: dict[int, Log] = {}
    timeout_s = TIMEOUT_S if case.error[0] == "Deadlock" else 20.0
    measured = run_job(group, contract_job(case, logs), timeout_s=timeout_s, faults=dict(case.faults))
    log = logs[group.rank]
    return {
        "said": says(log),
        "times": log.times,
        "error": [type(measured.error).__name__, str(measured.error)] if measured.error else ["", ""],
        "run": [measured.run.status, measured.run.message] if measured.run else None,
    }


@pytest.fixture(scope="module")
def pools() -> Iterator[dict[int, Pool]]:
    started: dict[int, Pool] = {}
    yield started
    for pool in started.values():
        pool.close()


@pytest.mark.parametrize("case", driver_contract.GOOD, ids=lambda case: case.name)
def test_keeps_the_contract(case: Case, pools: dict[int, Pool]) -> None:
    if case.workers not in pools:
        pools[case.workers] = Pool(case.workers)
    answers = pools[case.workers].ask(run_case, name=case.name)
    assert answers[0]["run"] == ["completed", ""]
    for rank, answer in enumerate(answers):
        if case.said:
            assert close_to(answer["said"], list(case.said[rank])), answer
        if case.times:
            assert len(answer["times"]) == len(case.times[rank])
            for found, least in zip(answer["times"], case.times[rank], strict=True):
                assert found >= least - 1e-6


def refused(group: Group) -> list[str]:
    """In a process of the pool: jobs that cannot be run for real."""
    found = []
    for job in (
        make_job("gossip", {"topology": "ring"}, workers=group.size + 1),
        make_job("gossip", {"topology": "ring"}, workers=group.size, max_iterations=None),
        make_job("gossip", {"topology": "ring"}, workers=group.size, seed=1 + group.rank // 2),
    ):
        with pytest.raises(InputError) as caught:
            run_job(group, job)
        found.append(str(caught.value))
    return found


def test_jobs_that_do_not_fit_are_refused_and_others_follow(pools: dict[int, Pool]) -> None:
    pool = pools[3] if 3 in pools else pools.setdefault(3, Pool(3))
    for answer in pool.ask(refused):
        assert answer == [
            "the scenario has 4 workers, but 3 processes were started",
            "gossip: a real run of a synchronous scheme needs stop.max_iterations",
            "rank 2 has seed 2, the others have 1; start all ranks alike",
        ]
    assert pool.ask(run_case, name="mixes-3")[0]["run"] == ["completed", ""]


@pytest.mark.parametrize("case", driver_contract.FAILURES, ids=lambda case: case.name)
def test_reports_failures(case: Case) -> None:
    pool = Pool(case.workers)
    dead = [rank for rank, _ in case.faults]
    try:
        answers = pool.ask(run_case, name=case.name)
    finally:
        pool.close()
    kind, words = case.error
    alive = [answer for answer in answers if answer is not None]
    assert [rank for rank, answer in enumerate(answers) if answer is None] == dead
    for answer in alive:
        assert answer["error"][0] == kind
        assert re.search(words, answer["error"][1])
    (record,) = [answer["run"] for answer in alive if answer["run"] is not None]
    assert record[0] == "partial"
    if not kind:
        assert record[1] == f"worker {dead[0]} died"
        for answer, expected in zip(answers, case.said, strict=True):
            assert answer is None or answer["said"] == list(expected)
