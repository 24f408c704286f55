"""Collectives priced as a whole take what their messages take one by one."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.sim.config.settings import Settings
from paceline.sim.drivers.job import Job
from paceline.sim.drivers.outcome import Outcome
from paceline.sim.errors import PeerLost
from paceline.sim.experiments.simulate import simulate_job
from paceline.sim.network.network import Link, Network
from paceline.sim.program import operations as ops
from paceline.sim.program.groups import Groups
from paceline.sim.program.worker import Worker
from paceline.sim.traffic.transfers import Transfers
from tests.support.factory import make_job, make_scheme, network_of, run_events

laws = settings(derandomize=True, max_examples=15)
TRANSPORTS = {
    None: ("ring_stop_and_wait", "gloo_ring", "halving_doubling", "hierarchical"),
    "ideal": ("ring", "double_tree", "halving_doubling", "hierarchical", "ring_stop_and_wait", "gloo_ring"),
    "gloo": ("gloo_ring", "ring_stop_and_wait", "halving_doubling", "hierarchical"),
    "nccl": ("nccl_ring", "nccl_tree"),
}
PAIRS = [(transport, name) for transport, names in TRANSPORTS.items() for name in names]
SITES = {
    "sites": {"us": 3, "eu": 2},
    "within": {"latency": "1 ms", "bandwidth": "10 Gbit/s"},
    "between": {"latency": "40 ms", "bandwidth": "1 Gbit/s", "per_flow": "300 Mbit/s"},
}


def uneven_network(bandwidths: list[float], latency_s: float) -> Network:
    """One switch; hosts have different access links."""
    n = len(bandwidths)
    links = [
        Link(f"host{h} {way}", bandwidth) for way in ("up", "down") for h, bandwidth in enumerate(bandwidths)
    ]
    return Network(
        sites=("all",),
        site_of=(0,) * n,
        links=tuple(links),
        latency_s=((latency_s,),),
        per_flow_bytes_per_s=((math.inf,),),
        up={h: h for h in range(n)},
        down={h: n + h for h in range(n)},
    )


def several(waits_s: list[list[float]]) -> Any:
    """A scheme of all-reduces, before each of which every worker sleeps."""

    async def program(worker: Worker, options: Settings) -> None:
        for of_round in waits_s:
            await worker.sleep(of_round[worker.rank])
            await worker.all_reduce(torch.zeros(1))
            await worker.now()

    return make_scheme(program)


def both(job: Job) -> tuple[Outcome, Outcome]:
    """A run with its collectives priced as long as nothing meets them, and message by message."""
    return run_events(job, priced=True), run_events(job)


def assert_same_times(priced: Outcome, single: Outcome) -> None:
    times = [[event.end_s for event in outcome.events] for outcome in (priced, single)]
    assert sorted(times[0]) == pytest.approx(sorted(times[1]), rel=1e-9, abs=1e-12)
    assert priced.wall_s == pytest.approx(single.wall_s, rel=1e-9)
    for a, b in zip(priced.breakdowns, single.breakdowns, strict=True):
        assert a.bytes_sent == b.bytes_sent
        assert (a.wait_s, a.communicate_s) == pytest.approx((b.wait_s, b.communicate_s), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("transport", "name"), PAIRS)
@laws
@given(data=st.data())
def test_priced_is_message_by_message(transport: str | None, name: str, data: st.DataObject) -> None:
    n = data.draw(st.integers(2, 6), "workers")
    waits_s = data.draw(
        st.lists(st.lists(st.floats(0.0, 0.3), min_size=n, max_size=n), min_size=1, max_size=3)
    )
    bandwidths = data.draw(st.lists(st.floats(1e6, 1e9), min_size=n, max_size=n), "bandwidths")
    sharing = data.draw(st.sampled_from(["max_min", "rtt", "none"]))
    job = make_job(
        several(waits_s), workers=n, network=uneven_network(bandwidths, data.draw(st.floats(0.0, 0.05))),
        bytes_per_parameter=data.draw(st.integers(0, 20_000_000), "bytes"), all_reduce=name,
        transport=transport, sharing=sharing, overhead_s=data.draw(st.sampled_from([0.0, 0.002])),
        announcement=data.draw(st.sampled_from([0.0, 1.0])),
    )  # fmt: skip
    job = replace(job, transfer=job.collectives.transport.transfer(job.transfer))
    assert_same_times(*both(job))


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("groups", [None, ((0, 1, 2), (3, 4)), ((0, 3), (1, 2, 4))])
def test_the_other_collectives_are_priced_on_shared_links_too(
    transport: str | None, groups: Groups | None
) -> None:
    """Pipes between the sites are shared by the messages of a collective, and by other groups."""

    async def program(worker: Worker, options: Settings) -> None:
        x = torch.zeros(600)
        for k in range(3):
            await worker.sleep(0.01 * ((worker.rank + k) % 3))
            shard = await worker.reduce_scatter(x, groups=groups)
            await worker.sleep(0.5)
            await worker.all_gather_shards(shard, 600, groups=groups)
            await worker.sleep(0.5)
            await worker.all_gather(torch.zeros(8), groups=groups)
            await worker.sleep(0.5)
            await worker.barrier(groups=groups)

    job = make_job(
        make_scheme(program), workers=5, network=network_of(5, **SITES), bytes_per_parameter=4000.0,
        all_reduce=TRANSPORTS[transport][0], transport=transport,
    )  # fmt: skip
    job = replace(job, transfer=job.collectives.transport.transfer(job.transfer))
    assert_same_times(*both(job))


def test_what_comes_later_is_met_message_by_message() -> None:
    """Worker 1 sends to worker 2 while worker 0 waits for both in an all-reduce."""

    async def program(worker: Worker, options: Settings) -> None:
        x = torch.zeros(1)
        handles = []
        if worker.rank:
            await worker.sleep(1.0)
            point = ops.Send(2, x) if worker.rank == 1 else ops.Receive(1, like=x)
            handles.append(await worker.begin(point))
        await worker.all_reduce(x)
        for handle in handles:
            await worker.wait(handle)

    job = make_job(
        make_scheme(program), workers=3, bandwidth_bytes_per_s=1e6, latency_s=0.01, bytes_per_parameter=3e5
    )
    assert_same_times(*both(job))
    assert simulate_job(job).wall_clock_s == run_events(job).wall_s


def test_a_message_matched_before_is_met_though_its_bytes_leave_later() -> None:
    """NCCL's software time passes between the two; the all-reduce begins meanwhile, beside the message."""

    async def program(worker: Worker, options: Settings) -> None:
        x = torch.zeros(1)
        point = ops.Send(1, x) if worker.rank == 0 else ops.Receive(0, like=x)
        handles = [await worker.begin(point)] if worker.rank < 2 else []
        await worker.sleep(0.0001)
        handles.append(await worker.begin(ops.AllReduce(x)))
        for handle in handles:
            await worker.wait(handle)

    job = make_job(
        make_scheme(program), workers=3, bandwidth_bytes_per_s=1e6, latency_s=0.01, bytes_per_parameter=3e5,
        all_reduce="nccl_ring", transport="nccl", overhead_s=0.001,
    )  # fmt: skip
    job = replace(job, transfer=job.collectives.transport.transfer(job.transfer))
    assert_same_times(*both(job))


@pytest.mark.parametrize("algorithm", ["nccl_ring", "nccl_tree"])
@pytest.mark.parametrize("gpus", [1, 2])
def test_overlapping_buckets_over_nccl_are_priced_one_by_one(
    algorithm: str, gpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is in flight before the last one has left everywhere; nothing goes message by message."""

    async def program(worker: Worker, options: Settings) -> None:
        for _ in range(2):
            handles = []
            for size in (40, 40, 25):
                await worker.sleep(0.003 * (1 + worker.rank % 2))
                handles.append(await worker.begin(ops.AllReduce(torch.zeros(size))))
            for handle in handles:
                await worker.wait(handle)

    host = {"gpus": gpus, "latency": "5 us", "bandwidth": "10 GB/s"}
    job = make_job(
        make_scheme(program), workers=6, bytes_per_parameter=1e5, all_reduce=algorithm, transport="nccl",
        network=network_of(6, latency="1 ms", bandwidth="1 Gbit/s", **({"host": host} if gpus > 1 else {})),
    )  # fmt: skip
    job = replace(job, transfer=job.collectives.transport.transfer(job.transfer))
    monkeypatch.setattr(Transfers, "replay", None)  # nothing is met
    assert_same_times(*both(job))


def test_a_crash_is_seen_message_by_message() -> None:
    """Who waits for a dead worker, and since when, is a matter of messages."""
    job = make_job(several([[0.1, 0.2, 0.3]] * 2), workers=3, bandwidth_bytes_per_s=1e6)
    outcomes = []
    for priced in (True, False):
        with pytest.raises(PeerLost) as lost:
            run_events(job, priced=priced, faults={1: 3})
        outcomes.append(str(lost.value))
    assert outcomes[0] == outcomes[1]
