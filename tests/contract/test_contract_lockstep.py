"""The lockstep driver keeps the part of the contract that has no ranks and no clock."""

from __future__ import annotations

import pytest

from paceline.sim.errors import SchemeError
from tests.contract import cases
from tests.contract.case import Case, Log, close_to, contract_job, says
from tests.contract.point_to_point import POINT_TO_POINT
from tests.support.lockstep import run_lockstep


@pytest.mark.parametrize("case", [c for c in cases.GOOD if c.lockstep], ids=lambda case: case.name)
def test_keeps_the_contract(case: Case) -> None:
    logs: dict[int, Log] = {}
    run_lockstep(contract_job(case, logs))
    for rank, expected in enumerate(case.said):
        assert close_to([value[rank] for value in says(logs[-1])], list(expected))


@pytest.mark.parametrize("case", POINT_TO_POINT, ids=lambda case: case.name)
def test_refuses_what_does_not_run_in_lockstep(case: Case) -> None:
    with pytest.raises(SchemeError, match="event driver"):
        run_lockstep(contract_job(case, {}))
