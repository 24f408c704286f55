"""Heartbeats that share links with averages."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.console import Console

from paceline.reports.check_tables import render_check
from paceline.sim.errors import InputError
from paceline.sim.experiments.costs.check import check
from paceline.sim.faults.fault_settings import Heartbeats, needed_bytes_per_s
from paceline.sim.scenario.schema import Scenario, load

pytestmark = pytest.mark.usefixtures("little_work")

PERIODS = 60
"""Heartbeats of each worker in a simulated queue."""


def longest_gap_s(beat: Heartbeats, bytes_per_s: float, starts_s: list[float], burst_s: float) -> float:
    """Longest time between two heartbeats of a worker behind a queue that ``burst_s`` has filled."""
    arrivals = [(burst_s, -1, beat.queue)]
    for worker, start_s in enumerate(starts_s):
        arrivals += [(start_s + k * beat.every, worker, beat.bytes) for k in range(PERIODS)]
    free_s, longest_s, last_s = 0.0, 0.0, dict[int, float]()
    for at_s, worker, num_bytes in sorted(arrivals):
        free_s = max(free_s, at_s) + num_bytes / bytes_per_s
        longest_s = max(longest_s, free_s - last_s.get(worker, free_s))
        last_s[worker] = free_s
    return longest_s


beats = st.builds(
    Heartbeats.model_construct,
    every=st.floats(0.05, 2.0),
    bytes=st.floats(50.0, 5e3),
    timeout=st.floats(2.5, 20.0),
    queue=st.floats(0.0, 1e7),
    transfer_timeout=st.floats(1.0, 100.0),
)


@settings(max_examples=200)
@example(
    Heartbeats.model_construct(
        every=1.9901797805162171, bytes=50.0, timeout=2.5, queue=0.0, transfer_timeout=1.0
    ),
    [0.0, 1.0],
    0.5,
    1.0,
)  # two workers that take turns in being first
@given(beats, st.lists(st.floats(0.0, 1.0), min_size=1, max_size=5), st.floats(0.1, 0.9), st.floats(1.0, 9.0))
def test_with_the_needed_bandwidth_or_more_no_heartbeat_is_late(
    beat: Heartbeats, phases: list[float], moment: float, more: float
) -> None:
    starts_s = [phase * beat.every for phase in phases]
    rate = more * needed_bytes_per_s(beat, len(phases), beat.queue)
    burst_s = moment * PERIODS * beat.every
    assert longest_gap_s(beat, rate, starts_s, burst_s) <= beat.timeout * (1 + 1e-9)


@settings(max_examples=100)
@given(beats, st.floats(0.5, 0.99))
def test_with_less_one_can_be_late(beat: Heartbeats, less: float) -> None:
    patient = beat.model_copy(update={"transfer_timeout": 1e9, "bytes": 1e-3, "queue": max(beat.queue, 1e4)})
    rate = less * needed_bytes_per_s(patient, 1, patient.queue)
    assert longest_gap_s(patient, rate, [0.0], 30 * patient.every - 1e-9) > patient.timeout


@settings(max_examples=100)
@given(beats, st.integers(1, 100), st.floats(0.0, 1e9), st.floats(0.0, 1e9))
def test_more_bytes_never_need_less(beat: Heartbeats, workers: int, one: float, other: float) -> None:
    less, more = sorted([one, other])
    assert needed_bytes_per_s(beat, workers, less) <= needed_bytes_per_s(beat, workers, more)
    assert needed_bytes_per_s(beat, workers, more) >= more / beat.transfer_timeout
    assert needed_bytes_per_s(beat, workers, less) >= workers * beat.bytes / beat.every


@pytest.mark.parametrize(("rate", "commits"), [(10, False), (50, True), (100, True), (1000, True)])
def test_torchft_over_netem_commits_where_the_source_says(rate: int, commits: bool) -> None:
    """At 10 Mbit/s ft-diloco's replicas committed no average together; at 50 and more all (its logs)."""
    changes = [f"cluster.network.bandwidth={rate} Mbit/s", "cluster.heartbeat={}"]
    answer = check(load("benchmarks/board/ft_diloco/two-namespaces.yaml", changes), torch.device("cpu"))
    (row,) = answer["schemes"]
    assert row["heartbeat"]["bytes_per_s"] == rate * 125e3
    assert row["heartbeat"]["needed_bytes_per_s"] == pytest.approx(204.76928e6 / 60)
    assert (row["heartbeat"]["bytes_per_s"] >= row["heartbeat"]["needed_bytes_per_s"]) == commits
    console = Console(width=400)
    with console.capture() as captured:
        console.print(render_check(answer))
    assert ("too little" in captured.get()) != commits


def scenario(**cluster: Any) -> Scenario:
    network = {
        "sites": {"us": 2, "eu": 2},
        "within": {"latency": "1 ms", "bandwidth": "1 Gbit/s"},
        "between": {"latency": "40 ms", "bandwidth": "100 Mbit/s"},
    }
    return Scenario.model_validate(
        {
            "name": "beats",
            "workload": {"timing_only": True, "payload": "1 MB"},
            "cluster": {"workers": 4, "compute": {"time": "50 ms"}, "network": network, **cluster},
            "collectives": {"all_reduce": "ring"},
            "schemes": ["all_reduce", {"local_sgd": {"period": 8}}],
            "stop": {"max_iterations": 10},
        }
    )


def test_the_pipe_between_sites_carries_a_ring_once() -> None:
    """A ring of four moves 2 (n - 1) / n = 1.5 models over each of its hops, however long the period."""
    for row in check(scenario(heartbeat={"queue": "100 MB"}), torch.device("cpu"))["schemes"]:
        assert row["heartbeat"]["link"] in ("us->eu", "eu->us")
        assert row["heartbeat"]["needed_bytes_per_s"] == pytest.approx((1.5e6 + 4 * 200) / 4.9)
    assert [row["heartbeat"] for row in check(scenario(), torch.device("cpu"))["schemes"]] == [None, None]


def test_a_timeout_below_the_interval_is_refused() -> None:
    with pytest.raises((InputError, ValueError), match="must be more than 'every'"):
        scenario(heartbeat={"timeout": "50 ms"})
