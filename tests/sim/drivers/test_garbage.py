"""A run leaves no cycles of objects, which would be kept until a full collection."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from paceline.sim.drivers.event import EventDriver
from tests.support.factory import make_job


@pytest.fixture(autouse=True)
def _only_what_is_asked_for() -> Iterator[None]:
    gc.collect()
    gc.freeze()  # what other tests have left is not looked at again
    gc.disable()
    yield
    gc.enable()
    gc.unfreeze()


@pytest.mark.parametrize(
    ("scheme", "options"),
    [("gossip", {"topology": "ring"}), ("ad_psgd", {}), ("all_reduce", {"overlap": True})],
)
def test_what_a_run_is_through_with_is_free_at_once(scheme: str, options: dict[str, Any]) -> None:
    job = make_job(
        scheme, options, workers=4, task="logistic", method="looped", transport="ideal", all_reduce="auto",
        cv=0.3, bandwidth_bytes_per_s=1e6,
    )  # fmt: skip
    cycles = []
    for _ in range(2):  # the first one also makes what is kept for all runs
        driver = EventDriver(job, [job.program(rank) for rank in range(4)], job.scorer())
        gc.collect()
        driver.run()
        cycles.append(gc.collect())
    assert cycles[1] == 0
