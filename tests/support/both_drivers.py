"""One job on the event driver and in lockstep, and everything that both record side by side."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from paceline.sim.compute.compute_settings import Straggler
from paceline.sim.drivers.event import EventDriver
from paceline.sim.drivers.job import Job
from paceline.sim.drivers.lockstep.exact import why_not
from paceline.sim.drivers.lockstep.lockstep_driver import LockstepDriver
from paceline.sim.drivers.outcome import Outcome, run_record
from paceline.sim.records.run import Counts, Event, Run
from paceline.sim.schemes.scheme import Scheme
from tests.support.factory import make_job

Options = dict[str, Any]

NETWORKS: list[Options] = [
    {"latency_s": 0.0},
    {"latency_s": 0.003, "bandwidth_bytes_per_s": 50.0},
    {"latency_s": 0.7, "bandwidth_bytes_per_s": 1e3, "overhead_s": 0.01},
    {"latency_s": 0.2, "bandwidth_bytes_per_s": 100.0, "announcement": 1.0},
]

SITES: Options = {
    "sites": {"a": 3, "b": 2},
    "within": {"latency": "1 ms", "bandwidth": "800 bit/s", "upload": "400 bit/s"},
    "between": {"latency": "50 ms", "bandwidth": "200 bit/s", "per_flow": "160 bit/s"},
    "uplink": {"a": "240 bit/s"},
}

STRAGGLERS: dict[str, tuple[Straggler, ...]] = {
    "none": (),
    "one is slow": (Straggler(workers=(1,), slowdown=3.0),),
    "now and then": (
        Straggler(probability=0.3, slowdown=2.0),
        Straggler.model_validate({"markov": {"slow": "3 steps", "fast": "4 steps"}, "pause": "500 ms"}),
    ),
}


def job_of(
    which: tuple[str | Scheme, Options],
    *,
    transport: str | None = "ideal",
    all_reduce: str = "auto",
    trains: bool = True,
    **given: Any,
) -> Job:
    """A job on a named transport, whose rules and constants hold."""
    trained: Options = {
        "task": "quadratic",
        "task_options": {"dimension": 6, "examples": 64},
        "batch_size": 4,
    }
    job = make_job(
        which[0], which[1], transport=transport, all_reduce=all_reduce if transport else "ring_stop_and_wait",
        **(trained if trains else {}), **given,
    )  # fmt: skip
    return replace(job, transfer=job.collectives.transport.transfer(job.transfer))


def by_events(job: Job) -> tuple[Outcome, Run]:
    scorer = job.scorer()
    scorer.begin([job.start] * job.workers)
    outcome = EventDriver(job, [job.program(rank) for rank in range(job.workers)], scorer).run()
    return outcome, run_record(job, outcome, scorer, "simulated")


def in_lockstep(job: Job) -> tuple[Outcome, Run]:
    assert why_not(job) == ""
    scorer = job.scorer()
    scorer.begin([job.start] * job.workers)
    outcome = LockstepDriver(job, scorer).run()
    return outcome, run_record(job, outcome, scorer, "simulated")


def close(expected: Any) -> Any:
    return None if expected is None else pytest.approx(expected, rel=1e-9, abs=1e-12)


def assert_the_same(job: Job) -> None:
    """Everything that a run records: times within 1e-9, all else equal."""
    events, expected = by_events(job)
    lockstep, run = in_lockstep(job)
    assert run.wall_clock_s == close(expected.wall_clock_s)
    assert run.digest == expected.digest
    assert (run.status, run.reached_target, run.iterations, run.bytes_sent, run.exchanges) == (
        expected.status, expected.reached_target, expected.iterations, expected.bytes_sent, expected.exchanges
    )  # fmt: skip
    assert (run.between, run.on_links) == (expected.between, expected.on_links)
    if run.between:
        assert sum(sum(row.values()) for row in run.between.values()) == run.bytes_sent
    for name in ("time_to_target_s", "bracket_s"):
        assert getattr(run, name) == close(getattr(expected, name))
    assert len(run.evaluations) == len(expected.evaluations)
    for ours, theirs in zip(run.evaluations, expected.evaluations, strict=True):
        assert (ours.step, ours.steps, ours.bytes_sent) == (theirs.step, theirs.steps, theirs.bytes_sent)
        assert ours.time_s == close(theirs.time_s)
        assert ours.metrics == theirs.metrics
    for mine, other in zip(lockstep.breakdowns, events.breakdowns, strict=True):
        for name in Counts.__dataclass_fields__.keys() - {"operations"}:  # of all in lockstep
            assert getattr(mine, name) == getattr(other, name), name
        assert sum(mine.sent_to.values()) == mine.bytes_sent
        ours_s, theirs_s = mine.share(lockstep.wall_s), other.share(events.wall_s)
        for share in ("compute", "communicate", "wait"):
            assert getattr(ours_s, share) == pytest.approx(getattr(theirs_s, share), abs=1e-9 * events.wall_s)
    shares = run.time_s
    assert shares.compute + shares.communicate + shares.wait == close(run.wall_clock_s)
    assert_same_events(job, run.events, expected.events)


def assert_same_events(job: Job, ours: tuple[Event, ...], theirs: tuple[Event, ...]) -> None:
    """What each coroutine resumed from in order, and all rows.

    Where a started operation ends at the very instant of another row, which stands first is a tie; so is
    whose message came last where several came at once, but not the root of a broadcast.
    """
    assert len(ours) == len(theirs)
    for rank in range(job.workers):
        mine, other = ([event for event in events if event.worker == rank] for events in (ours, theirs))
        assert [_resumed(event) for event in mine if _resumed(event)] == [
            _resumed(event) for event in other if _resumed(event)
        ]
        for a, b in zip(sorted(mine, key=_what), sorted(other, key=_what), strict=True):
            assert (_what(a), a.bytes) == (_what(b), b.bytes)
            assert [a.start_s, a.end_s, a.peer_s] == close([b.start_s, b.end_s, b.peer_s])
            assert a.peer == b.peer or a.operation != "broadcast"


def _resumed(event: Event) -> str:
    return event.operation if event.handle < 0 or event.operation == "wait" else ""


def _what(event: Event) -> tuple[int, str, int, int]:
    return event.step, event.operation, event.handle, event.task
