"""Batches of different sizes: one process with the whole batch takes the same steps, and what they last."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor

import paceline
from paceline.extras.replay.replay_driver import replay
from paceline.sim.drivers.job import Job
from paceline.sim.drivers.lockstep.lockstep_driver import LockstepDriver
from paceline.sim.errors import InputError, NotInLockstep
from paceline.sim.scenario.batches import batch_sizes, compute_model, weights_of
from paceline.sim.scenario.entries import SchemeEntry
from paceline.sim.scenario.schema import Scenario, dump, parse
from tests.support.factory import run_events, simulated, sites_of
from tests.support.uneven import FORMS, SPLITS, STEPS, in_one_process, job_of, off_by, scenario_of, split

Options = dict[str, Any]


def lockstep(job: Job) -> Sequence[Tensor]:
    with suppress(NotInLockstep):
        return LockstepDriver(job, job.scorer()).run().finals
    return ()


def check_steps(batch_size: Any, scheme: Any, workload: Options) -> None:
    job = job_of(batch_size, scheme, **workload)
    expected = in_one_process(job)
    run = simulated(job)
    replayed = replay(job, [job.program(rank) for rank in range(4)], run.events)
    finals = (*run_events(job).finals, *lockstep(job), *replayed)
    assert len(finals) >= 8
    assert max(off_by(final, expected) for final in finals) < 1e-6
    assert off_by(job.start, expected) > 1e-3


@pytest.mark.parametrize("seed", range(SPLITS))
@pytest.mark.parametrize(("scheme", "workload"), FORMS[:2], ids=str)
def test_one_process_with_the_whole_batch_takes_the_same_steps(
    scheme: Any, workload: Options, seed: int
) -> None:
    check_steps(split(seed), scheme, workload)


@pytest.mark.parametrize(("number", "form"), [*enumerate(FORMS[2:])], ids=str)
def test_so_does_every_scheme_that_averages(number: int, form: tuple[Any, Options]) -> None:
    check_steps(split(100 + number), *form)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SPLITS))
@pytest.mark.parametrize(("scheme", "workload"), FORMS[2:], ids=str)
def test_so_does_every_scheme_with_every_split(scheme: Any, workload: Options, seed: int) -> None:
    check_steps(split(seed), scheme, workload)


def test_equal_sizes_are_those_of_a_number_to_the_bit() -> None:
    for scheme in ("all_reduce", {"diloco": {"period": 2}}):
        one, each, sites = (job_of(size, scheme) for size in (8, [8] * 4, {"a": 8, "default": 8}))
        finals = [run_events(job).finals for job in (one, each, sites)]
        assert all(torch.equal(a, b) for other in finals[1:] for a, b in zip(finals[0], other, strict=True))


@pytest.mark.parametrize("seed", range(SPLITS))
@pytest.mark.parametrize(
    ("scheme", "options"),
    [("all_reduce", {}), ("local_sgd", {"period": 2}), ("diloco", {"inside": "sites"})],
)
def test_weights_add_up(seed: int, scheme: str, options: Options) -> None:
    entry = SchemeEntry.model_validate({scheme: options})
    of_gradients, of_models = weights_of(split(seed), entry, sites_of({"a": 2, "b": 2}))
    assert sum(of_gradients) == pytest.approx(4, abs=1e-15)
    assert sum(of_models) == pytest.approx(4, abs=1e-15)
    whole = sum(split(seed))
    for examples, of_gradient, of_model in zip(split(seed), of_gradients, of_models, strict=True):
        assert of_gradient * of_model / 4 == pytest.approx(examples / whole, rel=1e-15)


def sizes_of(scenario: Scenario) -> tuple[int, ...]:
    return batch_sizes(scenario.workload, scenario.cluster, scenario.seed)


def test_sizes_by_worker_by_site_and_by_speed() -> None:
    assert sizes_of(scenario_of([3, 4, 5, 6], "all_reduce")) == (3, 4, 5, 6)
    assert sizes_of(scenario_of({"b": 5, "default": 7}, "all_reduce")) == (7, 7, 5, 5)
    by_speed = scenario_of({"by": "speed", "mean": 11}, "all_reduce")
    assert sizes_of(by_speed) == (16, 8, 16, 4)
    assert parse(dump(by_speed)) == by_speed


def test_computing_lasts_as_long_as_the_batch_is_large() -> None:
    """Workers take 2, 4, 2 and 8 ms for 11 examples; with 16, 8, 16 and 4 all take 32 / 11 ms."""
    scenario = scenario_of({"by": "speed", "mean": 11}, "all_reduce", accumulate=2)
    model = compute_model(scenario.workload, scenario.cluster, 3)
    for worker in range(4):
        assert model.duration_s(worker, 0) == pytest.approx(2 * 0.032 / 11, rel=1e-12)


def test_by_traces_the_workers_own_count() -> None:
    text = dump(scenario_of({"by": "speed", "mean": 10}, "all_reduce"))
    traces = "trace:\n      workers: [[1 ms, 3 ms], [2 ms], [2 ms], [2 ms]]"
    traced = parse(text.replace("time: 2 ms", traces))
    # The first of worker 0's durations comes once, the others over and over: 3 ms, against 2, 4 and 8.
    assert sizes_of(traced) == (11, 8, 17, 4)


def test_measured_sizes_say_how_long_each_takes() -> None:
    text = dump(scenario_of([8, 8, 16, 8], "all_reduce"))
    measured = "measured: {batch_sizes: [8, 16], times: [10 ms, 12 ms]}"
    model = compute_model(*_parts(parse(text.replace("time: 2 ms", measured))))
    assert model.duration_s(0, 0) == pytest.approx(0.010)
    assert model.duration_s(2, 0) == pytest.approx(0.012)


def _parts(scenario: Scenario) -> tuple[Any, Any, int]:
    return scenario.workload, scenario.cluster, scenario.seed


def test_a_proxy_draws_in_the_same_shares() -> None:
    job = job_of([12, 4, 4, 4], "all_reduce", proxy_batch=32, payload="1 MB")
    assert job.problem is not None
    assert job.problem.batches.sizes == (16, 6, 5, 5)
    assert job.compute.gradients_each == [2, 2 / 3, 2 / 3, 2 / 3]


@pytest.mark.parametrize(
    ("scheme", "why"),
    [
        ({"all_reduce": {"quorum": 3}}, "workers do not wait for all others"),
        ("ad_psgd", "workers do not wait for all others"),
        ({"easgd": {"period": 2}}, "its means, of models or of some workers, count all workers alike"),
        ({"fedavg": {"period": 2, "participation": 0.5}}, "count all workers alike"),
        ({"gossip": {"topology": "star", "weights": "uniform"}}, "not doubly stochastic"),
    ],
)
def test_what_cannot_count_examples_is_refused(scheme: Any, why: str) -> None:
    with pytest.raises(InputError, match=rf"^scenario:\d+: schemes.0.*batches differ in size, and .*{why}"):
        scenario_of([1, 2, 3, 4], scheme)


def test_throughput_counts_all_tokens() -> None:
    answer = paceline_throughput({"us": 704, "eu": 320})
    assert answer["tokens_per_step"] == 1024 * 2048


def test_throughput_counts_the_steps_that_workers_take() -> None:
    """The slower of two takes 4 of 10 steps, so that 14 batches are drawn in 20."""
    timed = "diloco: {period: {by: time, steps: 10}}"
    slow = "{workers: [1], slowdown: 2.5}"
    plain, by_time = paceline_throughput(8, "diloco: {period: 10}, " + timed, slow)["schemes"]
    drawn = [row["tokens_per_s"] * row["step_s"] / 2048 for row in (plain, by_time)]
    assert drawn == pytest.approx([16.0, 11.2])
    assert by_time["step_s"] < 0.6 * plain["step_s"]


def paceline_throughput(batch_size: Any, schemes: str = "all_reduce", slow: str = "") -> Options:
    from paceline.sim.experiments.costs.tokens import throughput

    sizes = "layers: 2, width: 64, feed_forward: 256, vocabulary: 100, length: 2048, positions: 2048"
    text = f"""\
name: two
workload:
  {{timing_only: true, batch_size: {batch_size}, layer_profile: {{transformer: {{{sizes}}}}}}}
cluster:
  compute: {{speed: 10 Tflop/s}}
  stragglers: [{slow}]
  network:
    {{sites: {{us: 1, eu: 1}}, within: {{latency: 1 ms}}, between: {{latency: 35 ms, bandwidth: 10 Gbit/s}}}}
schemes: [{schemes}]
stop: {{max_iterations: 3}}
"""
    return throughput(parse(text), with_needs=False)


def test_a_run_learns_and_says_when_it_takes_as_long_as_the_slowest() -> None:
    run = paceline.simulate(scenario_of({"by": "speed", "mean": 11}, "all_reduce"), progress=False).runs[0]
    assert run.iterations == STEPS
