"""One run with each kind of fault, predicted and measured."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.faults import measure, predict, probe_start_s

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]


@pytest.mark.parametrize(
    ("kind", "scheme", "changes", "within_pct"),
    [
        ("stop", "local_sgd", {"at": "2 s"}, 5),
        ("cut", "all_reduce", {"at_step": "10 steps", "back_after": "5 s"}, 10),
        (
            "kill",
            "gossip",
            {"at_step": "25 steps", "back_after": "3 s"},
            25,
        ),  # by the start
    ],
)
def test_a_run_with_a_fault_is_as_predicted(
    kind: str, scheme: str, changes: dict[str, Any], within_pct: float
) -> None:
    start_s = probe_start_s() if kind == "kill" else 0.0
    row = measure(predict(kind, scheme, start_s, steps=30, **changes), steps=30, **changes)
    assert row.same_models
    assert abs(row.error_pct) < within_pct
