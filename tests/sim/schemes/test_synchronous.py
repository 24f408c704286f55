"""Synchronous SGD in its forms: one update, the bytes of the fact sheets, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from paceline.sim.drivers.job import Job
from paceline.sim.errors import InputError
from paceline.sim.experiments.prepare import prepare
from paceline.sim.experiments.simulate import simulate_job
from paceline.sim.program.encoding import Compression, Qsgd
from paceline.sim.program.worker import Worker
from paceline.sim.scenario.schema import parse
from paceline.sim.schemes.all_reduce import AllReduceOptions, check
from paceline.sim.schemes.common.compressed import CompressedAllReduce
from paceline.sim.training.optimizer import OptimizerSettings, make_optimizer
from tests.support.factory import make_job, make_scheme, run_events, scored, simulated

OPTIMIZERS = {
    "sgd": OptimizerSettings(lr=0.1),
    "momentum": OptimizerSettings.model_validate({"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    "adam": OptimizerSettings.model_validate({"adam": {"lr": 0.01}}),
}


def job_with(options: dict[str, Any], optimizer: str = "sgd", **job: Any) -> Job:
    made = make_job("all_reduce", options, task="digits-mlp", max_iterations=5, **job)
    return replace(made, optimizer=make_optimizer(OPTIMIZERS[optimizer]))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("workers", [1, 3, 4])
def test_part_reduce_makes_the_same_update(workers: int, optimizer: str) -> None:
    whole = run_events(job_with({}, optimizer, workers=workers)).finals
    parts = run_events(job_with({"part_reduce": True}, optimizer, workers=workers)).finals
    assert all(torch.equal(x, parts[0]) for x in parts)
    assert torch.equal(parts[0], whole[0])  # elementwise, after the same mean: the same bits


@pytest.mark.parametrize("options", [{"overlap": True}, {"overlap": True, "bucket": "3000 B"}])
def test_buckets_make_the_same_update(options: dict[str, Any]) -> None:
    found = run_events(job_with(options, "momentum")).finals[0]
    assert torch.equal(found, run_events(job_with({}, "momentum")).finals[0])


def operations(job: Job) -> list[str]:
    return [e.operation for e in simulated(job).events if e.worker == 0 and e.step == 0 and e.bytes]


def test_layers_are_put_together_until_a_bucket_is_full() -> None:
    # digits-mlp backwards: 650 elements of the second layer, 4,160 of the first; four bytes each.
    layers = [stop - start for _, start, stop in job_with({}).layers.segments]
    assert sum(layers) == 4810
    assert len(operations(job_with({"overlap": True}))) == len(layers)
    assert len(operations(job_with({"overlap": True, "bucket": "19240 B"}))) == 1
    assert len(operations(job_with({"overlap": True, "bucket": "1 GB"}))) == 1
    two = job_with({"overlap": True, "bucket": "2600 B"})
    assert len(operations(two)) == 2
    # a payload of ten times the model fills buckets ten times as fast
    padded = job_with({"overlap": True, "bucket": "26 kB"}, bytes_per_parameter=40.0)
    assert len(operations(padded)) == 2


# --- bytes --------------------------------------------------------------------------------------


def bytes_per_step(options: dict[str, Any], workers: int, **job: Any) -> float:
    made = job_with(options, workers=workers, **job)
    return simulated(made).bytes_sent / workers / 5


@pytest.mark.parametrize("workers", [2, 5])
@pytest.mark.parametrize("payload", [4.0, 400.0])
def test_part_reduce_and_part_broadcast_move_as_much_as_a_ring(workers: int, payload: float) -> None:
    model_bytes = 4810 * payload
    for options in ({}, {"part_reduce": True}):
        found = bytes_per_step(options, workers, bytes_per_parameter=payload)
        assert found == pytest.approx(2 * (workers - 1) / workers * model_bytes, rel=1e-3)


@pytest.mark.parametrize(("bits", "share"), [(8, 1 / 4), (4, 1 / 8)])
def test_qsgd_moves_bits_over_32_of_the_bytes(bits: int, share: float) -> None:
    """b P / 8 and a norm for each of the four shards (a bucket), in both halves of an all-reduce."""
    options = {"compression": {"qsgd": {"bits": bits, "bucket": 4096}}}
    plain = bytes_per_step({}, 4, bytes_per_parameter=400.0)
    norms = 2 * 3 / 4 * 4 * 4 * 100
    found = bytes_per_step(options, 4, bytes_per_parameter=400.0)
    assert found == pytest.approx(share * plain + norms, rel=0.01)
    assert bytes_per_step({"compression": {"bf16": True}}, 4) == pytest.approx(2 * 2 * 3 / 4 * 4810, rel=1e-3)


def test_a_model_that_only_stands_for_its_bytes_is_compressed_as_much() -> None:
    job = make_job(
        "all_reduce", {"compression": {"qsgd": {}}}, workers=4, max_iterations=5, bytes_per_parameter=1e6
    )
    assert simulated(job).bytes_sent / 4 / 5 == pytest.approx(1.5e6 * (1 / 4 + 1 / 512), rel=1e-3)


@pytest.mark.parametrize("algorithm", ["ring_stop_and_wait", "gloo_ring"])
@pytest.mark.parametrize("proxy", [{}, {"task": "quadratic", "task_options": {"dimension": 10}}])
def test_compression_is_priced_by_the_payload_whatever_the_proxy(
    proxy: dict[str, Any], algorithm: str
) -> None:
    """10 MB, 10 workers: shards of 250,000 elements, each with 489 norms; the proxy has 1 element or 10."""
    payload = 1e7 / (10 if proxy else 1)
    shared: dict[str, Any] = {"workers": 10, "max_iterations": 1, "bytes_per_parameter": payload, **proxy}

    def sent(options: dict[str, Any], scheme: str = "all_reduce") -> int:
        return simulated(make_job(scheme, options, all_reduce=algorithm, **shared)).bytes_sent

    compression: dict[str, Any] = {"compression": {"qsgd": {}}}
    shard = 250_000 + 489 * 4
    assert sent(compression) == 10 * 2 * 9 * shard
    assert sent(compression) / sent({}) == pytest.approx(0.252, abs=1e-3)
    assert sent({"period": 1, **compression}, "local_sgd") == 10 * 2 * 9 * shard
    whole = 2_500_000 + 4883 * 4
    assert sent({"topology": "ring", **compression}, "gossip") == 10 * 2 * whole
    assert sent({"compression": {"bf16": True}}) * 2 == sent({})
    assert sent({"part_reduce": True}) == sent({})


# --- time ---------------------------------------------------------------------------------------


def test_overlap_hides_all_but_the_first_layers_exchange() -> None:
    """At once: the sum of computing and communicating. Overlapped: computing, and the layer made last."""
    bandwidth = 260_000.0  # the second layer's 2,600 bytes take 10 ms, the first one's 16,640 take 64 ms
    timed: dict[str, Any] = {"workers": 2, "compute_s": 1.0, "bandwidth_bytes_per_s": bandwidth}
    at_once = simulated(job_with({}, **timed)).wall_clock_s / 5
    assert at_once == pytest.approx(1.0 + 0.010 + 0.064, rel=1e-9)
    overlapped = simulated(job_with({"overlap": True}, **timed)).wall_clock_s / 5
    assert overlapped == pytest.approx(1.0 + 0.064, rel=1e-9)
    parts = simulated(job_with({"part_reduce": True}, **timed)).wall_clock_s / 5
    assert parts == pytest.approx(at_once, rel=1e-9)


@pytest.mark.parametrize(
    "options", [{}, {"overlap": True, "bucket": "1 MB"}, {"compression": {"bf16": True}}]
)
def test_buffers_are_broadcast_before_every_forward_pass(options: dict[str, Any]) -> None:
    """26 kB are 0.1 s over the root's link; a bucket of all layers leaves after the gradient."""
    timed: dict[str, Any] = {"workers": 2, "compute_s": 1.0, "bandwidth_bytes_per_s": 260_000.0}
    plain, sent = (
        simulated(job_with({**options, **more}, "momentum", **timed)) for more in ({}, {"buffers": "26 kB"})
    )
    assert sent.wall_clock_s == pytest.approx(plain.wall_clock_s + 5 * 0.1, rel=1e-9)
    assert sent.bytes_sent == plain.bytes_sent + 5 * 26_000
    assert sent.digest == plain.digest
    assert next(e.operation for e in sent.events if e.worker == 1 and e.step == 0) == "broadcast"


PAYLOAD = """
name: payload
workload: {%s, payload: 104 MB}
cluster: {workers: 2, compute: {time: 1 s}, network: {latency: 0 s, bandwidth: 2.08 Gbit/s}}
schemes:
  - all_reduce: {overlap: true, bucket: %s}
stop: {max_iterations: 5}
"""
PROXIES = (
    "timing_only: true",
    "task: quadratic, dimension: 12, batch_size: 4, optimizer: {lr: 0.1}",
    "task: digits-mlp, batch_size: 4, optimizer: {lr: 0.1}",
)


@pytest.mark.parametrize("proxy", PROXIES)
@pytest.mark.parametrize(
    ("bucket", "left_s"),
    [
        ("104 MB", 0.4),  # sent when all of it is there
        ("1 GB", 0.4),
        ("52 MB", 0.2),  # the first half leaves between 2/3 s and 13/15 s
        ("40 MB", 0.2),  # two buckets of at least that
        ("26 MB", 0.1),  # ready at 1/2, 2/3, 5/6 and 1 s
    ],
)
def test_a_payload_is_sent_in_equal_buckets_whatever_the_proxy(
    proxy: str, bucket: str, left_s: float
) -> None:
    """Whole, it takes two times 52 MB at 260 MB/s."""
    scenario = parse(PAYLOAD % (proxy, bucket))
    run = simulate_job(prepare(scenario, scenario.schemes[0], 0))
    assert run.wall_clock_s / 5 == pytest.approx(1.0 + left_s, rel=1e-4)
    assert run.bytes_sent == pytest.approx(5 * 2 * 104e6, rel=1e-6)


def test_a_payload_has_no_more_buckets_than_its_proxy_has_parameters() -> None:
    scenario = parse(PAYLOAD % (PROXIES[1], "1 MB"))
    with pytest.raises(InputError, match=r"104 buckets, the model .*quadratic.* only 12 parameters"):
        prepare(scenario, scenario.schemes[0], 0)


def test_a_payload_has_no_segments_for_a_scheme_that_does_not_say_how_to_cut_it() -> None:
    text = PAYLOAD.replace("all_reduce: {overlap: true, bucket: %s}", "'tests.support.own_schemes:by_layer'")
    scenario = parse(text % PROXIES[2])
    run = simulate_job(prepare(scenario, scenario.schemes[0], 0))
    assert run.status == "partial"
    assert "asks for the segments of a gradient that stands for a payload" in run.message


# --- compression --------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_compressed_average_is_unbiased() -> None:
    codec = Qsgd(bits=3, bucket=4)
    values = torch.randn(3, 10, generator=torch.Generator().manual_seed(1))
    trials = 600

    async def program(worker: Worker, options: Any) -> None:
        wire = CompressedAllReduce(worker, Compression(qsgd=codec))
        total = torch.zeros(10)
        for k in range(trials):
            total = total + await wire.all_reduce(values[worker.rank], k)
        await worker.publish(0, total / trials)

    job = make_job(
        make_scheme(program),
        task="quadratic",
        task_options={"dimension": 10},
        workers=3,
        start=torch.zeros(10),
    )
    found = run_events(job).finals
    assert torch.equal(found[0], found[2])
    # An element is off by a step of its shard's norm at most, each way.
    step = values.norm(dim=1).max() / codec.levels
    assert torch.all((found[0] - values.mean(0)).abs() < 5 * 2 * step / math.sqrt(trials))


def test_training_with_few_bits_still_learns() -> None:
    job = job_with({"compression": {"qsgd": {"bits": 4, "bucket": 64}}}, "momentum")
    run = simulated(replace(scored(job, every=25), max_iterations=25))
    losses = [e.metrics["train_loss"] for e in run.evaluations]
    assert losses[-1] is not None
    assert losses[0] is not None
    assert losses[-1] < 0.5 * losses[0]


def test_averaging_every_change_is_averaging_every_gradient() -> None:
    """Local SGD of period 1 without momentum: the change is -lr times the gradient, with the same draws."""
    compression = {"qsgd": {"bits": 3, "bucket": 64}}
    gradients = run_events(job_with({"compression": compression})).finals[0]
    job = make_job(
        "local_sgd", {"period": 1, "compression": compression}, task="digits-mlp", max_iterations=5
    )
    changes = run_events(job).finals
    assert torch.equal(changes[0], changes[3])
    assert torch.allclose(changes[0], gradients, rtol=0, atol=1e-3)
    plain = run_events(job_with({})).finals[0]
    assert not torch.allclose(plain, gradients, rtol=0, atol=1e-3)


@pytest.mark.parametrize("order", ["adapt_then_combine", "combine_while_adapting"])
def test_compressed_gossip_keeps_the_mean(order: str) -> None:
    """The first step's gradients do not depend on what was sent: the mean model is that of plain gossip."""
    options = {"topology": "ring", "order": order}

    def finals(extra: dict[str, Any]) -> torch.Tensor:
        job = make_job("gossip", {**options, **extra}, task="quadratic", max_iterations=1, lr=0.01)
        return torch.stack(run_events(job).finals)

    rough, plain = finals({"compression": {"qsgd": {"bits": 2, "bucket": 8}}}), finals({})
    assert torch.allclose(rough.mean(0), plain.mean(0), rtol=0, atol=1e-6)
    assert (
        simulated(
            make_job("gossip", {**options, "compression": {"bf16": True}}, task="quadratic", max_iterations=3)
        ).bytes_sent
        * 2
        == simulated(make_job("gossip", options, task="quadratic", max_iterations=3)).bytes_sent
    )


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"bucket": "1 kB"}, "a bucket needs 'overlap: true'"),
        ({"overlap": True, "part_reduce": True}, "overlap and part_reduce do not go together"),
        (
            {"part_reduce": True, "compression": {"bf16": True}},
            "part_reduce and compression do not go together",
        ),
        (
            {"part_reduce": True, "buffers": "1 MB"},
            "leave part_reduce, next_forward, quorum and deadline out",
        ),
        ({"quorum": 2, "buffers": "1 MB"}, "leave part_reduce, next_forward, quorum and deadline out"),
        ({"overlap": True, "next_forward": True, "buffers": "1 MB"}, "leave part_reduce, next_forward"),
    ],
)
def test_options_that_exclude_each_other(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        check(AllReduceOptions(**options), 4)
