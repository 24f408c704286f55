"""Values of 16 bits: added up on their way, at half the bytes, rounded at each addition."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.sim.experiments.simulate import simulate
from paceline.sim.network.transport import DDP_SHARE
from paceline.sim.program.averaging import mean_in_half
from paceline.sim.program.encoding import HALF, Codec, Half, encode
from paceline.sim.program.worker import Worker
from paceline.sim.scenario.schema import parse
from tests.support.factory import NoOptions, make_job, make_scheme, run_events

UNIT_ROUNDOFF: dict[Half, float] = {"bf16": 2.0**-8, "fp16": 2.0**-11}

CLUSTER = """\
name: half
workload: {{timing_only: true, batch_size: 16, payload: {payload} B}}
collectives: {{all_reduce: {all_reduce}}}
cluster:
  workers: {workers}
  compute: {{time: 100 ms}}
  network: {network}
schemes: [{scheme}]
stop: {{max_iterations: 4}}
"""
TWO_HOSTS = (
    "{latency: 0.1 ms, bandwidth: 10 Gbit/s, transport: nccl, "
    "host: {gpus: 8, latency: 5 us, bandwidth: 100 GB/s}}"
)
COMPRESS: dict[str, str] = {
    "all_reduce": "",
    "local_sgd": "period: 1, ",
    "diloco": "period: 1, ",
    "slowmo": "period: 1, ",
    "fedavg": "period: 1, ",
    "gossip": "topology: ring, ",
    "gradient_tracking": "topology: ring, ",
    "choco_sgd": "topology: ring, ",
}
"""Synchronous schemes that compress, with the other options that they need."""


def step_s(scheme: str, half: str = "", /, **cluster: Any) -> float:
    """Seconds of a step of a scheme, in 32 bits or encoded."""
    encoded = f"compression: {{{half}: true}}" if half else ""
    entry = f"{{{scheme}: {{{COMPRESS[scheme]}{encoded}}}}}"
    (run,) = simulate(parse(CLUSTER.format(**{"all_reduce": "auto", **cluster}, scheme=entry), "half"))
    return run.wall_clock_s / 4


@pytest.mark.parametrize("half", HALF)
@pytest.mark.parametrize("scheme", ["all_reduce", "local_sgd", "diloco", "slowmo", "fedavg"])
def test_half_the_bytes_take_half_the_time_of_the_same_ring(scheme: str, half: str) -> None:
    """Two hosts of 8 GPUs share a card each: 2 x 15/16 of 100 MB at 1.25 GB/s, and of 50 MB.

    Beside that the ring has 4.6 ms of latencies and of filling; by the same ring half of a part of them. To
    average gradients costs a share of their computing.
    """
    cluster: dict[str, Any] = {
        "workers": 16,
        "payload": 100_000_000,
        "network": TWO_HOSTS,
        "all_reduce": "nccl_ring",
    }
    full_s, half_s = step_s(scheme, **cluster), step_s(scheme, half, **cluster)
    computing_s = 0.1 * (1 + (DDP_SHARE.value if scheme == "all_reduce" else 0.0))
    assert full_s == pytest.approx(computing_s + 2 * 15 / 16 * 0.08, abs=2e-3)
    assert half_s == pytest.approx(computing_s + 2 * 15 / 16 * 0.04, abs=2e-3)
    assert half_s == step_s(scheme, **{**cluster, "payload": 50_000_000})


@pytest.mark.parametrize("half", HALF)
def test_values_are_rounded_divided_and_added_in_rank_order(half: Half) -> None:
    u = UNIT_ROUNDOFF[half]
    values = torch.tensor(
        [[4.0, 4.0, 1.0 + u], [4 * u, 8 * u, 1.0 + 3 * u], [4 * u, 8 * u, -1.0], [0.0, 0.0, 0.0]]
    )
    mean = mean_in_half([encode(half, value, torch.Tensor) for value in values])
    # 1 + u lies half way to 1 + 2 u and goes to the even number, 1, each time; 1 + 3 u goes to 1 + 4 u.
    assert mean.tolist() == [1.0, 1.0 + 4 * u, (1.0 + 4 * u) / 4]
    assert mean.dtype == torch.float32


@given(half=st.sampled_from(list(HALF)), n=st.integers(1, 9), seed=st.integers(0, 999))
@settings(derandomize=True, max_examples=60)
def test_another_order_differs_by_the_stated_bound(half: Half, n: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(n, 33, generator=generator)
    encoded = [encode(half, value, lambda: values) for value in values]
    order = torch.randperm(n, generator=generator).tolist()
    mean, other = mean_in_half(encoded), mean_in_half([encoded[i] for i in order])
    u = UNIT_ROUNDOFF[half]
    most = 2 * (n - 1) * u * (values.abs().sum(0) / n) * (1 + u) ** (n + 1)
    assert torch.all((mean - other).abs() <= most)
    if n == 2:
        assert torch.equal(mean, other)
    # The roundings of a value and of its share come on top.
    assert torch.all(
        (mean - values.mean(0)).abs() <= (n + 1) * u * (values.abs().sum(0) / n) * (1 + u) ** (n + 1) + 1e-6
    )


@pytest.mark.parametrize("codec", list(HALF))
def test_what_a_users_scheme_has_rounded_is_added_up(codec: Codec) -> None:
    means: list[torch.Tensor] = []

    async def program(worker: Worker, options: NoOptions) -> None:
        value = torch.full((3,), float(worker.rank))
        means.append(await worker.all_reduce(encode(codec, value, lambda: value)))

    run_events(make_job(make_scheme(program), workers=4, task="quadratic", task_options={"dimension": 3}))
    assert [mean.tolist() for mean in means] == [[1.5] * 3] * 4


@st.composite
def clusters(draw: st.DrawFn) -> dict[str, Any]:
    """Flat networks, hosts of GPUs and sites, over each transport; and a payload."""
    latency, rate = draw(st.sampled_from([0, 0.05, 2, 40])), draw(st.sampled_from([20, 1000, 25_000]))
    transport = draw(st.sampled_from(["ideal", "gloo", "nccl"]))
    link = f"latency: {latency} ms, bandwidth: {rate} Mbit/s"
    form = draw(st.sampled_from(["flat", "hosts", "sites"]))
    if form == "sites":
        per_site = draw(st.lists(st.integers(1, 3), min_size=2, max_size=3))
        workers = sum(per_site)
        sites = ", ".join(f"s{number}: {count}" for number, count in enumerate(per_site))
        inside = "{latency: 0.1 ms, bandwidth: 10 Gbit/s}"
        network = f"{{sites: {{{sites}}}, within: {inside}, between: {{{link}}}, transport: {transport}}}"
    elif form == "hosts":
        gpus = draw(st.integers(2, 4))
        workers = gpus * draw(st.integers(1, 3))
        host = f"{{gpus: {gpus}, latency: 5 us, bandwidth: 50 GB/s}}"
        network = f"{{{link}, transport: {transport}, host: {host}}}"
    else:
        workers = draw(st.integers(2, 7))
        network = f"{{{link}, transport: {transport}}}"
    payload = draw(st.sampled_from([4, 50_000, 3_000_001, 100_000_000]))
    # NCCL's own choice knows neither latency nor bandwidth, and may take the slower algorithm of fewer bytes.
    algorithm = draw(st.sampled_from(["nccl_ring", "nccl_tree"])) if transport == "nccl" else "auto"
    return {"workers": workers, "network": network, "payload": payload, "all_reduce": algorithm}


def is_never_slower(scheme: str, half: str, cluster: dict[str, Any]) -> None:
    assert step_s(scheme, half, **cluster) <= step_s(scheme, **cluster) * (1 + 1e-9)


@pytest.mark.slow
@given(scheme=st.sampled_from(list(COMPRESS)), half=st.sampled_from(list(HALF)), cluster=clusters())
@settings(derandomize=True, max_examples=40)
def test_half_is_never_slower(scheme: str, half: str, cluster: dict[str, Any]) -> None:
    is_never_slower(scheme, half, cluster)


@pytest.mark.slow
@given(scheme=st.sampled_from(list(COMPRESS)), half=st.sampled_from(list(HALF)), cluster=clusters())
@settings(max_examples=100)
def test_half_is_never_slower_on_many_networks(scheme: str, half: str, cluster: dict[str, Any]) -> None:
    is_never_slower(scheme, half, cluster)
