"""Periods by time: who takes how many steps, when, and what becomes of the models."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.extras.replay.replay_driver import replay
from paceline.realrun.attach.attach import attach
from paceline.sim.compute.compute_settings import Straggler
from paceline.sim.drivers.job import Job
from paceline.sim.drivers.lockstep.lockstep_driver import LockstepDriver
from paceline.sim.errors import InputError, NotInLockstep
from paceline.sim.experiments.prepare import prepare
from paceline.sim.experiments.simulate import engine_of
from paceline.sim.program.averaging import mean_model
from paceline.sim.schemes.common.local_steps import own_steps, taken_steps
from tests.support.factory import make_job, run_events, simulated
from tests.support.uneven import job_of, scenario_of

Options = dict[str, Any]

FORMS: list[tuple[str, Options]] = [
    ("local_sgd", {}),
    ("local_sgd", {"warmup": 3, "compression": {"qsgd": {"bits": 8}}}),
    ("post_local_sgd", {"switch_at": 2}),
    ("slowmo", {}),
    ("diloco", {}),
    ("diloco", {"fragments": 2, "delay": 1, "alpha": 0.5}),
]


def by_time(steps: int) -> Options:
    return {"period": {"by": "time", "steps": steps}}


def uneven(scheme: str, options: Options, slowdowns: list[float], **parts: Any) -> Job:
    """Workers with gradients of 1 s times these, on a network that costs nothing."""
    slow = tuple(Straggler(workers=(rank,), slowdown=each) for rank, each in enumerate(slowdowns))
    job = make_job(scheme, options, workers=len(slowdowns), stragglers=slow, **parts)
    return replace(job, speeds=tuple(1 / each for each in slowdowns))


def test_a_worker_at_half_the_speed_takes_half_the_steps() -> None:
    """Periods of 4 s in place of 8, in which nobody waits; models by hand, a batch for each gradient."""
    parts: Options = {"task": "digits-mlp", "task_options": {"hidden": 4}, "max_iterations": 8}
    plain = uneven("local_sgd", {"period": 4}, [1.0, 2.0], **parts)
    assert [each.wait_s for each in run_events(plain).breakdowns] == [8.0, 0.0]
    assert run_events(plain).wall_s == 16.0

    job = uneven("local_sgd", by_time(4), [1.0, 2.0], **parts)
    outcome = run_events(job)
    assert outcome.wall_s == 8.0
    assert [each.wait_s for each in outcome.breakdowns] == [0.0, 0.0]
    assert [each.steps for each in outcome.breakdowns] == [8, 8]

    assert job.problem is not None
    x = job.start
    for period in range(2):
        models = []
        for rank, steps in enumerate((4, 2)):
            own = x
            for number in range(period * steps, (period + 1) * steps):
                own = own - 0.1 * job.problem.gradient(rank, number, own).value
            models.append(own)
        x = mean_model(models)
    for final in outcome.finals:
        torch.testing.assert_close(final, x, rtol=1e-5, atol=1e-6)


def test_steps_are_spread_over_the_period_and_never_ahead_of_the_fastest() -> None:
    worker = uneven("local_sgd", by_time(5), [1.0, 2.0]).worker(1)
    takes = taken_steps(worker, uneven("local_sgd", by_time(5), [1.0, 2.0]).options)
    assert [takes(since) for since in range(-2, 10)] == [True] * 2 + [False, False, True, False, True] * 2


@pytest.mark.parametrize(
    ("steps", "slowdowns", "own"),
    [
        (4, [1.0, 2.0, 1.3, 3.9, 9.0], (4, 2, 3, 1, 1)),
        (37, [1.0, 3.7], (37, 10)),  # 37 / 3.7 is rounded below 10
        (7, [2.0, 2.0], (7, 7)),
    ],
)
def test_numbers_by_hand(steps: int, slowdowns: list[float], own: tuple[int, ...]) -> None:
    job = uneven("diloco", by_time(steps), slowdowns)
    assert own_steps(job.worker(0), job.options) == own
    plain = uneven("diloco", {"period": steps}, slowdowns)
    assert own_steps(plain.worker(0), plain.options) == (1,) * len(slowdowns)


@pytest.mark.parametrize(("scheme", "before"), [("local_sgd", "warmup"), ("post_local_sgd", "switch_at")])
def test_before_the_first_period_all_take_every_step(scheme: str, before: str) -> None:
    """Three steps of 2 s for all; then 4 of 1 s, and 2 of 2 s."""
    job = uneven(scheme, {**by_time(4), before: 3}, [1.0, 2.0], max_iterations=7)
    assert run_events(job).wall_s == 10.0
    assert run_events(replace(job, max_iterations=3)).wall_s == 6.0


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(4, 32).map(lambda eighths: eighths / 4), min_size=2, max_size=5),
    st.integers(1, 12),
)
def test_nobody_waits_for_longer_than_one_of_its_own_steps(slowdowns: list[float], steps: int) -> None:
    """Unless the fastest's period is shorter than one step of another, which takes one all the same."""
    job = uneven("local_sgd", by_time(steps), slowdowns, max_iterations=2 * steps)
    outcome, longest_s = run_events(job), max(steps * min(slowdowns), *slowdowns)
    assert outcome.wall_s == pytest.approx(2 * longest_s)
    if steps * min(slowdowns) >= max(slowdowns):
        waits = [each.wait_s for each in outcome.breakdowns]
        assert all(wait_s < 2 * own_s + 1e-9 for wait_s, own_s in zip(waits, slowdowns, strict=True))


@pytest.mark.parametrize(("scheme", "options"), FORMS, ids=str)
def test_equal_workers_do_what_a_number_of_steps_says(scheme: str, options: Options) -> None:
    given, written = ({scheme: {**options, **each}} for each in ({"period": 4}, by_time(4)))
    digests = []
    for form in (given, written):
        scenario = scenario_of(8, form)
        even = scenario.cluster.model_copy(update={"stragglers": ()})
        scenario = scenario.model_copy(update={"cluster": even})
        digests.append(simulated(prepare(scenario, scenario.schemes[0], 3)).digest)
    assert digests[0] == digests[1]


@pytest.mark.parametrize(("scheme", "options"), FORMS, ids=str)
def test_replay_repeats_it_and_lockstep_hands_it_over(scheme: str, options: Options) -> None:
    job = replace(job_of(8, {scheme: {**options, **by_time(4)}}), max_iterations=12)
    run = simulated(job)
    finals = run_events(job).finals
    replayed = replay(job, [job.program(rank) for rank in range(4)], run.events)
    assert all(torch.equal(a, b) for a, b in zip(finals, replayed, strict=True))
    assert engine_of(job)[0] == "event"
    with pytest.raises(NotInLockstep, match="by a worker's rank"):
        LockstepDriver(job, job.scorer()).run()


def test_adam_counts_the_steps_that_a_worker_takes() -> None:
    """The first update of AdamW is as long as its rate, however many steps were left out before."""
    job = job_of(8, {"local_sgd": by_time(4)}, optimizer={"adamw": {"lr": 0.01, "weight_decay": 0.0}})
    scored = simulated(replace(job, max_iterations=3))  # worker 3, of a quarter of the speed, takes none
    finals = run_events(replace(job, max_iterations=2)).finals
    assert scored.iterations == 3
    moved = [float((final - job.start).abs().max()) for final in finals]
    assert moved[0] == pytest.approx(0.02, rel=0.05)
    assert moved[1] == pytest.approx(0.01, rel=1e-3)
    assert moved[3] == 0.0


def test_a_loop_of_its_own_knows_no_speeds() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with (
        pytest.raises(InputError, match=r"local_sgd\.period: by time needs the workers' speeds"),
        attach(model, optimizer, {"local_sgd": by_time(4)}, steps=4),
    ):
        pass


def test_units_that_share_every_step_are_refused() -> None:
    text = "'inside' averages gradients in every step, which by time some units leave out; leave it out"
    with pytest.raises(InputError, match=text):
        scenario_of(8, {"diloco": {**by_time(4), "inside": "sites"}})


def test_uneven_batches_are_refused() -> None:
    """A model would count by the examples of a step, and not of all its steps."""
    with pytest.raises(InputError, match="with periods by time models count alike"):
        scenario_of([8, 4, 8, 2], {"local_sgd": by_time(4)})
