"""Virtual times on cases worked out by hand. All values are exact in binary, so ``==`` is meant."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from paceline.sim.compute.compute_settings import Straggler
from paceline.sim.network.network import Link, Network
from paceline.sim.program import operations as ops
from paceline.sim.program.worker import Program, Worker
from tests.support.factory import NoOptions, make_job, make_scheme, run_events, simulated

X = torch.zeros(1)


def test_one_message_between_two_workers() -> None:
    log: list[tuple[int, float]] = []

    async def program(worker: Worker, options: NoOptions) -> None:
        if worker.rank == 0:
            await worker.sleep(1.0)
            await worker.send(1, X)
        else:
            await worker.receive(0, X)
        log.append((worker.rank, await worker.now()))

    # 64 bytes at 16 bytes/s take 4 s after the sender is ready at 1 s; they arrive 0.5 s later
    run_events(
        make_job(
            make_scheme(program), workers=2, latency_s=0.5, bandwidth_bytes_per_s=16, bytes_per_parameter=64
        )
    )
    assert sorted(log) == [(0, 5.0), (1, 5.5)]


@pytest.mark.parametrize("sharing", ["max_min", "none"])
def test_rendezvous_waits_for_the_receiver_and_its_announcement(sharing: str) -> None:
    log: list[tuple[int, float]] = []

    async def program(worker: Worker, options: NoOptions) -> None:
        if worker.rank == 0:
            await worker.send(1, X)
        else:
            await worker.sleep(2.0)
            await worker.receive(0, X)
        log.append((worker.rank, await worker.now()))

    # posted at 2, announced at 2 + 0.5, software 0.25, 4 s of bytes, 0.5 s of latency
    run_events(
        make_job(
            make_scheme(program), workers=2, latency_s=0.5, bandwidth_bytes_per_s=16, bytes_per_parameter=64,
            announcement=1.0, overhead_s=0.25, sharing=sharing,
        )
    )  # fmt: skip
    assert sorted(log) == [(0, 6.75), (1, 7.25)]


def test_three_flows_over_a_shared_link() -> None:
    # hosts 0, 1, 2 in site a send to 3, 4, 5 in site b through one pipe of 12 bytes/s
    network = Network(
        sites=("a", "b"), site_of=(0, 0, 0, 1, 1, 1), links=(Link("a->b", 12.0),),
        latency_s=((0.0, 1.0), (1.0, 0.0)), per_flow_bytes_per_s=((math.inf,) * 2,) * 2, pipe={(0, 1): 0},
    )  # fmt: skip
    log: dict[int, float] = {}

    async def program(worker: Worker, options: NoOptions) -> None:
        if worker.rank < 3:
            value = torch.zeros((1, 2, 4)[worker.rank])
            await worker.send(worker.rank + 3, value)
        else:
            await worker.receive(worker.rank - 3, X)
        log[worker.rank] = await worker.now()

    run_events(make_job(make_scheme(program), workers=6, network=network, bytes_per_parameter=12))
    # 12, 24 and 48 bytes: 4 bytes/s each until 3 s; then 6 each: the second's last 12 are through at 5 s;
    # then the third alone: 48 - 12 - 12 = 24 bytes at 12 bytes/s: 7 s. Latency 1 s.
    assert log == {0: 3.0, 1: 5.0, 2: 7.0, 3: 4.0, 4: 6.0, 5: 8.0}


@pytest.mark.parametrize("streams", [False, True])
def test_shares_by_round_trip(streams: bool) -> None:
    # hosts 0 and 1 in a send to 2 in b, 1 s away, and to 3 in c, 2 s away, out of one uplink of 12 bytes/s
    network = Network(
        sites=("a", "b", "c"), site_of=(0, 0, 1, 2), links=(Link("a out", 12.0),),
        latency_s=((0.0, 1.0, 2.0), (1.0, 0.0, 0.0), (2.0, 0.0, 0.0)),
        per_flow_bytes_per_s=((math.inf,) * 3,) * 3, leave={0: 0},
    )  # fmt: skip
    log: dict[int, float] = {}

    async def program(worker: Worker, options: NoOptions) -> None:
        if worker.rank < 2:
            await worker.send(worker.rank + 2, torch.zeros(2))
        else:
            await worker.receive(worker.rank - 2, X)
        log[worker.rank] = await worker.now()

    run_events(
        make_job(
            make_scheme(program), workers=4, network=network, bytes_per_parameter=12, sharing="rtt",
            streams=streams,
        )
    )  # fmt: skip
    # 24 bytes each, at 8 and 4 bytes/s: the first is through at 3 s; then the last 12 bytes at 12: 4 s.
    assert log == {0: 3.0, 1: 4.0, 2: 4.0, 3: 6.0}


@pytest.mark.parametrize("workers", [2, 4, 8])
@pytest.mark.parametrize("sharing", ["max_min", "none"])
def test_ring_all_reduce(workers: int, sharing: str) -> None:
    latency_s, bandwidth, size = 0.125, 64.0, 1024
    job = make_job(
        "all_reduce", workers=workers, max_iterations=1, compute_s=1.0, latency_s=latency_s,
        bandwidth_bytes_per_s=bandwidth, bytes_per_parameter=size, sharing=sharing,
    )  # fmt: skip
    assert run_events(job).wall_s == 1.0 + 2 * (workers - 1) * (latency_s + size / (workers * bandwidth))


def test_halving_doubling_all_reduce() -> None:
    job = make_job(
        "all_reduce", workers=8, max_iterations=1, latency_s=0.125, bandwidth_bytes_per_s=64.0,
        bytes_per_parameter=1024, all_reduce="halving_doubling",
    )  # fmt: skip
    assert run_events(job).wall_s == 1.0 + 2 * 3 * 0.125 + 2 * (7 / 8) * 1024 / 64.0


def test_straggler_reaches_a_worker_after_as_many_steps_as_hops() -> None:
    """Gossip on a ring: worker 0 is late once; worker i notices after as many mixes as it is hops away."""
    finished: dict[tuple[int, int], float] = {}
    workers, late_s = 8, 16.0

    async def program(worker: Worker, options: NoOptions) -> None:
        from paceline.sim import topology

        pattern = topology.plan("ring", worker.size, "uniform").at(0)
        for k in range(6):
            await worker.sleep(late_s if worker.rank == 0 and k == 0 else 1.0)
            await worker.mix(pattern, X)
            finished[worker.rank, k] = await worker.now()

    run_events(make_job(make_scheme(program), workers=workers))
    for rank in range(workers):
        hops = min(rank, workers - rank)
        for k in range(6):
            on_time = k + 1.0
            assert (finished[rank, k] > on_time) == (k + 1 >= hops), (rank, k)


def test_persistent_straggler_sets_the_pace_of_all_reduce() -> None:
    job = make_job(
        "all_reduce", workers=4, max_iterations=3, stragglers=[Straggler(workers=(2,), slowdown=4)]
    )
    outcome = run_events(job)
    assert outcome.wall_s == 12.0
    assert [a.share(12.0).wait for a in outcome.breakdowns] == [9.0, 9.0, 0.0, 9.0]


def test_time_shares_add_up_and_name_the_cause() -> None:
    # worker 1 computes 2 s, worker 0 1 s; then 64 bytes at 16 bytes/s both ways and 0.5 s of latency
    job = make_job(
        "gossip", {"topology": "ring"}, workers=2, max_iterations=1, latency_s=0.5, bandwidth_bytes_per_s=16,
        bytes_per_parameter=64, stragglers=[Straggler(workers=(1,), slowdown=2)],
    )  # fmt: skip
    outcome = run_events(job)
    assert outcome.wall_s == 6.5
    first, second = (a.share(6.5) for a in outcome.breakdowns)
    assert (first.compute, first.wait, first.communicate) == (1.0, 1.0, 4.5)
    assert (second.compute, second.wait, second.communicate) == (2.0, 0.0, 4.5)


def test_overlap_hides_communication_behind_the_backward_pass() -> None:
    options: dict[str, Any] = dict(
        task="digits-mlp", workers=2, max_iterations=1, compute_s=3.0, latency_s=0.0
    )
    # 4810 parameters; the last layer's 650 are there after 1 + 2 * 650 / 4810 s, the rest at 3 s
    bandwidth = 4810.0
    plain = run_events(
        make_job("all_reduce", bandwidth_bytes_per_s=bandwidth, bytes_per_parameter=1, **options)
    )
    overlapped = run_events(
        make_job(
            "all_reduce", {"overlap": True}, bandwidth_bytes_per_s=bandwidth, bytes_per_parameter=1, **options
        )
    )
    assert plain.wall_s == pytest.approx(3 + 1, rel=1e-12)
    assert overlapped.wall_s == pytest.approx(3 + 4160 / 4810, rel=1e-12)


def test_a_service_answers_while_its_worker_computes() -> None:
    log: list[tuple[str, float]] = []

    def program(worker: Worker, options: NoOptions) -> Program:
        async def asks() -> None:
            await worker.send(1, X)
            log.append(("answered", await worker.now()))

        async def computes() -> None:
            await worker.gradient(X)
            log.append(("computed", await worker.now()))

        async def serves() -> None:
            while True:
                await worker.receive(ops.ANY, X)

        return Program(asks()) if worker.rank == 0 else Program(computes(), services=(serves(),))

    run_events(make_job(make_scheme(program, synchronous=False), workers=2, latency_s=0.25, compute_s=8.0))
    assert log == [("answered", 0.0), ("computed", 8.0)]


def test_max_time_ends_the_run_on_the_clock() -> None:
    from dataclasses import replace

    job = replace(
        make_job("gossip", {"topology": "ring"}, max_iterations=None, compute_s=1.0), max_time_s=3.5
    )
    outcome = run_events(job)
    assert outcome.wall_s == 3.5
    assert [a.steps for a in outcome.breakdowns] == [3] * 4


def test_a_broadcast_waits_for_its_root_alone() -> None:
    async def program(worker: Worker, options: NoOptions) -> None:
        await worker.sleep((3.0, 1.0, 4.0)[worker.rank])
        await worker.broadcast(X, root=0)

    # 64 bytes at 16 bytes/s leave worker 0 at 3 s for worker 1 and then for worker 2, who came meanwhile
    job = make_job(
        make_scheme(program), workers=3, bandwidth_bytes_per_s=16, bytes_per_parameter=64, latency_s=0.5
    )  # fmt: skip
    rows = {event.worker: event for event in simulated(job).events if event.operation == "broadcast"}
    assert [(rows[rank].start_s, rows[rank].peer_s) for rank in range(3)] == [(3, 3), (1, 3), (4, 4)]
    assert [rows[rank].end_s for rank in range(3)] == [11, 7.5, 11.5]
