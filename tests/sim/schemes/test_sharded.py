"""Sharded data parallelism: the update of all-reduce, times and bytes by hand, the order of torch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.sim.drivers.event import EventDriver
from paceline.sim.drivers.job import Job, JobLayers
from paceline.sim.errors import InputError
from paceline.sim.experiments.costs.step_cost import follow, whole_job
from paceline.sim.experiments.prepare import prepare, resolve
from paceline.sim.scenario.schema import Scenario, parse
from paceline.sim.schemes.sharded import ShardedOptions, check, reduces
from paceline.sim.training.optimizer import OptimizerSettings, make_optimizer
from tests.support.factory import make_job, network_of, run_events, simulated, sites_of

OPTIMIZERS = {
    "sgd": {"lr": 0.1},
    "momentum": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01},
    "adam": {"adam": {"lr": 0.01}},
}
EVERY_FORM: tuple[dict[str, Any], ...] = (
    {}, {"reshard": False}, {"prefetch": 0}, {"prefetch": 3}, {"unit": "4 kB"}, {"shard": "gradients"},
    {"shard": "optimizer"},
)  # fmt: skip


def job_with(scheme: str, options: dict[str, Any], optimizer: str = "sgd", **job: Any) -> Job:
    made = make_job(scheme, options, task="digits-mlp", **{"max_iterations": 5, **job})
    settings = OptimizerSettings.model_validate(OPTIMIZERS[optimizer])
    return replace(made, optimizer=make_optimizer(settings))


# --- the update ---------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("workers", [1, 3, 4])
@pytest.mark.parametrize("options", EVERY_FORM, ids=str)
def test_every_form_makes_the_update_of_all_reduce(
    options: dict[str, Any], workers: int, optimizer: str
) -> None:
    whole = run_events(job_with("all_reduce", {}, optimizer, workers=workers)).finals[0]
    for mine in run_events(job_with("sharded", options, optimizer, workers=workers)).finals:
        assert torch.equal(mine, whole)  # elementwise, after the same mean: the same bits


@pytest.mark.parametrize("inside", ["hosts", "sites"])
def test_hybrid_shards_make_the_update_up_to_the_order_of_sums(inside: str) -> None:
    host = {"gpus": 2, "latency": "0 s"}
    network = (
        sites_of({"a": 2, "b": 2})
        if inside == "sites"
        else network_of(4, latency="1 ms", bandwidth="1 Gbit/s", host=host)
    )
    whole = run_events(job_with("all_reduce", {}, "adam", network=network)).finals[0]
    for mine in run_events(job_with("sharded", {"inside": inside}, "adam", network=network)).finals:
        assert torch.allclose(mine, whole, rtol=0, atol=1e-6)


@pytest.mark.parametrize("options", [{}, {"reduce": "last"}, {"shard": "gradients"}, {"shard": "optimizer"}])
def test_each_of_several_batches_is_reduced_or_their_sum(options: dict[str, Any]) -> None:
    whole, mine = (
        run_events(job_with(scheme, given, "adam", workers=3, accumulate=4)).finals[0]
        for scheme, given in (("all_reduce", {}), ("sharded", options))
    )
    if reduces(ShardedOptions(**options)) == "last":
        assert torch.equal(mine, whole)  # one sum on the worker, then one mean
    assert torch.allclose(mine, whole, rtol=0, atol=1e-6)


def test_gradients_of_parts_have_the_mean_of_the_batch() -> None:
    job = job_with("sharded", {"reduce": "last"}, accumulate=4)
    assert job.problem is not None
    of_parts = [job.problem.of_part(3, part) for part in range(4)]
    values = [problem.gradient(1, number, job.start).value for problem, number in of_parts]
    whole = job.problem.gradient(1, 3, job.start).value
    assert torch.allclose(torch.stack(values).mean(0), whole, rtol=0, atol=1e-7)


@pytest.mark.parametrize(
    "sharded", [("all_reduce", {"part_reduce": True}), ("sharded", {}), ("sharded", {"unit": "1 GB"})]
)
def test_running_buffers_are_averaged_in_shards_too(sharded: tuple[str, dict[str, Any]]) -> None:
    task = "tests.support.own_tasks:normed"
    whole, mine = (
        run_events(make_job(*of, task=task, max_iterations=3, momentum=0.9)).finals[0]
        for of in (("all_reduce", {}), sharded)
    )
    assert torch.equal(whole, mine)


# --- times, computed by hand --------------------------------------------------------------------

SCENARIO = """\
name: s
workload: {{timing_only: true, payload: 4 GB, accumulate: {batches}}}
cluster:
  compute: {{time: 12 s}}
  network:
    {network}
schemes: [{{{scheme}}}]
stop: {{max_iterations: 8}}
"""
"""Four layers of 1 GB: forward 1 s and backward 2 s each."""
TWO = "sites: {a: 2}\n    within: {latency: 0 s, bandwidth: RATE}"
TWO_OF_TWO = (
    "host: {gpus: 2, bandwidth: 1e9 GB/s}\n    sites: {a: 4}\n    within: {latency: 0 s, bandwidth: RATE}"
)
LAUNCHES = {"": 0.0, "transport: nccl": 4e-4}


def scenario_of(scheme: str, network: str, rate: str, batches: int = 1, transport: str = "") -> Scenario:
    network = "\n    ".join([network.replace("RATE", rate), *([transport] if transport else [])])
    text = SCENARIO.format(scheme=scheme, network=network, batches=batches)
    return resolve(parse(text), torch.device("cpu"))


def hand_computed(scheme: str, network: str, rate: str, batches: int = 1) -> Job:
    scenario = scenario_of(scheme, network, rate, batches)
    return prepare(scenario, scenario.schemes[0], 1)


def step_s(scheme: str, network: str, rate: str, batches: int = 1, transport: str = "") -> float:
    scenario = scenario_of(scheme, network, rate, batches, transport)
    return follow(whole_job(scenario, scenario.schemes[0]), lambda complete, _: complete >= 3).step_s


@pytest.mark.parametrize("transport", LAUNCHES)
@pytest.mark.parametrize(
    ("scheme", "rate", "batches", "by_hand"),
    [
        # the first gather, forward passes, the gather at the turn, backward passes, the last reduce-scatter
        ("", "2 GB/s", 1, 0.25 + 4 + 0.25 + 8 + 0.25),
        ("reshard: false", "2 GB/s", 1, 0.25 + 4 + 8 + 0.25),
        ("prefetch: 0", "2 GB/s", 1, 4 * (0.25 + 1) + 4 * (0.25 + 2 + 0.25)),
        ("shard: optimizer", "2 GB/s", 1, 0.25 + 4 + 8 + 0.25),
        ("shard: gradients", "2 GB/s", 2, 0.25 + 2 * (4 + 8 + 0.25)),
        ("shard: optimizer", "2 GB/s", 2, 0.25 + 2 * (4 + 8) + 0.25),
        ("", "2 GB/s", 2, 2 * 12.75),
        ("reduce: last", "2 GB/s", 2, 2 * 12.75 - 0.25),
        # twelve collectives of 3 s in one order, none while the last layer goes forward
        ("", f"{1 / 6} GB/s", 1, 12 * 3 + 1),
    ],
)  # fmt: skip
def test_two_workers_take_the_time_computed_by_hand(
    scheme: str, rate: str, batches: int, by_hand: float, transport: str
) -> None:
    options = ", ".join(["unit: 1 GB", *([scheme] if scheme else [])])
    took_s = step_s(f"sharded: {{{options}}}", TWO, rate, batches, transport)
    assert by_hand - 1e-9 <= took_s <= by_hand + LAUNCHES[transport] + 1e-9


@pytest.mark.parametrize("transport", LAUNCHES)
def test_all_reduces_of_replicas_run_beside_what_is_inside_hosts(transport: str) -> None:
    took_s = step_s("sharded: {unit: 1 GB, inside: hosts}", TWO_OF_TWO, "0.25 GB/s", 1, transport)
    # The first shards are ready at 6 s; then 0.5 GB of four units each way at 0.25 GB/s, on a card of two.
    assert took_s == pytest.approx(6 + 4 * 4, abs=5e-4)


def test_publishing_and_the_next_step_wait_for_the_gathers_of_the_forward_pass() -> None:
    # A step ends at its last reduce-scatter, 12.75 s; it is published once the next forward pass has gathered
    # all: after the first gather, the three behind it and the last layer's own second.
    job = hand_computed("sharded: {unit: 1 GB}", TWO, "2 GB/s")
    ends = sorted(e.end_s for e in simulated(job).events if e.operation == "forward")
    assert ends[:4] == [1.25] * 2 + [2.25] * 2


@pytest.mark.parametrize("inner", ["0.5 GB/s", "4 GB/s"])
@pytest.mark.parametrize("transport", LAUNCHES)
def test_hybrid_collectives_take_as_long_priced_as_message_by_message(transport: str, inner: str) -> None:
    """Those of shards and of replicas meet on the workers' links inside hosts."""
    network = TWO_OF_TWO.replace("1e9 GB/s", inner)
    scenario = scenario_of("sharded: {unit: 500 MB, inside: hosts}", network, "1 GB/s", 1, transport)
    job = replace(prepare(scenario, scenario.schemes[0], 1), max_iterations=3)
    priced, followed = (
        EventDriver(job, [job.program(rank) for rank in range(4)], job.scorer(), priced=each).run().wall_s
        for each in (True, False)
    )
    assert priced == pytest.approx(followed, rel=1e-9)


# --- laws ---------------------------------------------------------------------------------------


def test_with_infinite_bandwidth_a_step_is_that_of_all_reduce() -> None:
    for options in ("", "reshard: false, prefetch: 0", "shard: optimizer", "shard: gradients"):
        scheme = f"sharded: {{unit: 1 GB, {options}}}"
        for batches in (1, 3):
            assert step_s(scheme, TWO, "1e9 GB/s", batches) == pytest.approx(12 * batches, rel=1e-9)


BANDWIDTHS = st.floats(1e-3, 1e3)


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from(["shard: full", "reshard: false", "shard: gradients", "shard: optimizer", "prefetch: 2"]),
    st.sampled_from(sorted(LAUNCHES)),
    st.integers(1, 3),
    st.tuples(BANDWIDTHS, BANDWIDTHS),
)
def test_a_step_is_at_most_computing_plus_communication_and_falls_with_bandwidth(
    option: str, transport: str, batches: int, rates: tuple[float, float]
) -> None:
    scheme = f"sharded: {{unit: 500 MB, {option}}}"
    slow, fast = sorted(rates)
    took_s = [step_s(scheme, TWO, f"{rate} GB/s", batches, transport) for rate in (slow, fast)]
    assert took_s[1] <= took_s[0] * (1 + 1e-9)
    for rate, each_s in zip((slow, fast), took_s, strict=True):
        compute_s, share_s = 12 * batches, MODELS[option](batches) / 2 * 4 / rate
        most_s = compute_s + share_s + batches * 8 * LAUNCHES[transport]
        assert max(compute_s, share_s) * (1 - 1e-9) <= each_s <= most_s * (1 + 1e-9)


MODELS: dict[str, Callable[[int], int]] = {
    "shard: full": lambda m: 3 * m,
    "prefetch: 2": lambda m: 3 * m,
    "reshard: false": lambda m: 2 * m,
    "shard: gradients": lambda m: m + 1,
    "shard: optimizer": lambda m: 2,
    "reduce: last": lambda m: 2 * m + 1,
}
"""Models times (n-1)/n that a worker sends in a step of m batches, by a ring."""


@pytest.mark.parametrize("batches", [1, 3])
@pytest.mark.parametrize("workers", [2, 5])
@pytest.mark.parametrize("option", MODELS)
def test_a_worker_sends_the_bytes_of_its_form(option: str, workers: int, batches: int) -> None:
    network = f"sites: {{a: {workers}}}\n    within: {{latency: 0 s, bandwidth: 1 GB/s}}"
    job = hand_computed(f"sharded: {{unit: 1 GB, {option}}}", network, "", batches)
    run = simulated(replace(job, max_iterations=4))
    gathers = (0 if option in ("shard: gradients", "shard: optimizer") else 1) * 4e9
    share = (workers - 1) / workers
    assert run.bytes_sent == pytest.approx(
        workers * share * (4 * MODELS[option](batches) * 4e9 + gathers), rel=1e-9
    )


@pytest.mark.parametrize(("reduce", "averages"), [("each", 3), ("inside", 1), ("last", 1)])
def test_replicas_average_the_shards_that_are_due(reduce: str, averages: int) -> None:
    job = hand_computed(f"sharded: {{unit: 1 GB, inside: hosts, reduce: {reduce}}}", TWO_OF_TWO, "1 GB/s", 3)
    run = simulated(replace(job, max_iterations=2))
    inside = {"each": 9, "inside": 9, "last": 7}[reduce] / 2 * 4e9
    across = averages * (2 * 1 / 2) * 2e9  # a shard of half a model, between two replicas
    assert run.bytes_sent == pytest.approx(4 * (2 * (inside + across) + 4e9 / 2), rel=1e-9)


def test_gradients_in_single_precision_are_twice_as_long() -> None:
    text = SCENARIO.format(
        scheme="sharded: {unit: 500 MB, inside: hosts OPTION}", network=TWO_OF_TWO, batches=1
    )
    text = text.replace("RATE", "1 GB/s").replace("payload: 4 GB", "payload: 4 GB, precision: bf16")
    sent = []
    for option in ("", ", gradients: float32"):
        scenario = resolve(parse(text.replace(" OPTION", option)), torch.device("cpu"))
        sent.append(
            simulated(replace(prepare(scenario, scenario.schemes[0], 1), max_iterations=1)).bytes_sent
        )
    gathers, gradients = 3 * 4e9 / 2, 4e9 / 2 + 2 * (1 / 2) * 2e9
    assert sent == [4 * (gathers + gradients), 4 * (gathers + 2 * gradients)]


# --- the order of torch -------------------------------------------------------------------------

_ORDER = """
import torch, torch.distributed as dist, torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp._fully_shard import _fsdp_collectives as collectives
from torch.testing._internal.distributed.fake_pg import FakeStore

dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
log = []
named = {collectives.DefaultAllGather: "gather_strips", collectives.DefaultReduceScatter: "reduce_scatter"}
for kind, name in named.items():
    def patch(kind=kind, name=name, call=kind.__call__):
        def logged(self, *args, **keywords):
            tensors = [each for each in (*args, *keywords.values()) if torch.is_tensor(each)]
            log.append(f"{name} {max(each.numel() for each in tensors)}")
            return call(self, *args, **keywords)
        kind.__call__ = logged
    patch()
def go(reshard, batches, last):
    log.clear()
    layers = [nn.Linear(width, other, bias=False) for width, other in ((4, 6), (6, 10), (10, 2))]
    net = nn.Sequential(*layers)
    for layer in layers:
        fully_shard(layer, reshard_after_forward=reshard)
    fully_shard(net, reshard_after_forward=reshard)
    for batch in range(batches):
        if last:
            net.set_requires_gradient_sync(batch == batches - 1)
        net(torch.randn(3, 4)).sum().backward()
    print("\\n".join(log))
"""
"""Collectives of ``fully_shard`` in the order of issue, each with its elements; the group is a fake."""


@pytest.mark.slow
def test_collectives_have_the_order_of_torch() -> None:
    forms: list[tuple[dict[str, Any], int]] = [
        ({}, 1),
        ({"reshard": False}, 1),
        ({}, 2),
        ({"reduce": "last"}, 2),
    ]
    calls = [
        f"go({of.get('reshard', True)}, {batches}, {of.get('reduce') == 'last'})" for of, batches in forms
    ]
    text = _ORDER + "\nprint()\n".join(calls)
    theirs = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True).stdout
    for (options, batches), order in zip(forms, theirs.split("\n\n"), strict=True):
        job = make_job(
            "sharded", options, workers=2, start=torch.zeros(104), max_iterations=1, accumulate=batches
        )
        run = simulated(replace(job, layers=JobLayers((("c", 84, 104), ("b", 24, 84), ("a", 0, 24)))))
        mine = [
            f"{e.operation} {e.bytes // 2}"
            for e in sorted(run.events, key=lambda e: (e.start_s, e.end_s))
            if e.worker == 0 and e.bytes
        ]
        assert mine[:-3] == order.strip().split("\n")  # ours gather the last model once more


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"shard": "gradients", "reshard": False}, "parameters stay whole; leave 'reshard' out"),
        ({"reduce": "inside"}, "write 'inside: hosts' beside it, or 'reduce: each'"),
        ({"shard": "optimizer", "reduce": "each"}, "write 'shard: gradients'"),
    ],
)
def test_options_that_exclude_each_other_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        check(ShardedOptions(**options), 4)


def test_units_of_a_payload_have_a_size() -> None:
    with pytest.raises(InputError, match="write for example 'unit: 100 MB', for equal units of at least"):
        scenario_of("sharded", TWO, "1 GB/s")
