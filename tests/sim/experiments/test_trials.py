"""Trials of `check`: what a run of each scheme will be, from its beginning."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.sim.drivers.job import Job
from paceline.sim.experiments.costs import check as checks
from paceline.sim.experiments.costs import step_cost as step_costs
from paceline.sim.experiments.costs.check import Trial, check, scoring_s, try_schemes
from paceline.sim.experiments.costs.step_cost import step_cost
from paceline.sim.experiments.prepare import prepare
from paceline.sim.experiments.simulate import simulate_job
from paceline.sim.records.run import Run
from paceline.sim.scenario.schema import parse

TRAINED = """\
name: trained
workload: {task: quadratic, dimension: 10, batch_size: 4, optimizer: {lr: 0.1}, payload: 20 MB}
cluster:
  workers: 4
  compute: {time: 50 ms, jitter: {gamma: {cv: 0.1}}}
  stragglers: [{workers: [3], slowdown: 3}]
  network: {latency: 1 ms, bandwidth: 10 Gbit/s}
schemes: [all_reduce]
stop: {target: {metric: suboptimality, value: 0.1}, max_iterations: 1000}
"""
SCHEMES = (
    "all_reduce",
    "{local_sgd: {period: 4}}",
    "{gossip: {topology: ring}}",
    "ad_psgd",
    "{easgd: {period: 4}}",
    "{downpour: {period: 4}}",
    "{leader_sgd: {period: 4}}",
)
SLOW_ONE = "schemes=[all_reduce, {all_reduce: {label: slow, optimizer: {lr: 0.01}}}]"


@pytest.fixture(autouse=True, scope="module")
def little_work() -> Iterator[None]:
    """Steps on the clock alone are followed for milliseconds: only their mean length is needed here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_costs, "ENOUGH_WORK", 500)
        yield


def trials_of(*changes: str) -> dict[str, Trial]:
    scenario = parse(TRAINED, changes=changes)
    jobs = [prepare(scenario, entry, scenario.seed) for entry in scenario.schemes]
    return try_schemes(jobs, [step_cost(scenario, entry) for entry in scenario.schemes], None, 0.0, True)


def slower(trial: Trial, factor: int) -> Trial:
    """Half of the way of a trial, at a fraction of its speed."""
    half = trial.progress[: len(trial.progress) // 2 + 1]
    return replace(trial, steps=None, reached=False, progress=[(factor * step, best) for step, best in half])


def test_a_scheme_that_is_behind_stays_behind() -> None:
    ahead = Trial(0.1, 20.0, True, [(0, -2.0), (10, -1.0), (20, -0.5)])
    behind = Trial(0.1, None, False, [(0, -2.0), (30, -1.5)])  # as good as the other after 5 steps
    assert behind.expected_steps([ahead, behind]) == 30 * 20 / 5
    assert ahead.expected_steps([ahead, behind]) == 20.0


def test_nothing_is_said_of_a_scheme_without_progress_or_measure() -> None:
    ahead = Trial(0.1, 20.0, True, [(0, -2.0), (10, -1.0), (20, -0.5)])
    at_start = Trial(0.1, None, False, [(0, -2.0), (30, -2.0)])
    others = Trial(0.1, None, False, [(0, -2.0), (30, -1.5)])
    assert at_start.expected_steps([ahead]) is None
    assert others.expected_steps([others, replace(ahead, reached=False)]) is None


@given(
    gains=st.lists(st.floats(0.01, 10.0), min_size=2, max_size=8),
    factors=st.lists(st.integers(1, 30), min_size=1, max_size=4),
)
def test_a_slower_copy_is_expected_to_need_as_many_times_the_steps(
    gains: list[float], factors: list[int]
) -> None:
    scores = [sum(gains[:number]) for number in range(len(gains) + 1)]
    progress = [(10 * number, score) for number, score in enumerate(scores)]
    met = Trial(0.1, progress[-1][0], True, progress)
    for factor in factors:
        copy = slower(met, factor)
        assert copy.expected_steps([copy, met]) == pytest.approx(factor * progress[-1][0])


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(scheme=st.sampled_from(SCHEMES), seed=st.integers(0, 2**31))
def test_a_trial_with_enough_time_is_the_first_repeat(scheme: str, seed: int) -> None:
    scenario = parse(TRAINED, changes=[f"schemes=[{scheme}]", f"seed={seed}", "repeats=2"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checks, "TRIALS_S", 1e6)
        (row,) = check(scenario, torch.device("cpu"), forecast=True)["schemes"]
    run = simulate_job(prepare(scenario, scenario.schemes[0], scenario.seed))
    assert row["steps_expected"] == run.iterations


@pytest.mark.slow
def test_a_scheme_that_needs_many_steps_is_known_to_before_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    spent_s = 0.0

    def counted(job: Job, **rest: Any) -> Run:
        nonlocal spent_s
        run = simulate_job(job, **rest)
        spent_s += 0.01 * run.iterations
        return run

    whole = {label: trial.steps for label, trial in trials_of(SLOW_ONE).items()}
    monkeypatch.setattr(checks, "simulate_job", counted)
    monkeypatch.setattr(time, "process_time", lambda: spent_s)
    monkeypatch.setattr(checks, "TRIALS_S", 2.0)
    found = trials_of(SLOW_ONE)
    assert spent_s < 2.5
    assert found["all_reduce"].steps == whole["all_reduce"]
    assert found["slow"].steps is None
    expected = found["slow"].expected_steps(found.values())
    assert expected is not None
    assert whole["slow"] is not None
    assert whole["slow"] / 2 < expected < 2 * whole["slow"]


def test_a_scheme_that_fails_with_values_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(job: Job, **rest: Any) -> Run:
        return replace(simulate_job(job, **rest), status="partial", message="it has no values")

    monkeypatch.setattr(checks, "simulate_job", failing)
    scenario = parse(TRAINED, changes=["stop.max_iterations=3"])
    (row,) = check(scenario, torch.device("cpu"), forecast=True)["schemes"]
    assert (row["problem"], row["steps_at_most"]) == ("it has no values", 3)


@pytest.mark.parametrize(
    ("on", "target_on", "models"),
    [("mean", "mean", 1), ("workers", "workers", 4), ("mean", "worst", 5), ("leader", "workers", 4)],
)
def test_what_is_scored_counts(on: str, target_on: str, models: int) -> None:
    scenario = parse(TRAINED, changes=[f"evaluate.on={on}", f"stop.target.on={target_on}"])
    job = prepare(scenario, scenario.schemes[0], scenario.seed)
    assert job.problem is not None
    scored: list[torch.Tensor] = []
    workload = job.problem.workload

    def score(model: torch.Tensor) -> Any:
        scored.append(model)
        return workload.score(model)

    counted = replace(job.problem, workload=replace(workload, score=score))
    scoring_s(replace(job, problem=counted))
    assert len(scored) == 1 + models  # the first one warms up
