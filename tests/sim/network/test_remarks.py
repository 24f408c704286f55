"""What `paceline check` says of nominal bandwidths."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline.sim.experiments.costs.check import about_averages_inside, check, remarks
from paceline.sim.network.build import build_network
from paceline.sim.network.network_settings import SEGMENT_BYTES, NetworkSettings, payload_share
from paceline.sim.scenario.schema import parse
from tests.support.gpu_hosts import hosts_scenario

SITES = {
    "sites": {"a": 2, "b": 2},
    "within": {"latency": "0.1 ms", "bandwidth": "10 Gbit/s"},
    "between": {"latency": "20 ms", "bandwidth": "1 Gbit/s"},
}


def said(**written: object) -> list[str]:
    settings = NetworkSettings.model_validate({"latency": "1 ms", "transport": "gloo", **written})
    return remarks(settings, build_network(settings, 4))


def test_averages_inside_come_after_the_backward_pass_or_meanwhile() -> None:
    gossip = "gossip: {topology: ring, inside: hosts}, sgp: {topology: ring, inside: hosts}"
    schemes = f"diloco: {{inside: hosts}}, diloco: {{inside: hosts, overlap: true, label: b}}, {gossip}"
    text = hosts_scenario("{gpus: 2, bandwidth: 1 Gbit/s}", scheme=schemes)
    (sentence,) = about_averages_inside(parse(text).schemes)
    assert sentence.startswith("diloco averages gradients inside hosts after the backward pass")


def test_what_is_left_for_data() -> None:
    assert payload_share() == SEGMENT_BYTES / 1538
    assert payload_share(9000) == 8948 / 9038


@given(st.integers(100, 60_000), st.integers(1, 1000))
def test_larger_packets_leave_more(mtu: int, more: int) -> None:
    assert 0 < payload_share(mtu) < payload_share(mtu + more) < 1


@pytest.mark.parametrize("plate", ["1 Gbit/s", "10 Gbit/s", "25 Gbit/s", "40 Gbit/s", "100 Gbit/s"])
@pytest.mark.parametrize("transport", ["gloo", "nccl"])
def test_a_name_plate_is_seen(plate: str, transport: str) -> None:
    (sentence,) = said(bandwidth=plate, transport=transport, connect="0.4 s")
    assert f"{plate} looks like a name plate" in sentence
    assert "94.1 % (MTU 1500) or 99.0 % (MTU 9000)" in sentence


@pytest.mark.parametrize(
    "written",
    [
        {"bandwidth": "9.41 Gbit/s"},
        {"bandwidth": "10 Gbit/s", "transport": "ideal"},
        {"bandwidth": "5 Gbit/s", "host": {"gpus": 2, "bandwidth": "100 Gbit/s"}},
        {},
    ],
)
def test_measured_rates_links_inside_hosts_and_ideal_transports_are_let_be(
    written: dict[str, object],
) -> None:
    assert said(**written) == []


def test_plates_are_named_once_and_stock_hosts_have_one_mtu() -> None:
    (sentence,) = said(**SITES, latency=None, hosts="stock")
    assert (
        "1 Gbit/s, 10 Gbit/s look like name plates: TCP over Ethernet leaves 94.1 % (MTU 1500) of" in sentence
    )


def test_connecting_is_named_where_it_takes_time_and_none_is_given() -> None:
    (sentence,) = said(transport="nccl")
    assert "0.33 to 0.52 s longer than the later ones: network.connect: 0.4 s adds that" in sentence
    assert said(transport="nccl", connect="0.4 s") == said(transport="gloo") == []


def test_check_says_so() -> None:
    text = """\
name: plates
workload: {timing_only: true, payload: 1 MB}
cluster: {workers: 2, compute: {time: 1 s}, network: {latency: 1 ms, bandwidth: 1 Gbit/s, transport: gloo}}
schemes: [all_reduce]
stop: {max_iterations: 2}
"""
    found = check(parse(text), torch.device("cpu"))
    assert [each for each in found["remarks"] if "1 Gbit/s looks like a name plate" in each]
