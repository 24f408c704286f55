"""Many clocks, one training: every run is what it is by itself, and nothing is computed twice."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import paceline
from paceline.sim.compute.compute_settings import Straggler
from paceline.sim.config.units import parse_seconds
from paceline.sim.drivers.job import Job
from paceline.sim.drivers.lockstep.lockstep_driver import LockstepDriver
from paceline.sim.errors import InputError
from paceline.sim.experiments import prepare
from paceline.sim.experiments.simulate import simulate_job
from paceline.sim.experiments.sweep.grid import resolve, share_training
from paceline.sim.experiments.sweep.sweep_settings import changes_of, read_grid, settings_of
from paceline.sim.program.worker import Worker
from paceline.sim.records.run import Run
from paceline.sim.scenario.entries import WorkloadEntry
from paceline.sim.scenario.schema import Scenario, resolve_each
from paceline.sim.training.gradients import TrainingProblem
from paceline.sim.training.scoring import Target
from paceline.sim.workloads.workload import Workload
from tests.support.factory import NoOptions, make_job, make_scheme, network_of, scored

QUADRATIC: dict[str, Any] = {
    "task": "quadratic",
    "task_options": {"dimension": 6, "examples": 64},
    "batch_size": 4,
}
STRAGGLERS = ((), (Straggler(workers=(1,), slowdown=3.0),), (Straggler(probability=0.3, slowdown=2.0),))
SCHEMES: list[tuple[str, dict[str, Any]]] = [
    ("all_reduce", {}),
    ("local_sgd", {"period": 3}),
    ("adaptive_local_sgd", {"initial_period": 1, "calibration": 2}),
    ("gossip", {"topology": "ring", "global_period": 4}),
    ("sgp", {"topology": "one_peer_exponential"}),
    ("easgd", {"period": 2}),
]


def of_clocks(first: Job, **options: Any) -> list[Job]:
    """``first`` on several networks, with several kinds of stragglers."""
    workers, cv = first.workers, options.pop("cv", 0.3)
    others = [
        make_job(
            "all_reduce", workers=workers, cv=cv, latency_s=latency_s, bandwidth_bytes_per_s=bytes_per_s,
            sharing="none", stragglers=stragglers, **options,
        )
        for latency_s in (0.0, 0.4)
        for bytes_per_s in (20.0, 1e4)
        for stragglers in STRAGGLERS
    ]  # fmt: skip
    return [replace(first, compute=other.compute, transfer=other.transfer) for other in others]


def alone(jobs: list[Job]) -> list[Run]:
    return [simulate_job(job) for job in jobs]


def together(jobs: list[Job]) -> list[Run]:
    shared = share_training([(job, None) for job in jobs])
    return [shared[index] if index in shared else simulate_job(job) for index, job in enumerate(jobs)]


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The indices of the gradients that are computed for all workers."""
    indices: list[int] = []
    original = TrainingProblem.gradients_of_all

    def count(self: TrainingProblem, index: int, points: torch.Tensor) -> Any:
        indices.append(index)
        return original(self, index, points)

    monkeypatch.setattr(TrainingProblem, "gradients_of_all", count)
    return indices


# --- the bytes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("on", ["mean", "averaged"])
def test_targets_are_met_when_they_are_alone(on: Any) -> None:
    """Between two scorings, by models that are scored after the fact."""
    first = make_job("local_sgd", {"period": 3}, workers=4, every=10, max_iterations=20, **QUADRATIC)
    start = simulate_job(first).evaluations[0].metrics["train_loss"]
    assert start is not None
    target = Target("train_loss", 0.7 * start, falling=True, on=on)
    jobs = of_clocks(scored(first, on=on, target=target))[::3]
    runs = together(jobs)
    assert runs == alone(jobs)
    for run in runs:
        assert run.reached_target
        assert len(run.evaluations) > 1 + run.evaluations[-1].step // 10


@pytest.mark.slow
@settings(max_examples=40)
@given(
    which=st.sampled_from(SCHEMES),
    on=st.sampled_from(["mean", "averaged", "workers", "worst", "leader"]),
    every=st.sampled_from([1, 2, 5]),
    keep=st.sampled_from([1, 2]),
    share=st.sampled_from([None, 0.9, 0.6]),
    limit_s=st.sampled_from([float("inf"), 7.3]),
    data=st.data(),
)
def test_each_run_is_what_it_is_alone(
    which: tuple[str, dict[str, Any]],
    on: Any,
    every: int,
    keep: int,
    share: float | None,
    limit_s: float,
    data: st.DataObject,
) -> None:
    """Stragglers, targets met between two scorings, limits of time, models that are not all kept."""
    if keep > every:
        keep = 1
    if which[0] in ("sgp", "easgd") and on == "averaged":
        on = "mean"
    first = make_job(which[0], which[1], workers=4, every=every, max_iterations=11, **QUADRATIC)
    first = scored(replace(first, max_time_s=limit_s), on=on, keep=keep if every % keep == 0 else 1)
    first = scored(first, keep_share=0.0 if limit_s > 10 else 0.3)
    jobs = of_clocks(first)
    jobs = data.draw(st.lists(st.sampled_from(jobs), min_size=2, max_size=5))
    if share is not None:
        start = simulate_job(jobs[0]).evaluations[0].metrics["train_loss"]
        assert start is not None
        jobs = [scored(job, target=Target("train_loss", share * start, falling=True, on=on)) for job in jobs]
    assert together(jobs) == alone(jobs)


def test_one_clock_moves_all_that_differ_in_speeds() -> None:
    first = make_job("all_reduce", workers=4, max_iterations=2, **QUADRATIC)
    jobs = of_clocks(first)
    sharing = [replace(job, transfer=replace(job.transfer, sharing="max_min")) for job in jobs[:2]]
    pair, *others = [(job, job.scorer()) for job in (*jobs, *sharing)]
    driver = LockstepDriver(*pair, *others)
    assert None not in driver.run_all()
    assert [len(clock.outcomes) for clock in driver.clocks] == [len(jobs), 1, 1]


def test_digits_are_the_same_to_the_bit(trained: list[int]) -> None:
    first = make_job("local_sgd", {"period": 3}, task="digits-mlp", workers=8, every=3, max_iterations=9)
    jobs = of_clocks(first)
    runs = together(jobs)
    assert len(trained) == 9
    assert runs == alone(jobs)
    assert {run.engine for run in runs} == {"lockstep"}


# --- nothing twice ------------------------------------------------------------------------------


def test_one_training_and_one_score_of_each_step_vector(trained: list[int]) -> None:
    """It lasts as long as one of the jobs goes on."""
    first = make_job("local_sgd", {"period": 3}, workers=4, every=2, max_iterations=20, **QUADRATIC)
    assert first.problem is not None
    calls = []
    workload = first.problem.workload

    def score(model: torch.Tensor) -> Any:
        calls.append(1)
        return workload.score(model)

    counting: Workload = replace(workload, score=score)
    problem = TrainingProblem(counting, first.problem.batches, first.problem.method)
    jobs = of_clocks(replace(first, problem=problem, max_time_s=13.0))
    runs = together(jobs)
    assert len(trained) == max(round(max(each.step for each in run.evaluations)) for run in runs) + 1
    vectors = {each.steps for run in runs for each in run.evaluations}
    assert len(vectors) < sum(len(run.evaluations) for run in runs)
    assert len(calls) <= len(vectors)


def test_what_depends_on_the_clock_is_simulated_by_itself(trained: list[int]) -> None:
    """A network with jitter among others, and a scheme that is not synchronous."""
    first = make_job("local_sgd", {"period": 3}, workers=4, **QUADRATIC)
    unsteady = make_job("all_reduce", network=network_of(4, latency="1 ms", jitter={"gamma": {"cv": 0.2}}))
    jobs = [*of_clocks(first), replace(first, transfer=unsteady.transfer)]
    runs = together(jobs)
    assert runs == alone(jobs)
    assert [run.engine for run in runs] == ["lockstep"] * 12 + ["event"]
    assert "vary" in runs[-1].engine_reason
    asynchronous = of_clocks(make_job("ad_psgd", {}, workers=4, **QUADRATIC))[:3]
    assert together(asynchronous) == alone(asynchronous)


def test_a_clock_that_is_not_exact_leaves_the_others() -> None:
    """Of the messages of a ring several share a link where links are shared."""
    first = make_job("gossip", {"topology": "ring"}, workers=5, **QUADRATIC)
    shared = make_job("all_reduce", workers=5, bandwidth_bytes_per_s=1e3)
    jobs = [*of_clocks(first)[:3], replace(first, transfer=shared.transfer)]
    runs = together(jobs)
    assert runs == alone(jobs)
    assert [run.engine for run in runs] == ["lockstep"] * 3 + ["event"]


def test_jobs_that_compute_something_else_are_trained_apart(trained: list[int]) -> None:
    jobs = [
        make_job("local_sgd", {"period": period}, workers=4, seed=seed, **QUADRATIC)
        for period, seed in ((1, 1), (2, 1), (1, 2))
    ]
    assert together(jobs) == alone(jobs)
    assert len(trained) == 2 * 3 * 4


async def _sums_up(worker: Worker, options: NoOptions) -> None:
    x = worker.start
    async for k in worker.steps():
        x = x - 0.1 * await worker.gradient(x)
        await worker.publish(k, x)
    await worker.all_reduce(x)


async def _breaks(worker: Worker, options: NoOptions) -> None:
    x = worker.start
    async for k in worker.steps():
        if k == 6:
            raise ValueError("too far")
        x = await worker.all_reduce(x - 0.1 * await worker.gradient(x))
        await worker.publish(k, x)


@pytest.mark.parametrize("program", [_sums_up, _breaks])
def test_what_a_scheme_does_at_its_end_counts_for_every_clock(program: Any) -> None:
    """Jobs that are over before others have not seen it, so that they are run again."""
    first = make_job(make_scheme(program), {}, workers=4, max_iterations=9, **QUADRATIC)
    jobs = of_clocks(replace(first, max_time_s=4.5))
    runs = together(jobs)
    assert runs == alone(jobs)
    assert len({run.iterations for run in runs}) > 1


# --- settings -----------------------------------------------------------------------------------

SCENARIO: dict[str, Any] = {
    "name": "many-networks",
    "seed": 3,
    "workload": {"task": "quadratic", "batch_size": 4, "optimizer": {"lr": 0.1}},
    "cluster": {
        "workers": 4,
        "compute": {"time": "10 ms", "jitter": {"lognormal": {"cv": 0.2}}},
        "network": {"latency": "1 ms", "bandwidth": "100 Mbit/s", "sharing": "none"},
    },
    "evaluate": {"every": "2 steps", "on": "averaged"},
    "schemes": ["all_reduce", {"local_sgd": {"period": 4}}, "ad_psgd"],
    "stop": {"target": {"metric": "train_loss", "value": 20}, "max_iterations": 30},
    "repeats": 2,
}
GRID: dict[str, Any] = {
    "cluster.network.latency": ["1 ms", "20 ms"],
    "cluster.stragglers": [[], [{"workers": [1], "slowdown": 3}]],
}


@pytest.mark.slow
def test_studies_are_those_of_simulate() -> None:
    scenario = {**SCENARIO, "schemes": SCENARIO["schemes"][:2]}
    result = paceline.sweep(scenario, GRID, progress=False)
    assert [dict(each) for each in result.settings] == settings_of(GRID)
    for setting, study in zip(result.settings, result.studies, strict=True):
        changes = [change.text for change in changes_of(setting)]
        one = paceline.simulate(scenario, changes=changes, progress=False, jobs=1)
        assert (study.scenario, study.runs) == (one.scenario, one.runs)
    assert list(result.summary.columns[:3]) == [*GRID, "scheme"]
    assert len(result.summary) == 8
    assert result.winners["winner"].tolist() == [study.winner for study in result.studies]


def _scenarios(num_batch_sizes: int, compute: Any) -> list[Scenario]:
    """Settings of so many workloads, each on two networks, which stand apart."""
    base = {**SCENARIO, "schemes": SCENARIO["schemes"][:1], "gradients": "looped"}
    base = {**base, "cluster": {**base["cluster"], "compute": compute}}
    grid: dict[str, list[Any]] = {
        "cluster.network.latency": ["1 ms", "2 ms"],
        "workload.batch_size": list(range(1, num_batch_sizes + 1)),
    }
    changes = [[change.text for change in changes_of(each)] for each in settings_of(grid)]
    return list(resolve_each(base, None, changes))


def test_what_is_measured_alike_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[int] = []

    def measure(scenario: Scenario, sizes: Any, device: Any) -> tuple[float, ...]:
        measured.extend(sizes)
        return tuple(0.001 * len(measured) for _ in sizes)

    monkeypatch.setattr("paceline.sim.experiments.prepare.measure_gradients_s", measure)
    scenarios = _scenarios(3, {"measured": {}})
    resolved = resolve(scenarios, torch.device("cpu"))
    assert measured == [1, 2, 3]
    assert [each.cluster.compute.time for each in resolved[:3]] == [
        each.cluster.compute.time for each in resolved[3:]
    ]
    assert [each.cluster.network for each in resolved] == [each.cluster.network for each in scenarios]


def test_settings_are_resolved_without_comparing_each_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    scenarios = _scenarios(40, {"time": "10 ms"})
    compared, built = [0], [0]
    equal, build = WorkloadEntry.__eq__, prepare._built.__wrapped__

    def count(self: WorkloadEntry, other: object) -> bool:
        compared[0] += 1
        return equal(self, other)

    def count_built(*arguments: Any) -> Any:
        built[0] += 1
        return build(*arguments)

    monkeypatch.setattr(WorkloadEntry, "__eq__", count)
    monkeypatch.setattr(prepare, "_built", lru_cache(maxsize=8)(count_built))
    assert len(resolve(scenarios, torch.device("cpu"))) == 80
    assert built[0] == 40  # once for both networks
    assert compared[0] < 20 * len(scenarios)


@pytest.mark.slow
def test_values_are_tuned_in_every_setting() -> None:
    scenario = {
        **SCENARIO, "evaluate": {"every": "2 steps"}, "repeats": "auto",
        "tune": {"optimizer.lr": [0.02, 0.1, 0.3]},
    }  # fmt: skip
    grid = {"cluster.network.latency": ["1 ms", "20 ms"]}
    result = paceline.sweep(scenario, grid, progress=False)
    for setting, study in zip(result.settings, result.studies, strict=True):
        changes = [change.text for change in changes_of(setting)]
        one = paceline.simulate(scenario, changes=changes, progress=False, jobs=1)
        assert (study.scenario, study.runs, study.tuning) == (one.scenario, one.runs, one.tuning)


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ({}, "nothing varies"),
        ({"cluster.network.latency": ["1 ms to 9 ms"]}, "--sample 256"),
        ({"cluster.workers": []}, "cluster.workers: write a list of values"),
        ({"cluster.network.latency": "1 ms"}, "write a list of values"),
        ({"cluster.workers": range(20_000)}, "20,000 settings"),
        ({"cluster.workers": [object()]}, "no value that can stand in a scenario"),
        ({"cluster.network.latenzy": ["1 ms"]}, "latency"),
        ({"cluster.network.latency": ["1 parsec"]}, "latency"),
        ({"workload.optimizer.lr": [1], "workload.optimizer": [{"lr": 2}]}, "replaces a key before it"),
    ],
)
def test_a_wrong_grid_is_one_message(grid: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        paceline.sweep(SCENARIO, grid, progress=False)


@pytest.mark.parametrize("text", ["seed=1] #", "seed=1], [2", "seed=1,#2", "seed=1]"])
def test_the_values_of_a_key_end_with_its_option(text: str) -> None:
    with pytest.raises(InputError, match=rf"^--grid {re.escape(text)}:"):
        read_grid([text])


def test_values_may_be_lists() -> None:
    assert read_grid(["a=[1, 2], {b: [3]}", "c="]) == {"a": ((1, 2), {"b": (3,)}), "c": ()}


def test_values_that_belong_together_are_run_in_pairs() -> None:
    grid: dict[str, list[Any]] = {"a": [1, 2, 3], "b": ["x", "y", "z"]}
    assert settings_of(grid, together=True) == [{"a": a, "b": b} for a, b in ((1, "x"), (2, "y"), (3, "z"))]
    with pytest.raises(InputError, match="leave one of the two out"):
        settings_of(grid, together=True, sample=3)
    with pytest.raises(InputError, match="the keys have 1 and 3 values"):
        settings_of({**grid, "a": [1]}, together=True)


@given(sample=st.integers(1, 60), seed=st.integers(0, 9))
def test_a_sample_covers_each_range_evenly(sample: int, seed: int) -> None:
    grid = {"a": ["1 ms..1 s"], "b": ["4..7"], "c": ["x", "y"], "d": ["1.0..2.0"]}
    drawn = settings_of(grid, sample=sample, seed=seed)
    assert drawn == settings_of(grid, sample=sample, seed=seed)
    logs = sorted(math.log10(parse_seconds(each["a"])) for each in drawn)
    assert all((k - 0.1) / sample <= (log + 3) / 3 <= (k + 1.1) / sample for k, log in enumerate(logs))
    for key, values in {"b": (4, 5, 6, 7), "c": ("x", "y")}.items():
        counts = [sum(each[key] == value for each in drawn) for value in values]
        assert sum(counts) == sample
        assert all(abs(count - sample / len(values)) <= 2 for count in counts)
    assert all(1 <= each["d"] <= 2 for each in drawn)


@pytest.mark.parametrize("text", ["2 s..1 s", "1 ms..2 MB", "2 s to 1 s", "1 ms to 2 parsec"])
def test_a_range_needs_two_ends_of_one_kind(text: str) -> None:
    with pytest.raises(InputError, match="is no range; write two ends"):
        settings_of({"a": [text]}, sample=3)
