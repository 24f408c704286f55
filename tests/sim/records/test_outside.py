"""What is said of errors outside: by the keys of a scenario alone, and rather nothing than a wrong grade."""

from __future__ import annotations

from typing import Final

import pytest

from paceline.sim.records.scenario_facts import outside_of, read_facts
from paceline.sim.scenario.schema import dump, parse

SCENARIO: Final = """\
name: one
workload: {timing_only: true, payload: 100 MB}
cluster:
  workers: 4
  compute: {time: 100 ms}
  network: {latency: 1 ms, bandwidth: 941 Mbit/s, transport: nccl}
schemes: [all_reduce]
stop: {max_iterations: 8}
"""
RATE: Final = "cluster.network.bandwidth="
HOST: Final = "cluster.network.host={gpus: 2, latency: 5 us, bandwidth: 100 GB/s}"
MEASURED: Final = "cluster.compute={measured: {batch_sizes: [1], times: [0.1 s], device: a GPU}}"


def grade_of(*changes: str) -> str | None:
    transport = read_facts(dump(parse(SCENARIO, changes=changes))).transport
    assert transport is not None
    return transport["outside"]["grade"] if "outside" in transport else None


@pytest.mark.parametrize(
    ("changes", "grade"),
    [
        ([], "measured"),
        ([f"{RATE}9.41 Gbit/s", "cluster.network.transport=gloo"], "measured"),
        ([f"{RATE}10 Gbit/s"], "plate"),
        ([f"{RATE}12.5 GB/s"], "plate"),
        ([f"{RATE}941 Mbit/s", "cluster.network.upload=1 Gbit/s"], "measured"),
        ([MEASURED], "measured"),
        ([HOST, MEASURED], "part"),
        ([HOST], None),
        ([f"{RATE}500 Mbit/s"], None),
        ([f"{RATE}64 MB/s"], None),
        (["cluster.network={latency: 1 ms, transport: nccl}"], None),
        (["cluster.network.transport=ideal"], None),
        (["cluster.stragglers=[{workers: [1], slowdown: 2}]"], None),
        (["cluster.faults=[{workers: [1], at: 1 s, back_after: 1 s}]"], None),
        (["cluster.compute={speed: 1 Tflop/s}", "workload.layer_profile=resnet-50"], None),
        (
            [
                "cluster.network={sites: {us: 2, eu: 2}, within: {latency: 1 ms, bandwidth: 9.41 Gbit/s},"
                " between: {latency: 40 ms, bandwidth: 1 Gbit/s}, transport: gloo}"
            ],
            "plate",
        ),
        (
            [
                "cluster.network={sites: {us: 2, eu: 2}, within: {latency: 1 ms, bandwidth: 9.41 Gbit/s},"
                " between: {latency: 40 ms, bandwidth: 1 Gbit/s, per_flow: 0.2 Gbit/s}, transport: gloo}"
            ],
            None,
        ),
    ],
)
def test_keys_tell_the_kind_of_inputs(changes: list[str], grade: str | None) -> None:
    assert grade_of(*changes) == grade


def test_a_profile_is_a_measurement() -> None:
    cluster = {
        "compute": {"time": "100 ms"}, "stragglers": [], "faults": [],
        "network": {"transport": "gloo", "variation": []},
    }  # fmt: skip
    assert outside_of(cluster, [62.5e6]) is None
    known = outside_of(cluster | {"profile": {}}, [62.5e6])
    assert known is not None
    assert known["grade"] == "measured"
    assert known["low"] < 1 < known["high"]
