"""What the transports change: who waits for whom, in which order, and what a message costs."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.sim import topology
from paceline.sim.config.settings import Settings
from paceline.sim.errors import InputError
from paceline.sim.experiments.prepare import clock_only, prepare, resolve
from paceline.sim.experiments.simulate import simulate_job
from paceline.sim.network.network import Network
from paceline.sim.network.transport import (
    DDP_SHARE,
    DEVICE_COPY,
    GLOO_FACTORS,
    NCCL_LAUNCH,
    TRANSPORTS,
    TransferModel,
    find_routes,
    route_pairs,
)
from paceline.sim.program import operations as ops
from paceline.sim.program.worker import Worker
from paceline.sim.scenario.schema import Scenario, dump, parse
from tests.sim.network.test_network_graphs import campus, written
from tests.support.factory import make_job, make_scheme, network_of, run_events
from tests.support.gpu_hosts import two_sites

SCENARIO = """\
name: one
workload: {timing_only: true, payload: 8 MB}
cluster:
  workers: 4
  compute: {time: 10 ms}
  network: {latency: 5 ms, bandwidth: 1 Gbit/s}
schemes:
  - all_reduce
  - all_reduce: {label: overlapped, overlap: true, bucket: 1 MB}
  - gossip: {topology: ring}
  - gossip: {topology: one_peer_exponential}
  - ad_psgd
  - local_sgd: {period: 2}
  - sgp: {topology: one_peer_exponential}
  - easgd: {period: 2}
  - downpour: {period: 2}
  - leader_sgd: {period: 2}
stop: {max_iterations: 3}
"""


def took_s(*changes: str, scheme: int = 0) -> float:
    scenario = parse(SCENARIO, "f.yaml", changes)
    run = simulate_job(clock_only(prepare(scenario, scenario.schemes[scheme], 0)))
    assert run.status == "completed"
    return run.wall_clock_s


def transport(name: str) -> str:
    return f"cluster.network.transport={name}"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ideal", "gloo", "nccl"])
@settings(derandomize=True, max_examples=20)
@given(
    scheme=st.integers(0, 9),
    bandwidth=st.floats(1e7, 1e9),
    latency_s=st.just(0.0) | st.floats(1e-9, 0.05),
    more=st.floats(1.0, 3.0),
)
def test_every_scheme_gains_by_bandwidth_and_loses_by_latency(
    name: str, scheme: int, bandwidth: float, latency_s: float, more: float
) -> None:
    def at(bandwidth: float, latency_s: float) -> float:
        network = (f"cluster.network.latency={latency_s!r} s", f"cluster.network.bandwidth={bandwidth!r} B/s")
        return took_s(transport(name), *network, scheme=scheme)

    plain_s = at(bandwidth, latency_s)
    assert at(bandwidth * more, latency_s) <= plain_s * (1 + 1e-9)
    assert at(bandwidth, latency_s * more) >= plain_s * (1 - 1e-9)


def test_gloo_announces_its_receives_and_ideal_collectives_do_not() -> None:
    assert took_s(transport("ideal")) < took_s(transport("nccl")) < took_s(transport("gloo"))


def two(program: Any, name: str, **options: Any) -> float:
    job = make_job(
        make_scheme(program), workers=2, transport=name, bytes_per_parameter=1e6, all_reduce="auto", **options
    )
    rules = TRANSPORTS[name]
    return run_events(job.__class__(**{**vars(job), "transfer": rules.transfer(job.transfer)})).wall_s


async def message(worker: Worker, options: Settings) -> None:
    if worker.rank == 0:
        await worker.send(1, torch.zeros(1))
    else:
        await worker.receive(0, torch.zeros(1))


def test_a_message_between_gpu_workers_goes_over_gloo_with_two_copies() -> None:
    over_gloo = two(message, "gloo", latency_s=0.01)
    assert over_gloo == pytest.approx(0.02 + GLOO_FACTORS["overhead_s"].value)
    assert two(message, "nccl", latency_s=0.01) == pytest.approx(over_gloo + 2 * DEVICE_COPY.value * 1e6)


def test_nccl_carries_mixes_without_announcements() -> None:
    async def mix(worker: Worker, options: Settings) -> None:
        await worker.mix(topology.plan("complete", 2, "uniform").at(0), torch.zeros(1))

    network = {"latency_s": 0.25, "bandwidth_bytes_per_s": 1e6}
    assert two(mix, "nccl", **network) == 1.25
    assert two(mix, "gloo", **network) > 1.5


async def _buckets(worker: Worker, options: Settings) -> None:
    for _ in range(10):
        await worker.all_reduce(torch.zeros(1))


@pytest.mark.parametrize("network", [{"latency_s": 0.0}, {"latency_s": 1e-3, "bandwidth_bytes_per_s": 1e8}])
def test_every_collective_over_nccl_is_launched(
    network: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    took_s = two(_buckets, "nccl", **network)
    monkeypatch.setattr("paceline.sim.network.transport.NCCL_LAUNCH", replace(NCCL_LAUNCH, value=0.0))
    assert took_s - two(_buckets, "nccl", **network) == pytest.approx(10 * NCCL_LAUNCH.value)
    assert 8e-6 < NCCL_LAUNCH.value < 6e-5


def test_small_buckets_over_nccl_cost_their_launches() -> None:
    """100 MB on fast links: buckets of 100 kB take longer than those of 25 MB."""
    base = """
name: buckets
workload: {timing_only: true, batch_size: 1, payload: 100 MB}
cluster:
  workers: 4
  compute: {time: 1 ms}
  network: {latency: 1 us, bandwidth: 800 Gbit/s, transport: nccl}
schemes: [all_reduce: {overlap: true, bucket: BUCKET}]
stop: {max_iterations: 1}
"""
    steps: dict[str, float] = {}
    for bucket in ("100 kB", "25 MB"):
        scenario = parse(base.replace("BUCKET", bucket))
        job = prepare(scenario, scenario.schemes[0], 1)
        steps[bucket] = simulate_job(job).wall_clock_s
    assert steps["100 kB"] > 1000 * NCCL_LAUNCH.value
    assert steps["25 MB"] < 0.25 * steps["100 kB"]


@pytest.mark.parametrize(("profile", "send_order"), [("", ""), ("resnet-101", ""), ("", "ready_first")])
def test_launches_take_the_devices_time_which_overlap_does_not_hide(profile: str, send_order: str) -> None:
    """Buckets of 1 MiB cost 1 to 4 % more than those of 25 MiB; a profile's 35 blocks make fewer of them."""
    what = f"layer_profile: {profile}" if profile else "payload: 100 MB"
    order = ", send_order: ready_first" if send_order else ""
    text = f"""
name: launches
workload: {{timing_only: true, batch_size: 32, {what}}}
cluster:
  workers: 2
  compute: {{time: 90 ms}}
  network: {{latency: 1 us, bandwidth: 800 Gbit/s, transport: nccl}}
schemes: [all_reduce: {{overlap: true, bucket: BUCKET{order}}}]
stop: {{max_iterations: 1}}
"""
    scenarios = [parse(text.replace("BUCKET", size)) for size in ("1 MiB", "25 MiB")]
    jobs = [prepare(scenario, scenario.schemes[0], 1) for scenario in scenarios]
    small_s, large_s = (simulate_job(job).wall_clock_s for job in jobs)
    assert (1.001 if profile else 1.01) < small_s / large_s < 1.04
    if not profile:  # 95 buckets or 3 of all that is sent
        assert jobs[0].computing.launches_s == pytest.approx(94 * NCCL_LAUNCH.value)


def test_what_averaging_adds_may_be_in_the_computing_time_already() -> None:
    base = SCENARIO.replace("1 Gbit/s", "1 Gbit/s, transport: nccl")
    with_it, without = (parse(base, "f", [*more]) for more in ((), ("cluster.network.averaging=0",)))
    jobs = [prepare(scenario, scenario.schemes[0], 0) for scenario in (with_it, without)]
    assert [job.averaging_share for job in jobs] == [DDP_SHARE.value, 0.0]
    assert all(each.low <= each.value <= each.high for each in GLOO_FACTORS.values())
    assert GLOO_FACTORS["overhead_s"].value == 1.35e-3  # read off netem_collectives


@pytest.mark.parametrize(
    ("scheme", "share"),
    [
        ("all_reduce", DDP_SHARE.value),
        ("all_reduce: {compression: {bf16: true}}", DDP_SHARE.value),
        ("all_reduce: {part_reduce: true}", 0.0),
        ("local_sgd: {period: 10}", 0.0),
        ("gossip: {topology: ring}", 0.0),
    ],
)
@pytest.mark.parametrize("name", ["nccl", "gloo", "ideal"])
def test_averaging_gradients_over_nccl_takes_a_share_of_computing_them(
    scheme: str, share: float, name: str
) -> None:
    scenario = parse(f"""
name: share
workload: {{timing_only: true, batch_size: 1, payload: 1 kB}}
cluster: {{workers: 3, compute: {{time: 1 s}}, network: {{latency: 0 s, transport: {name}}}}}
schemes: [{scheme}]
stop: {{max_iterations: 4}}
""")
    job = prepare(scenario, scenario.schemes[0], 1)
    took_s = simulate_job(job, engine="event").wall_clock_s
    assert took_s == pytest.approx(4 * (1 + (share if name == "nccl" else 0.0)), abs=0.03)
    if name == "nccl" and "gossip" not in scheme:
        assert simulate_job(job, engine="lockstep").wall_clock_s == pytest.approx(took_s, rel=1e-12)
    assert 0.014 <= DDP_SHARE.value <= 0.056


def test_nccl_does_one_collective_after_another() -> None:
    """Both at once would share one latency; one after the other takes two."""

    async def both(worker: Worker, options: Settings) -> None:
        pattern = topology.plan("complete", 2, "uniform").at(0)
        handles = [await worker.begin(ops.Mix(pattern, torch.zeros(1))) for _ in range(2)]
        for handle in handles:
            await worker.wait(handle)

    network = {"latency_s": 1.0, "bandwidth_bytes_per_s": 1e6}
    assert two(both, "nccl", **network) == 4.0
    assert two(both, "ideal", **network) == 3.0


def all_reduce_of(resolved: Scenario) -> str:
    """What ``auto`` is for the first scheme."""
    chosen = resolved.collectives.chosen
    assert isinstance(chosen, dict)
    return chosen[resolved.schemes[0].label]["all_reduce"]


def test_the_choice_is_written_down_and_forces_nothing_else() -> None:
    resolved = resolve(parse(SCENARIO), torch.device("cpu"))
    assert resolved.collectives.all_reduce == "auto"
    assert all_reduce_of(resolved) == "ring"
    assert parse(dump(resolved)) == resolved
    long = resolve(parse(SCENARIO, changes=["cluster.network.latency=1 s"]), torch.device("cpu"))
    assert all_reduce_of(long) == "double_tree"  # 4 latencies, and the fewest bytes
    stale = parse(dump(resolved), changes=["cluster.network.latency=1 s"])
    assert all_reduce_of(resolve(stale, torch.device("cpu"))) == "double_tree"
    gloo = resolve(parse(SCENARIO, changes=[transport("gloo")]), torch.device("cpu"))
    assert gloo.collectives.chosen == "gloo_ring"


def test_without_a_transport_rounds_follow_one_another() -> None:
    """2 (n - 1) rounds of a quarter each, one after another, three times; and it stays so when written."""
    old = dump(parse(SCENARIO)).replace("    transport: ideal\n", "    transport: null\n")
    old = old.replace("all_reduce: auto", "all_reduce: ring_stop_and_wait")
    scenario = parse(old)
    assert (scenario.cluster.network.transport, scenario.collectives.all_reduce) == (
        None,
        "ring_stop_and_wait",
    )
    assert parse(dump(scenario)) == scenario
    run = simulate_job(clock_only(prepare(scenario, scenario.schemes[0], 0)))
    assert run.wall_clock_s == pytest.approx(3 * (0.010 + 6 * (0.005 + 0.016)))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ([transport("glo")], "cluster.network.transport: .*did you mean 'gloo'"),
        (["collectives.all_reduce=gloo_rin"], "did you mean 'gloo_ring'"),
        (
            [transport("nccl"), "collectives.all_reduce=gloo_ring"],
            "'gloo_ring' is nothing that transport 'nccl' can use; .*nccl_ring",
        ),
        (
            ["collectives.all_reduce=hierarchical"],
            "needs two sites, or hosts of several GPUs; use halving_doubling",
        ),
    ],
)
def test_what_a_transport_cannot_do_is_refused(changes: list[str], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        parse(SCENARIO, "f.yaml", changes)


@pytest.mark.parametrize("name", ["ideal", "gloo", "nccl"])
def test_a_hierarchical_all_reduce_crosses_sites_twice(name: str) -> None:
    sites = (
        "cluster.network={sites: {us: 2, eu: 2}, within: {latency: 0.1 ms}, "
        f"between: {{latency: 50 ms, bandwidth: 1 Gbit/s}}, transport: {name}}}"
    )
    tree_s = took_s(sites, "collectives.all_reduce=hierarchical", "stop.max_iterations=1")
    announced = 2 * 0.050 if name == "gloo" else 0.0
    assert tree_s == pytest.approx(0.010 + 2 * (0.050 + 4e6 / 1.25e8) + announced, rel=0.06)


SITES = {
    "sites": {"a": 2, "b": 3, "c": 1},
    "within": {"latency": "1 ms", "bandwidth": "1 Gbit/s"},
    "between": {"latency": {"a-b": "7 ms", "a-c": "9 ms", "b-c": "4 ms"}, "bandwidth": "1 Mbit/s"},
}


def networks(folder: Path) -> list[Network]:
    """Networks of all forms: flat with and without links, sites with and without uplinks, GPUs, a graph."""
    return [
        network_of(3, latency="1 ms"),
        network_of(3, latency="1 ms", bandwidth="1 Gbit/s"),
        network_of(6, **SITES),
        network_of(6, **SITES, uplink={"a": "2 Mbit/s"}),
        two_sites(),
        network_of(4, graph=str(written(campus(), folder / "campus.json"))),
    ]


@pytest.mark.parametrize("number", range(6))
def test_each_is_the_route_of_its_pair(number: int, tmp_path: Path) -> None:
    network = networks(tmp_path)[number]
    pairs = list(itertools.permutations(range(network.num_hosts), 2))
    routes = find_routes(network, *np.array(pairs).T)
    for pair, links, latency_s, cap in zip(
        pairs, routes.links.tolist(), routes.latency_s, routes.bytes_per_s, strict=True
    ):
        expected = network.route(*pair)
        assert tuple(link for link in links if link >= 0) == expected.links
        assert (latency_s, cap) == (expected.latency_s, expected.per_flow_bytes_per_s)


def test_a_lone_message_is_limited_by_the_slowest_link() -> None:
    pair = np.array([0]), np.array([1])
    inside = route_pairs(*pair, (0, 1), TransferModel(network_of(6, **SITES), efficiency=0.5))
    assert inside.bytes_per_s.tolist() == [0.5 * 1.25e8]
    free = TransferModel(network_of(2, latency="1 ms"))
    assert math.isinf(route_pairs(*pair, (0, 1), free).bytes_per_s[0])
