"""DiLoCo: recursions in numpy, torch's outer optimiser, exact facts, streaming, bytes and waiting."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from paceline.sim.errors import InputError
from paceline.sim.experiments.prepare import prepare
from paceline.sim.experiments.simulate import simulate_job
from paceline.sim.scenario.schema import parse
from paceline.sim.schemes.common.local_steps import period_steps
from paceline.sim.schemes.diloco import DilocoOptions, check
from paceline.sim.training.optimizer import OptimizerSettings, make_optimizer
from tests.support.factory import make_job, run_events, scored, simulated
from tests.support.lockstep import run_lockstep
from tests.support.quadratics import (
    DIMENSION,
    Array,
    close,
    finals_of,
    gradients_of,
    quadratic_job,
    start_of,
)

WORKERS, STEPS, LR, BETA = 4, 24, 0.1, 0.9


def job_of(options: dict[str, Any], **job: Any) -> Any:
    return quadratic_job("diloco", options, **{"workers": WORKERS, "max_iterations": STEPS, "lr": LR, **job})


# --- trajectories against numpy -----------------------------------------------------------------


def streamed(job: Any, o: DilocoOptions, momentum: float = 0.0) -> Array:
    """All workers' last models by the recursion: one loop over steps, vectors of all workers at once."""
    gradients, x = gradients_of(job), start_of(job)
    t, u, m = x[0].copy(), np.zeros(DIMENSION), np.zeros_like(x)
    cuts = [p * DIMENSION // o.fragments for p in range(o.fragments + 1)]
    apart = period_steps(o.period) // o.fragments
    sent: dict[int, tuple[slice, Array]] = {}
    for k in range(STEPS):
        m = momentum * m + gradients(k, x)
        x = x - LR * m
        if (k + 1) % apart == 0:
            p = ((k + 1) // apart - 1) % o.fragments
            part = slice(cuts[p], cuts[p + 1])
            sent[k + o.delay] = part, (t[part] - x[:, part]).mean(0)
        if k in sent:
            part, change = sent[k]
            u[part] = o.outer.momentum * u[part] + change
            step = change + o.outer.momentum * u[part] if o.outer.nesterov else u[part]
            t[part] -= o.outer.lr * step
            x[:, part] = (1 - o.alpha) * t[part] + o.alpha * x[:, part]
    return x


@pytest.mark.parametrize(
    "options",
    [
        {"period": 1},
        {"period": 5},
        {"period": 4, "outer": {"nesterov": False}},
        {"period": 4, "outer": {"lr": 1.0, "momentum": 0.0}},
        {"period": 6, "alpha": 0.5},
        {"period": 6, "delay": 2, "alpha": 0.25},
        {"period": 6, "fragments": 3},
        {"period": 10, "fragments": 5, "delay": 1},
        {"period": 8, "fragments": 2, "delay": 3, "alpha": 0.5},
    ],
    ids=str,
)
def test_is_its_recursion(options: dict[str, Any]) -> None:
    job = job_of(options, momentum=BETA)
    close(finals_of(job), streamed(job, DilocoOptions.model_validate(options), BETA))


@pytest.mark.parametrize("inner", [{"lr": 0.05, "momentum": 0.9}, {"adamw": {"lr": 0.02}}], ids=str)
def test_three_outer_rounds_are_those_of_torchs_optimisers(inner: dict[str, Any]) -> None:
    """Inner and outer optimisers are torch's; the outer gradient is old minus mean of new parameters."""
    period = 7
    job = make_job("diloco", {"period": period}, task="digits-mlp", workers=3, max_iterations=3 * period)
    job = replace(job, optimizer=make_optimizer(OptimizerSettings.model_validate(inner)))
    assert job.problem is not None
    workload, batches = job.problem.workload, job.problem.batches
    common = torch.nn.Parameter(job.start.clone())
    outer = torch.optim.SGD([common], lr=0.7, momentum=0.9, nesterov=True)
    models = [torch.nn.Parameter(job.start.clone()) for _ in range(3)]
    inners: list[torch.optim.Optimizer] = [
        torch.optim.AdamW([model], lr=0.02) if "adamw" in inner else torch.optim.SGD([model], **inner)
        for model in models
    ]
    for k in range(3 * period):
        for rank, (model, optimizer) in enumerate(zip(models, inners, strict=True)):
            rows = torch.from_numpy(batches.examples(rank, k))
            optimizer.zero_grad()
            workload.loss(model, workload.inputs[rows], workload.targets[rows]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        if (k + 1) % period == 0:
            common.grad = common.detach() - torch.stack([model.detach() for model in models]).mean(0)
            outer.step()
            for model in models:
                model.data.copy_(common.detach())
    expected = common.detach()
    for final in run_events(job).finals:
        assert ((final - expected).norm() / expected.norm()).item() < 1e-5


# --- exact facts --------------------------------------------------------------------------------

PLAIN: dict[str, Any] = {"lr": 1.0, "momentum": 0.0}


def test_every_step_with_outer_rate_one_is_all_reduce() -> None:
    full = quadratic_job("all_reduce", {}, workers=WORKERS, max_iterations=STEPS, lr=LR)
    close(finals_of(job_of({"period": 1, "outer": PLAIN})), finals_of(full))


def test_outer_rate_one_is_local_sgd() -> None:
    local = quadratic_job("local_sgd", {"period": 5}, workers=WORKERS, max_iterations=STEPS, lr=LR)
    close(finals_of(job_of({"period": 5, "outer": PLAIN})), finals_of(local))


def test_one_fragment_without_delay_is_diloco() -> None:
    streaming = {"period": 6, "fragments": 1, "delay": 0, "alpha": 0.0}
    assert np.array_equal(finals_of(job_of(streaming)), finals_of(job_of({"period": 6})))


def test_fragments_without_delay_and_rate_one_keep_what_was_averaged() -> None:
    """After each averaging the fragment, and nothing else, is equal on all workers."""
    options = {"period": 6, "fragments": 3, "outer": PLAIN}
    for steps, part in ((14, slice(0, 1)), (16, slice(1, 3)), (18, slice(3, 5))):
        apart = np.ptp(finals_of(job_of(options, max_iterations=steps)), axis=0)
        assert apart[part].max() == 0.0
        assert np.delete(apart, part).min() > 0.0


def test_running_buffers_become_the_mean() -> None:
    """Batch norm's running variance would turn negative with an outer momentum."""
    for options in ({"period": 2}, {"period": 4, "fragments": 2, "delay": 1}):
        job = make_job(
            "diloco", options, task="tests.support.own_tasks:normed", batch_size=8, method="looped",
            max_iterations=8,
        )  # fmt: skip
        assert job.problem is not None
        buffers = job.problem.workload.num_buffers
        local = make_job(
            "local_sgd", {"period": 2}, task="tests.support.own_tasks:normed", batch_size=8, method="looped",
            max_iterations=2,
        )  # fmt: skip
        two = replace(job, max_iterations=2)
        if options["period"] == 2:
            diloco, mean = run_events(two).finals[0], run_events(local).finals[0]
            assert torch.allclose(diloco[-buffers:], mean[-buffers:], rtol=1e-6, atol=1e-7)
            assert not torch.allclose(diloco[:-buffers], mean[:-buffers])
        assert run_events(job).status == "completed"


# --- encoded ------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", [{"qsgd": {"bits": 8}}, {"qsgd": {"bits": 4, "bucket": 4}}])
@pytest.mark.parametrize("streaming", [{}, {"fragments": 2, "delay": 1}, {"fragments": 2, "delay": 3}])
def test_encoded_changes_stay_near_the_plain_ones(
    compression: dict[str, Any], streaming: dict[str, Any]
) -> None:
    options = {"period": 8, "compression": compression, **streaming}
    job = job_of(options)
    plain = finals_of(job_of({"period": 8, **streaming}))
    rough = finals_of(job)
    assert not np.array_equal(rough, plain)
    assert np.abs(rough - plain).max() < 0.25 * np.abs(plain - start_of(job)).max()
    assert torch.equal(run_lockstep(job), torch.from_numpy(rough))


def test_what_is_not_sent_goes_with_the_next_change() -> None:
    """Two of five elements travel each time, and the models follow those of which all do."""
    options = {"period": 2, "outer": PLAIN, "compression": {"top_k": {"share": 0.4}}}
    job = job_of(options, workers=2, lr=0.02, max_iterations=100)
    plain = job_of({"period": 2, "outer": PLAIN}, workers=2, lr=0.02, max_iterations=100)
    found, expected = finals_of(job)[0], finals_of(plain)[0]
    assert not np.array_equal(found, expected)
    assert np.abs(found - expected).max() < 0.15 * np.abs(expected - start_of(job)[0]).max()


# --- bytes and time -----------------------------------------------------------------------------


def test_a_delay_hides_the_exchange() -> None:
    """1 s a step; an average of half of the model takes 1.5 s, of which a delay of two steps hides all."""
    timed: dict[str, Any] = {
        "workers": 2, "compute_s": 1.0, "bandwidth_bytes_per_s": 2 * 16 / 3, "max_iterations": 24,
        "bytes_per_parameter": 8.0, "start": torch.zeros(4),
    }  # fmt: skip

    def seconds(options: dict[str, Any]) -> float:
        return simulated(make_job("diloco", {"period": 8, **options}, **timed)).wall_clock_s

    assert seconds({}) == pytest.approx(24 + 3 * 3.0)
    assert seconds({"fragments": 2}) == pytest.approx(24 + 6 * 1.5)
    assert seconds({"fragments": 2, "delay": 1}) == pytest.approx(24 + 6 * 0.5, abs=1.01)
    assert seconds({"fragments": 2, "delay": 2}) == pytest.approx(24, abs=1.51)  # the last one is waited for


TEXT = """
name: payload
workload: {%s, payload: 100 MB}
cluster: {workers: 4, compute: {time: 1 s}, network: {latency: 0 s, bandwidth: 8 Gbit/s}}
schemes:
  - diloco: {period: 8, fragments: 4%s}
stop: {max_iterations: 16}
"""


@pytest.mark.parametrize(
    ("more", "share"),
    [
        ("", 1.0),
        (", delay: 1", 1.0),
        (", compression: {qsgd: {bits: 8}}", 0.252),
        (", delay: 1, compression: {qsgd: {bits: 4}}", 0.127),
        (", delay: 1, compression: {top_k: {share: 0.01}}", 0.02 * 3 / 1.5),
    ],
)
@pytest.mark.parametrize(
    "proxy", ["timing_only: true", "task: quadratic, dimension: 40, batch_size: 4, optimizer: {lr: 0.1}"]
)
def test_a_payload_is_cut_into_fragments_whatever_the_proxy(proxy: str, more: str, share: float) -> None:
    scenario = parse(TEXT % (proxy, more))
    run = simulate_job(prepare(scenario, scenario.schemes[0], 0))
    assert run.bytes_sent == pytest.approx(4 * 2 * 1.5 * 100e6 * share, rel=0.01)


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"period": 10, "fragments": 4}, "a period of 10 steps is no multiple of 4 fragments; .*'period: 8'"),
        ({"period": 2, "fragments": 4}, "'period: 4'"),
        ({"period": 8, "fragments": 2, "delay": 4}, "the next fragment leaves 4 steps after .*'delay: 3'"),
        ({"period": 1, "delay": 1}, "'delay: 0'"),
    ],
)
def test_what_cannot_work_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        check(DilocoOptions.model_validate(options), 4)


def test_more_fragments_than_parameters_are_refused() -> None:
    scenario = parse(TEXT % ("task: quadratic, dimension: 3, batch_size: 4, optimizer: {lr: 0.1}", ""))
    with pytest.raises(InputError, match=r"cut into 4 parts, .*has only 3 parameters"):
        prepare(scenario, scenario.schemes[0], 0)


def test_the_averages_are_the_outer_parameters() -> None:
    """With alpha, no worker's model is; without it, all are."""
    whole = scored(job_of({"period": 8, "outer": PLAIN}, max_iterations=8), on="averaged")
    merged = scored(job_of({"period": 8, "outer": PLAIN, "alpha": 0.5}, max_iterations=8), on="averaged")
    scores = [simulated(job).evaluations[-1].metrics for job in (whole, merged)]
    assert scores[0]["suboptimality"] == scores[1]["suboptimality"]
    assert scores[0]["consensus_distance"] == 0.0 != scores[1]["consensus_distance"]
