"""Numbers that schemes publish beside their models: averaged between evaluations, the same on real runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter

from paceline.realrun.driver.rank_log import RankLog, decode, encode
from paceline.sim.compute.compute_settings import Straggler
from paceline.sim.errors import SchemeError
from paceline.sim.program import operations as ops
from paceline.sim.program.worker import Worker
from paceline.sim.records.run import Run
from paceline.sim.training.snapshots import Published
from tests.support.cluster_pool import Pool
from tests.support.factory import NoOptions, make_job, make_scheme, simulated
from tests.support.small_runs import WORKLOAD, measure


def _notes(run: Any, *names: str) -> list[tuple[float | None, ...]]:
    return [tuple(e.metrics.get(name) for name in names) for e in run.evaluations]


def test_staleness_of_swaps() -> None:
    """Worker 0 swaps at 0, 2 and 4 s; worker 1 starts a gradient every second: every other one is stale."""
    slow = [Straggler(workers=(0,), slowdown=2)]
    job = make_job("ad_psgd", task="quadratic", workers=2, max_iterations=6, stragglers=slow, every=3)
    run = simulated(job)
    own = [e.end_s for e in run.events if (e.worker, e.task, e.operation) == (1, 1, "receive")]
    assert own == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    # of the first three steps worker 1's are stale by 1, 0, 1, those of worker 0 by 1
    assert _notes(run, "staleness", "staleness_max")[:2] == [(None, None), (5 / 6, 1.0)]


NUMBERED = "tests.support.own_schemes:numbered"


@pytest.mark.parametrize("cv", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("slowdown", [1, 100])
def test_notes_are_those_of_the_steps_since_the_last_scoring_whenever_they_came(
    cv: float, slowdown: int
) -> None:
    """Of steps 1 and 2, 3 and 4, and 5 of both, also where worker 1 is still in its first at the scoring."""
    slow = [Straggler(workers=(1,), slowdown=slowdown)]
    job = make_job(NUMBERED, task="quadratic", workers=2, max_iterations=5, every=2, cv=cv, stragglers=slow)
    expected = [(None, None), (5.5, 11.0), (25.5, 31.0), (40.5, 41.0)]
    assert _notes(simulated(job), "number", "number_max") == expected


def test_notes_of_steps_beyond_the_last_scored_one_count_in_no_row() -> None:
    job = make_job(
        NUMBERED, task="quadratic", workers=2, max_iterations=None, every=2,
        stragglers=[Straggler(workers=(1,), slowdown=2)],
    )  # fmt: skip
    run = simulated(replace(job, max_time_s=4.0))
    assert run.evaluations[-1].steps == (4, 2)
    # step 3 of worker 1 had no time
    assert _notes(run, "number", "number_max")[1:] == [(5.5, 11.0), (20.0, 20.0)]


def test_notes_of_a_real_run_are_those_of_the_simulated_one(four: Pool) -> None:
    """A slow process reaches its steps long after the others' models were scored."""
    workload = {**WORKLOAD, "every": 3, "max_iterations": 12}
    slow = [{"workers": [2], "slowdown": 3}]
    measured = TypeAdapter(Run).validate_python(measure(four, NUMBERED, {}, stragglers=slow, **workload)[0])
    assert len({step for each in measured.evaluations for step in each.steps}) > 5  # worker 2 was behind
    predicted = simulated(make_job(NUMBERED, {}, workers=4, **workload))
    assert _notes(measured, "number", "number_max") == _notes(predicted, "number", "number_max")


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
