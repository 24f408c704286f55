"""The cluster driver keeps the contract on real processes; times are lower bounds.

Once over gloo alone, and once with the pattern operations over a backend that allows no more than NCCL.
"""

from __future__ import annotations

import re

import pytest

from paceline.realrun.driver.one_run import run_job
from paceline.realrun.group.group import Group
from paceline.sim.errors import InputError
from tests.contract import cases, failures
from tests.contract.case import Case
from tests.contract.cluster_contract import broken_promises, run_case
from tests.support import nccl_rules
from tests.support.cluster_pool import Pool, Pools
from tests.support.factory import make_job

both_backends = pytest.mark.parametrize("backend", ["gloo", nccl_rules.NAME])


@both_backends
@pytest.mark.parametrize("case", cases.GOOD, ids=lambda case: case.name)
def test_keeps_the_contract(case: Case, backend: str, pools: Pools) -> None:
    answers = pools.of(case.workers).ask(run_case, name=case.name, backend=backend)
    assert broken_promises(case, answers) == []


def refused(group: Group) -> list[str]:
    """In a process of the pool: jobs that cannot be run for real."""
    refusals = []
    for job in (
        make_job("gossip", {"topology": "ring"}, workers=group.size + 1),
        make_job("gossip", {"topology": "ring"}, workers=group.size, max_iterations=None),
        make_job("gossip", {"topology": "ring"}, workers=group.size, seed=1 + group.rank // 2),
    ):
        with pytest.raises(InputError) as caught:
            run_job(group, job)
        refusals.append(str(caught.value))
    return refusals


def test_jobs_that_do_not_fit_are_refused_and_others_follow(pools: Pools) -> None:
    pool = pools.of(3)
    for answer in pool.ask(refused):
        assert answer == [
            "the scenario has 4 workers, but 3 processes were started",
            "gossip: a real run of a synchronous scheme needs stop.max_iterations",
            "rank 2 has seed 2, the others have 1; start all ranks alike",
        ]
    assert pool.ask(run_case, name="mixes-3", backend="gloo")[0]["run"] == ["completed", ""]


@pytest.mark.parametrize(
    ("case", "backend"),
    [
        *((case, "gloo") for case in failures.FAILURES),
        *(pytest.param(case, nccl_rules.NAME, marks=pytest.mark.slow) for case in failures.OF_PATTERNS),
    ],
    ids=lambda each: getattr(each, "name", each),
)
def test_reports_failures(case: Case, backend: str) -> None:
    pool = Pool(case.workers)
    dead = [rank for rank, _ in case.faults]
    try:
        answers = pool.ask(run_case, name=case.name, backend=backend)
    finally:
        pool.close()
    kind, words = case.error
    alive = [answer for answer in answers if answer is not None]
    assert [rank for rank, answer in enumerate(answers) if answer is None] == dead
    for answer in alive:
        assert answer["error"][0] == kind
        assert re.search(words, answer["error"][1])
    (record,) = [answer["run"] for answer in alive if answer["run"] is not None]
    assert record[0] == ("partial" if kind else "completed")  # by those who are still there
    if not kind:
        assert record[1] == f"worker {dead[0]} died"
        for answer, expected in zip(answers, case.said, strict=True):
            assert answer is None or answer["said"] == list(expected)
