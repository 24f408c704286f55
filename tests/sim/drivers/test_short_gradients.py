"""What the cluster driver does in its own thread: short gradients, and waits for collectives."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from torch._C._distributed_c10d import FileStore

from paceline.realrun.driver.one_run import run_job
from paceline.realrun.group import group as groups
from paceline.realrun.group.group import Group, meet
from paceline.realrun.transport.connections import CollectiveWait, PeerGone, ThreadPool
from paceline.sim.errors import RunError
from paceline.sim.program import operations as ops
from paceline.sim.program.worker import Worker
from tests.support.cluster_pool import ask_once
from tests.support.factory import make_job, make_scheme


@dataclass(frozen=True)
class _Asked(CollectiveWait):
    """A collective that is complete when it is said to be, and tells which limits it was given."""

    complete: list[bool]
    error: Exception | None = None
    limits_s: list[float] = field(default_factory=list)

    def __call__(self) -> None:
        if self.error is not None:
            raise self.error

    def within(self, limit_s: float) -> bool:
        self.limits_s.append(limit_s)
        return self.complete[0]


def test_only_where_nothing_else_is_under_way_the_oldest_collective_is_waited_for() -> None:
    threads = ThreadPool()
    first, second = _Asked([False]), _Asked([False])
    threads.poll("first", first)
    threads.poll("second", second)
    assert threads.next(0.5, {"first", "second"}) is None
    assert (first.limits_s, second.limits_s) == ([0.5], [0.0])
    second.complete[0] = True
    found = threads.next(0.5, {"first", "second"})
    assert found is not None
    assert found.token == "second"
    assert threads.next(0.0, {"first", "a message"}) is None
    assert first.limits_s == [0.5, 0.5, 0.0]


def test_beside_other_things_a_helper_thread_waits() -> None:
    threads = ThreadPool()
    here = threading.get_ident()
    seen: list[int] = []

    class Seen(_Asked):
        def __call__(self) -> None:
            seen.append(threading.get_ident())

    threads.poll("sum", Seen([False]))
    found = threads.next(5.0, {"sum", "a message"})
    assert found is not None
    assert found.token == "sum"
    assert found.error is None
    assert seen
    assert seen[0] != here
    threads.close()


def test_what_nobody_waits_for_any_more_is_dropped_and_failures_are_told() -> None:
    threads = ThreadPool()
    threads.poll("lost", _Asked([True]))
    threads.poll("broken", _Asked([True], PeerGone(3)))
    found = threads.next(0.0, {"broken"})
    assert found is not None
    assert found.token == "broken"
    assert isinstance(found.error, PeerGone)
    assert threads.next(0.0, set()) is None


@pytest.mark.timeout(20)
def test_a_wait_that_is_over_before_it_has_begun_ends() -> None:
    """An alarm that is due within a microsecond; Python's SimpleQueue would wait for ever."""
    for _ in range(2000):
        assert ThreadPool().next(1e-7, {"a message"}) is None


def test_an_outcome_that_is_there_comes_first() -> None:
    threads = ThreadPool()
    asked = _Asked([False])
    threads.poll("sum", asked)
    threads.call("gradient", lambda: 7)
    found = threads.next(5.0, {"sum", "gradient"})
    assert found is not None
    assert (found.token, found.result, asked.limits_s) == ("gradient", 7, [])


def raises_after_a_segment(group: Group) -> list[str]:
    """In a process of a pool of two: the scheme's own error, from within its backward pass."""
    main_thread = threading.get_ident()
    seen: list[bool] = []

    async def main(worker: Worker, options: Any) -> None:
        x = worker.start
        async for _ in worker.steps():
            backward = await worker.begin(ops.Gradient(x))
            async for _ in worker.segments(backward):
                seen.append(threading.get_ident() == main_thread)
                if worker.rank == 1 and len(seen) == 3:
                    raise ValueError("of the scheme")

    job = make_job(make_scheme(main), workers=2, task="digits-mlp", compute_s=0.0, max_iterations=4)
    measured = run_job(group, job, timeout_s=10.0)
    return [type(measured.error).__name__, str(measured.error), str(all(seen))]


def test_a_scheme_that_raises_within_a_backward_pass_is_told_as_itself() -> None:
    answers = ask_once(2, raises_after_a_segment)
    message = "worker 1, step 0: the scheme raised ValueError: of the scheme (test_short_gradients.py, line "
    assert [[kind, text[: len(message)], own] for kind, text, own in answers] == [
        ["RunError", message, "True"]
    ] * 2


def test_ranks_that_cannot_reach_each_other_say_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    never = threading.Event()
    monkeypatch.setattr(groups, "connect", lambda *_: never.wait())
    with pytest.raises(RunError, match=r"the ranks did not connect over gloo within 0\.2 s"):
        meet(FileStore(str(tmp_path / "store"), 1), 0, 1, 0.2)
    never.set()
