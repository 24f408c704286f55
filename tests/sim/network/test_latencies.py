"""Latencies that vary around those of their routes, at random and by a table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.sim.jitter import Jitter
from paceline.sim.network.network import Network
from paceline.sim.network.variation import Latencies
from paceline.sim.program import operations as ops
from paceline.sim.program.worker import Worker
from tests.support.factory import NoOptions, make_job, make_scheme, network_of, one_message, run_events

X = torch.zeros(1)


def traced_by(*steps: tuple[float, float, float]) -> dict[str, Any]:
    """Time, bytes per second and seconds of latency that are added."""
    return {
        "steps": [
            {"at": f"{at} s", "bandwidth": f"{rate} B/s", "latency": f"{added} s"}
            for at, rate, added in steps
        ]
    }


@pytest.mark.parametrize(
    ("begin_s", "wall_s"),
    [
        (0.0, 2.0 + 0.5),  # as it was when the message began
        (2.0, 4.0 + 0.5 + 1.25),
        (4.0, 6.0 + 0.5 + 0.25),  # and of the way back nothing counts
        (100.0, 102.0 + 0.5 + 0.25),
    ],
)
def test_a_table_adds_to_latencies(begin_s: float, wall_s: float) -> None:
    trace = traced_by((0, 16, 0), (2, 16, 1.25), (4, 16, 0.25))
    network = network_of(
        2, latency="0.5 s", bandwidth="16 B/s", variation=({"links": "host0 up", "trace": trace},)
    )
    assert run_events(one_message(network, 32, begin_s)).wall_s == wall_s


def jittered(kind: dict[str, Any], network: Network, seed: int = 1) -> Latencies:
    return Latencies(replace(network, jitter=Jitter.model_validate(kind)), seed, 0.5)


@pytest.mark.parametrize("kind", ["lognormal", "gamma", "shifted_exponential"])
def test_latencies_have_the_mean_of_the_route_and_the_cv(kind: str) -> None:
    latencies = jittered({kind: {"cv": 0.4}}, network_of(3, latency="20 ms"))
    drawn = np.array([latencies.draw_s(0, 1 + k % 2) for k in range(40_000)]) - 0.5
    assert drawn.min() > 0
    assert drawn.mean() == pytest.approx(0.02, rel=0.015)
    assert drawn.std() / drawn.mean() == pytest.approx(0.4, rel=0.05)


def test_a_hosts_latencies_do_not_depend_on_the_others() -> None:
    network = network_of(3, latency="20 ms")
    alone = jittered({"gamma": {"cv": 1.0}}, network)
    expected = [alone.draw_s(1, 0) for _ in range(600)]
    mixed = jittered({"gamma": {"cv": 1.0}}, network)
    drawn_s = []
    for k in range(600):
        mixed.draw_s(k % 2 * 2, 1)
        drawn_s.append(mixed.draw_s(1, 0))
    assert drawn_s == expected
    other_seed = jittered({"gamma": {"cv": 1.0}}, network, seed=2)
    assert other_seed.draw_s(1, 0) != expected[0]


@pytest.mark.parametrize("sharing", ["max_min", "none"])
def test_each_message_has_its_own_latency(sharing: str) -> None:
    jitter = Jitter.model_validate({"lognormal": {"cv": 0.5}})
    network = network_of(2, latency="2 s", bandwidth="16 B/s", jitter=jitter)
    job = one_message(network, 64)
    job = replace(job, transfer=replace(job.transfer, seed=7, sharing=sharing))
    factor = jitter.factors(7, 0, "latency", 0)[0]
    assert run_events(job).wall_s == 4.0 + 2.0 * factor


@settings(max_examples=40)
@given(
    gaps=st.lists(st.sampled_from([0.0, 0.1, 1.0, 7.0]), min_size=2, max_size=12),
    falls_s=st.sampled_from([0.5, 2.0, 6.0]),
    seed=st.integers(0, 50),
    queue=st.sampled_from(["fair", "fifo"]),
)
def test_messages_on_one_connection_arrive_in_order(
    gaps: list[float], falls_s: float, seed: int, queue: str
) -> None:
    """Whatever the jitter, and where a table's latency falls meanwhile: TCP delivers in order."""
    arrivals: dict[int, float] = {}

    async def program(worker: Worker, options: NoOptions) -> None:
        handles = {}
        for number, gap in enumerate(gaps):
            tag = str(number)  # apart, so that they could overtake each other
            if worker.rank == 0:
                await worker.sleep(gap)
                handles[await worker.begin(ops.Send(1, X, tag))] = number
            else:
                handles[await worker.begin(ops.Receive(0, X, tag))] = number
        while handles:
            done = await worker.wait_any(*handles)
            await worker.wait(done)
            number = handles.pop(done)
            if worker.rank == 1:
                arrivals[number] = await worker.now()

    jitter = Jitter.model_validate({"pareto": {"shape": 1.2}})
    varies: dict[str, Any] = {}
    if queue == "fair":
        trace = traced_by((0, 16, 20), (falls_s, 16, 0))
        varies = {"variation": ({"links": "host0 up", "trace": trace},)}
    network = network_of(2, latency="3 s", bandwidth="16 B/s", jitter=jitter, **varies)
    job = make_job(make_scheme(program), workers=2, network=network, bytes_per_parameter=1)
    transfer = replace(job.transfer, streams=True, buffer_bytes=1e6, seed=seed, queue=queue)
    run_events(replace(job, transfer=transfer))
    assert sorted(arrivals) == list(range(len(gaps)))
    assert [arrivals[k] for k in range(len(gaps))] == sorted(arrivals.values())


def test_nothing_overtakes_in_a_stream() -> None:
    arrivals: list[float] = []

    async def program(worker: Worker, options: NoOptions) -> None:
        for _ in range(200):
            if worker.rank == 0:
                await worker.send(1, X)
            else:
                await worker.receive(0, X)
                arrivals.append(await worker.now())

    jitter = Jitter.model_validate({"gamma": {"cv": 2.0}})
    network = network_of(2, latency="10 s", bandwidth="16 B/s", jitter=jitter)
    job = make_job(make_scheme(program), workers=2, network=network, bytes_per_parameter=1)
    run_events(replace(job, transfer=replace(job.transfer, streams=True, buffer_bytes=1e6)))
    assert arrivals == sorted(arrivals)
    assert len(arrivals) == 200
