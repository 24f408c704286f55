"""A process of many runs does not keep what they have held."""

from __future__ import annotations

import ctypes
import gc
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from paceline.sim.devices import COLLECTIONS, keep_freed_memory
from paceline.sim.drivers.event import EventDriver
from tests.support.factory import make_job


@pytest.fixture(autouse=True)
def _only_what_is_asked_for() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def run_and_forget() -> weakref.ref[EventDriver]:
    """A driver that has run and that nobody holds but itself."""
    job = make_job("gossip", {"topology": "ring"}, workers=3, max_iterations=2)
    driver = EventDriver(job, [job.program(rank) for rank in range(3)], job.scorer())
    driver.run()
    return weakref.ref(driver)


def test_a_run_frees_those_before_it_once_that_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(COLLECTIONS, "due_s", float("inf"))
    before = run_and_forget()
    run_and_forget()
    assert before() is not None
    COLLECTIONS.due_s = 0.0
    run_and_forget()
    assert before() is None
    assert COLLECTIONS.due_s > 0.0


def test_older_objects_are_left_alone_only_while_a_run_goes_on() -> None:
    run_and_forget()
    assert gc.get_freeze_count() == 0


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
        gc.freeze()  # what other tests have left is not looked at again
        driver.run()
        cycles.append(gc.collect())
        gc.unfreeze()
    assert cycles[1] == 0


def test_a_run_looks_for_garbage_where_there_is_more_than_its_workers_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    during: list[tuple[int, int, int]] = []
    loop = EventDriver._loop

    def watched(driver: EventDriver) -> None:
        during.append(gc.get_threshold())
        loop(driver)

    monkeypatch.setattr(EventDriver, "_loop", watched)
    usual = gc.get_threshold()
    for youngest in (1, 10**6, 0):  # 0: somebody has switched it off
        try:
            gc.set_threshold(youngest, *usual[1:])
            run_and_forget()
            assert gc.get_threshold() == (youngest, *usual[1:])
        finally:
            gc.set_threshold(*usual)
    few, many, off = (threshold[0] for threshold in during)
    assert few > 3
    assert many == 10**6
    assert off == 0


def test_what_large_models_leave_goes_back_to_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    class Library:
        def mallopt(self, what: int, value: int) -> None:
            if what == -3:  # M_MMAP_THRESHOLD
                in_heap_bytes.append(value)

    in_heap_bytes: list[int] = []
    monkeypatch.setattr(ctypes, "CDLL", lambda _: Library())
    monkeypatch.setattr(sys, "platform", "linux")
    for model_bytes in (20_001, 4_000_001):  # sizes that no other test has, as each counts once
        keep_freed_memory(model_bytes)
    assert in_heap_bytes[0] > 20_001
    assert in_heap_bytes[1] < 4_000_001
