"""Gradient accumulation: several batches a step, and one average of their mean."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import paceline
from paceline.sim.compute.compute_settings import Compute, Straggler
from paceline.sim.compute.model import ComputeModel
from paceline.sim.training.curves.curve import conditions_of
from paceline.sim.training.gradients import Method, TrainingProblem
from paceline.sim.workloads.workload import Evaluated
from tests.support.factory import make_job, make_problem

Options = dict[str, Any]


def run_of(
    batch_size: int, accumulate: int, time: str, scheme: Any = "all_reduce", **options: Any
) -> paceline.Run:
    scenario: Options = {
        "name": "accumulate",
        "workload": {
            "task": "digits-mlp",
            "batch_size": batch_size,
            "accumulate": accumulate,
            "optimizer": {"lr": 0.1, "momentum": 0.9},
        },
        "cluster": {
            "workers": 3,
            "compute": {"time": time},
            "network": {"latency": "1 ms", "bandwidth": "100 Mbit/s"},
        },
        "schemes": [scheme],
        "stop": {"max_iterations": 5},
        "evaluate": {"every": "1 step"},
        "gradients": options.get("gradients", "looped"),
    }
    engine = options.get("engine", "auto")
    return paceline.simulate(scenario, progress=False, jobs=1, engine=engine).runs[0]


@pytest.mark.parametrize("engine", ["event", "lockstep"])
@pytest.mark.parametrize("gradients", ["looped", "batched"])
def test_a_run_is_that_of_one_large_batch(engine: str, gradients: str) -> None:
    parts = run_of(8, 4, "10 ms", engine=engine, gradients=gradients)
    whole = run_of(32, 1, "40 ms", engine=engine, gradients=gradients)
    assert parts.wall_clock_s == pytest.approx(whole.wall_clock_s, rel=1e-12)
    for a, b in zip(parts.evaluations, whole.evaluations, strict=True):
        assert a.metrics == pytest.approx(b.metrics, rel=1e-5)
    assert len({each.metrics["train_loss"] for each in parts.evaluations}) == len(parts.evaluations)


@given(st.integers(1, 6), st.integers(1, 4), st.integers(0, 40), st.sampled_from(["looped", "batched"]))
def test_a_gradient_is_the_mean_of_its_batches(parts: int, size: int, index: int, method: Method) -> None:
    whole = make_problem("logistic", 3, 1, method, parts * size)
    split = replace(whole, accumulate=parts)
    points = torch.linspace(-1, 1, 3)[:, None] + whole.workload.start
    for problem in (whole, split):
        assert problem.batches.examples(0, index).size == parts * size
    expected, answer = (each.gradients_of_all(index, points) for each in (whole, split))
    torch.testing.assert_close(answer.value, expected.value, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(answer.loss, expected.loss, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("accumulate", [1, 4])
def test_segments_of_the_last_batch_are_those_of_the_mean(accumulate: int) -> None:
    problem: TrainingProblem = replace(make_problem("digits-mlp", 2, 1, "looped", 8), accumulate=accumulate)
    shown: list[tuple[int, int]] = []
    value = torch.full_like(problem.workload.start, torch.nan)

    def on_segment(start: int, stop: int, so_far: Evaluated) -> None:
        shown.append((start, stop))
        value[start:stop] = so_far.value[start:stop]

    whole = problem.gradient(1, 3, problem.workload.start, on_segment)
    assert len(shown) == 4
    assert torch.equal(value, whole.value)
    assert torch.equal(problem.gradient(1, 3, problem.workload.start).value, whole.value)


def test_dropout_differs_between_the_batches_of_a_step() -> None:
    problem = make_problem("text-transformer", 2, 1, "looped", 2, dropout=0.5)
    assert problem.workload.stochastic
    single = replace(problem, batches=replace(problem.batches, batch_size=1))
    first, second = (single.gradient(0, index, problem.workload.start) for index in (0, 1))
    mean = replace(problem, accumulate=2).gradient(0, 0, problem.workload.start)
    torch.testing.assert_close(mean.value, (first.value + second.value) / 2)


@given(st.integers(1, 5), st.floats(0.0, 0.5), st.integers(0, 700))
def test_a_gradient_lasts_as_long_as_its_batches(accumulate: int, cv: float, index: int) -> None:
    settings: Options = {"time": "2 s"} | ({"jitter": {"lognormal": {"cv": cv}}} if cv > 0.01 else {})
    each = ComputeModel(Compute.model_validate(settings), (), 1)
    summed = replace(each, accumulate=accumulate)
    durations_s = [each.duration_s(0, index * accumulate + k) for k in range(accumulate)]
    assert summed.duration_s(0, index) == pytest.approx(sum(durations_s))


def test_a_pause_comes_once_a_step() -> None:
    late = Straggler.model_validate({"workers": [0], "pause": "5 s"})
    model = ComputeModel(Compute.model_validate({"time": "2 s"}), (late,), 1, accumulate=3)
    assert model.duration_s(0, 0) == pytest.approx(11.0)


def test_only_the_last_backward_pass_overlaps() -> None:
    job = make_job("all_reduce", {"overlap": True}, buckets=2, start=torch.zeros(4))
    split = replace(job, compute=replace(job.compute, accumulate=4))
    assert job.layers.ready_fractions(job.compute.accumulate) == pytest.approx((2 / 3, 1.0))
    assert split.layers.ready_fractions(split.compute.accumulate) == pytest.approx((1 - 1 / 12, 1.0))


def test_an_average_overlaps_the_last_batch_alone() -> None:
    """With a network faster than a backward pass, the last layers' average alone follows it."""
    scheme = {"all_reduce": {"overlap": True}}
    parts, whole = (run_of(8, k, t, scheme).wall_clock_s for k, t in ((4, "200 ms"), (1, "200 ms")))
    assert parts == pytest.approx(whole + 5 * 3 * 0.2, rel=1e-9)


def test_conditions_of_curves_count_all_examples_of_a_step() -> None:
    def conditions(batch_size: int, accumulate: int) -> object:
        workload = {"batch_size": batch_size, "accumulate": accumulate}
        scenario = {
            "workload": workload | {"timing_only": False, "optimizer": {"lr": 0.1}},
            "cluster": {"workers": 2},
            "evaluate": {"on": "mean"},
            "schemes": [{"all_reduce": {"label": "all_reduce"}}],
        }
        return conditions_of(scenario)

    assert conditions(8, 4) == conditions(32, 1) != conditions(8, 1)
