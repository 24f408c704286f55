from __future__ import annotations

from typing import Any

import pytest

from paceline.reports import words
from paceline.sim.records.sweeps.content import steps_at, steps_between


def setting(workers: int, **steps: float | None) -> dict[str, Any]:
    rows = [
        {"scheme": "all_reduce", "label": label, "steps_to_target": count} for label, count in steps.items()
    ]
    return {"set": {"cluster.workers": workers}, "summary": rows}


def test_the_law_of_the_critical_batch_is_met_exactly() -> None:
    # S = 50, B = 24, batches of 4: 50 (1 + 6 / n).
    assert steps_at(4, {2: 200.0, 6: 100.0}) == pytest.approx(125.0)
    assert steps_at(6, {64: 50 * (1 + 6 / 64), 1: 350.0}) == pytest.approx(100.0)


def test_steps_are_estimated_at_doubled_numbers_of_workers_that_were_not_trained() -> None:
    found = steps_between([setting(2, a=200.0), setting(8, a=77.0), setting(24, a=62.5)])
    assert found == {"a": {4: pytest.approx(125.0), 16: pytest.approx(68.75)}}
    assert words.steps_between(found) == [
        "a: steps by a law between the ends, up to 17 % off in 15 checks: 125 at 4 and 69 at 16 workers"
    ]


def test_where_the_law_cannot_hold_nothing_is_estimated() -> None:
    more_with_more = setting(2, a=10.0, b=None, c=9.0), setting(16, a=12.0, b=5.0, c=None)
    assert steps_between(more_with_more) == {}
    assert steps_between([setting(2, a=10.0), setting(4, a=8.0)]) == {}
    others = [setting(2, a=9.0), setting(16, a=8.0)]
    for each in others:
        each["summary"][0]["scheme"] = "local_sgd"
    assert steps_between(others) == {}
    two_keys = [
        {**each, "set": {**each["set"], "seed": 1}} for each in (setting(2, a=9.0), setting(16, a=8.0))
    ]
    assert steps_between(two_keys) == {}
