"""Numbers that schemes publish beside their models: averaged between evaluations, the same on real runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from paceline.realrun.driver.rank_log import RankLog, decode, encode
from paceline.sim.compute.compute_settings import Straggler
from paceline.sim.errors import SchemeError
from paceline.sim.program import operations as ops
from paceline.sim.program.worker import Worker
from paceline.sim.training.snapshots import Published
from tests.support.factory import NoOptions, make_job, make_scheme, simulated


def _notes(run: Any, *names: str) -> list[tuple[float | None, ...]]:
    return [tuple(e.metrics.get(name) for name in names) for e in run.evaluations]


def test_staleness_of_swaps() -> None:
    """Worker 0 swaps at 0, 2 and 4 s; worker 1 starts a gradient every second: every other one is stale."""
    slow = [Straggler(workers=(0,), slowdown=2)]
    job = make_job("ad_psgd", task="quadratic", workers=2, max_iterations=6, stragglers=slow, every=3)
    run = simulated(job)
    own = [e.end_s for e in run.events if (e.worker, e.task, e.operation) == (1, 1, "receive")]
    assert own == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    # by 4 s six steps are done: four of worker 1 (stale 1, 0, 1, 0), two of worker 0 (1, 1)
    assert _notes(run, "staleness", "staleness_max")[:2] == [(None, None), (4 / 6, 1.0)]


def test_notes_are_those_since_the_last_scoring() -> None:
    """Worker 0 does all its steps while worker 1 is in its first; each evaluation has four steps' notes."""

    async def program(worker: Worker, options: NoOptions) -> None:
        async for k in worker.steps():
            await worker.sleep(1.0 + 100.0 * worker.rank)
            await worker.publish(k, worker.start, speed=float(10 * k + worker.rank))

    job = make_job(make_scheme(program), task="quadratic", workers=2, max_iterations=5, every=2)
    expected = [(None, None), (15.0, 30.0), (18.25, 40.0), (36.0, 41.0)]
    assert _notes(simulated(job), "speed", "speed_max") == expected


def test_the_period_is_a_metric() -> None:
    options = {"initial_period": 2, "calibration": 4}
    job = make_job("adaptive_local_sgd", options, task="quadratic", workers=3, max_iterations=4, every=2)
    assert _notes(simulated(job), "period")[1:] == [(2.0,), (2.0,)]


def test_notes_are_handed_in() -> None:
    log = RankLog(0, torch.zeros(2))
    log.publish(Published(0, 0, 1.0, None, 8, notes={"staleness": 2.0}))
    log.publish(Published(0, 1, 2.0, None, 8))
    assert [each.notes for each in decode(*encode(log)).published] == [{"staleness": 2.0}, {}]


@pytest.mark.parametrize("name", ["seed", "train_loss", "suboptimality_on_worst"])
def test_a_note_cannot_take_the_place_of_another_column(name: str) -> None:
    async def program(worker: Worker, options: NoOptions) -> None:
        async for k in worker.steps():
            await ops.Publish(k, worker.start, notes={name: 1.0})

    with pytest.raises(SchemeError, match=f"cannot note '{name}': a column of that name is there"):
        simulated(make_job(make_scheme(program), task="quadratic", workers=2, max_iterations=2))
