"""One case of the contract on real processes: how it is run, and what its workers must have noted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.realrun.driver.one_run import run_job
from paceline.realrun.group.group import Group
from paceline.realrun.transport.device import device_of
from tests.contract import cases
from tests.contract.case import Case, Log, close_to, contract_job, says
from tests.support import nccl_rules as nccl_rules  # its backend is known once it is imported
from tests.support.factory import placed

_BLOCKED_S = 2.0
_PATIENT_S = 20.0


def run_case(group: Group, name: str, backend: str) -> dict[str, Any]:
    """In a process of a pool: run a case and tell what this worker noted."""
    case = cases.CASES[name]
    logs: dict[int, Log] = {}
    timeout_s = _BLOCKED_S if case.error[0] == "Deadlock" else _PATIENT_S
    job = placed(contract_job(case, logs), device_of(backend, group.rank))
    measured = run_job(group, job, backend=backend, timeout_s=timeout_s, faults=dict(case.faults))
    log = logs[group.rank]
    return {
        "said": says(log),
        "times": log.times,
        "error": [type(measured.error).__name__, str(measured.error)] if measured.error else ["", ""],
        "run": [measured.run.status, measured.run.message] if measured.run else None,
    }


def broken_promises(case: Case, answers: Sequence[Any]) -> list[str]:
    """What the workers' answers to a case that does not fail should not be."""
    broken = []
    if answers[0] is None or answers[0]["run"] != ["completed", ""]:
        broken.append(f"{case.name}: {answers[0] and (answers[0]['run'] or answers[0]['error'])}")
    for rank, answer in enumerate(answers):
        if answer is None:
            broken.append(f"{case.name}: the process of worker {rank} has ended")
            continue
        if case.said and not close_to(answer["said"], list(case.said[rank])):
            broken.append(f"{case.name}: worker {rank} said {answer['said']}, not {case.said[rank]}")
        if case.times:
            late = [a >= b - 1e-6 for a, b in zip(answer["times"], case.times[rank], strict=False)]
            if len(answer["times"]) != len(case.times[rank]) or not all(late):
                broken.append(f"{case.name}: worker {rank} noted {answer['times']} for {case.times[rank]}")
    return broken
