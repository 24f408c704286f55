"""The event driver keeps the contract; times are exact."""

from __future__ import annotations

import pytest

from paceline.sim import errors
from tests.contract import cases, failures
from tests.contract.case import Case, Log, close_to, contract_job, says
from tests.support.factory import run_events


@pytest.mark.parametrize("case", cases.GOOD, ids=lambda case: case.name)
def test_keeps_the_contract(case: Case) -> None:
    logs: dict[int, Log] = {}
    run_events(contract_job(case, logs))
    for rank in range(case.workers):
        if case.said:
            assert close_to(says(logs[rank]), case.said[rank])
        if case.times:
            assert tuple(logs[rank].times) == case.times[rank]


@pytest.mark.parametrize("case", failures.FAILURES, ids=lambda case: case.name)
def test_reports_failures(case: Case) -> None:
    logs: dict[int, Log] = {}
    job = contract_job(case, logs)
    kind, words = case.error
    if kind:
        with pytest.raises(getattr(errors, kind), match=words):
            run_events(job, faults=dict(case.faults))
        return
    outcome = run_events(job, faults=dict(case.faults))
    assert outcome.status == "completed"  # by those who are still there
    assert "died" in outcome.message
    for rank, expected in enumerate(case.said):
        assert says(logs[rank]) == expected
