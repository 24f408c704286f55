"""Step times of graphs on a cluster: by hand, against the event driver, and what a search makes of them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from paceline.extras.topology.averaging_time import AveragingStepTime
from paceline.sim.scenario.schema import Scenario, parse
from paceline.sim.topology.graphs.random import random_regular_edges
from paceline.sim.topology.search.find import Request, search
from paceline.sim.topology.search.spectrum import EdgeArray, lattice

HEAD = """
name: step-times
workload: {task: quadratic, timing_only: true, payload: 10 MB, batch_size: 1, optimizer: {lr: 0.1}}
schemes: [{gossip: {topology: ring}}]
stop: {max_iterations: 1}
"""


def scenario(cluster: str) -> Scenario:
    return parse(f"{HEAD}cluster: {cluster}\n")


def ring(workers: int) -> EdgeArray:
    return lattice(workers, 2)


def test_a_ring_on_one_switch() -> None:
    """Each access link carries two messages of 10 MB each way: 0.2 s; latency 0.01 s; computation 0.5 s."""
    times = AveragingStepTime(
        scenario("{workers: 6, compute: {time: 500 ms}, network: {latency: 10 ms, bandwidth: 100 MB/s}}")
    )
    for seconds in (times.least_s(ring(6)), times.mean_s(ring(6)), times.checked_s(ring(6))):
        assert seconds == pytest.approx(0.71, rel=1e-12)


def test_sites_that_share_a_pipe() -> None:
    """The pipe of 10 MB/s carries two messages each way: 2 s; latency 0.05 s; computation 1 s."""
    times = AveragingStepTime(
        scenario(
            "{compute: {time: 1 s}, network: {sites: {a: 2, b: 2}, within: {latency: 0 s}, "
            "between: {latency: 50 ms, bandwidth: 10 MB/s}}}"
        )
    )
    across, single = np.array([[0, 2], [1, 3], [0, 1], [2, 3]]), np.array([[0, 1], [1, 2], [2, 3]])
    assert times.least_s(across) == pytest.approx(3.05, rel=1e-12)
    assert times.checked_s(across) == pytest.approx(3.05, rel=1e-9)
    assert times.least_s(single) == pytest.approx(2.05, rel=1e-12)
    assert times.checked_s(single) == pytest.approx(2.05, rel=1e-9)


def test_a_straggler_counts_with_its_own_transfers() -> None:
    """Worker 0 computes for 2 s and has only neighbours next door; the others compute for 1 s."""
    times = AveragingStepTime(
        scenario(
            "{compute: {time: 1 s}, stragglers: [{workers: [0], slowdown: 2}], "
            "network: {sites: {a: 3, b: 3}, within: {latency: 0.1 s}, between: {latency: 0.7 s}}}"
        )
    )
    near = np.array([[0, 1], [0, 2], [1, 3], [2, 4], [3, 5], [4, 5]])
    far = np.array([[0, 3], [0, 2], [1, 3], [2, 4], [1, 5], [4, 5]])
    assert times.least_s(near) == pytest.approx(2.1, rel=1e-12)
    assert times.least_s(far) == pytest.approx(2.7, rel=1e-12)
    assert times.checked_s(near) == pytest.approx(2.1, rel=1e-9)
    assert times.checked_s(far) == pytest.approx(2.7, rel=1e-9)


@pytest.mark.parametrize("announcement", [0, 1])
def test_without_shared_links_the_recursion_is_the_event_driver(announcement: int) -> None:
    times = AveragingStepTime(
        scenario(
            "{workers: 10, compute: {time: 1 s, jitter: {lognormal: {cv: 0.4}}}, "
            "stragglers: [{workers: [2], slowdown: 1.5}], "
            "network: {latency: 200 ms, bandwidth: 100 MB/s, sharing: none, "
            f"announcement: {announcement}}}}}"
        )
    )
    for edges in (ring(10), random_regular_edges(10, 3, 1), np.array([[i, i + 1] for i in range(9)])):
        assert times.mean_s(edges) == pytest.approx(times.checked_s(edges), rel=1e-9)
        assert times.least_s(edges) <= times.mean_s(edges)


def test_with_shared_links_the_estimate_is_near() -> None:
    times = AveragingStepTime(four_sites())
    for seed in range(3):
        edges = random_regular_edges(16, 4, seed)
        assert times.mean_s(edges) == pytest.approx(times.checked_s(edges), rel=0.1)


def four_sites() -> Scenario:
    return scenario(
        "{compute: {time: 50 ms, jitter: {lognormal: {cv: 0.1}}}, network: {sites: {a: 4, b: 4, c: 4, d: 4}, "
        "within: {latency: 0.1 ms, bandwidth: 10 Gbit/s}, "
        "between: {latency: {a-b: 35 ms, a-c: 75 ms, default: 90 ms}, bandwidth: 1 Gbit/s}}}"
    )


@pytest.mark.slow
def test_the_search_for_time_gives_up_steps_to_gain_time() -> None:
    times = AveragingStepTime(four_sites())
    request = Request(16, 4, None, "laplacian", 0, 2500, 2)
    fast, few = search(request, times), search(request)
    assert fast.step_s is not None
    step_s = times.checked_s(np.array(few.edges))
    assert fast.modulus > few.modulus
    assert -fast.step_s / math.log(fast.modulus) < -0.8 * step_s / math.log(few.modulus)
    assert fast.step_s == times.checked_s(np.array(fast.edges))
    assert search(request, times).edges == fast.edges
