"""What the switch is told, and how it tells flows apart."""

from __future__ import annotations

import math
import socket
from dataclasses import replace

import pytest

from paceline.realrun.lab import Lab, protocol
from paceline.realrun.lab.protocol import PLAN, plan_of
from paceline.realrun.lab.queues import Path
from paceline.realrun.lab.switch import HEADER_BYTES, _flow, _has_contents
from paceline.sim.errors import InputError
from paceline.sim.network.build import build_network
from paceline.sim.network.network import Link, Network
from paceline.sim.network.network_settings import NetworkSettings
from paceline.sim.network.variation import bandwidth_changes

# Two sites of one host each: own access links, a pipe from the first to the second only.
NETWORK = Network(
    sites=("a", "b"),
    site_of=(0, 1),
    links=(Link("up 0", 1e6), Link("down 1", 2e6), Link("pipe a to b", 5e5)),
    latency_s=((0.001, 0.02), (0.03, 0.001)),
    per_flow_bytes_per_s=((math.inf, 4e5), (math.inf, math.inf)),
    up={0: 0},
    down={1: 1},
    pipe={(0, 1): 2},
)


def test_a_plan_spells_out_every_route() -> None:
    plan = plan_of(NETWORK, "fifo")
    assert plan.bandwidth_bytes_per_s == (1e6, 2e6, 5e5)
    assert plan.routes == {(0, 1): (Path((0, 2, 1), 4e5), 0.02), (1, 0): (Path((), math.inf), 0.03)}


def test_a_token_bucket_has_the_rate_of_a_hosts_first_link() -> None:
    plan = plan_of(NETWORK, "token_bucket")
    assert [plan.shaped_bytes_per_s(host) for host in (0, 1)] == [1e6, math.inf]
    assert plan_of(NETWORK, "fair").shaped_bytes_per_s(0) == math.inf


def test_a_token_bucket_needs_tc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(InputError, match="token_bucket needs tc"):
        plan_of(NETWORK, "token_bucket")


def test_a_plan_crosses_the_pipe_unchanged() -> None:
    plan = plan_of(NETWORK, "fair")
    line = PLAN.dump_json(plan)
    assert b"\n" not in line
    assert PLAN.validate_json(line) == plan


VARYING = build_network(
    NetworkSettings.model_validate(
        {
            "latency": "20 ms",
            "bandwidth": "100 Mbit/s",
            "jitter": {"gamma": {"cv": 0.5}},
            "variation": [
                {"links": "host0 up", "trace": {"steps": [{"at": "0 s", "bandwidth": "10 Mbit/s"}]}},
                {"links": "host? down", "markov": {"slow": "1 s", "fast": "2 s", "factor": 0.5}},
            ],
        }
    ),
    2,
)


def test_a_plan_says_what_varies() -> None:
    plan = plan_of(VARYING, "fair")
    assert PLAN.validate_json(PLAN.dump_json(plan)) == plan
    assert plan.jitter == VARYING.jitter
    # The same numbers as in the simulator: links are told apart by their place.
    ours, theirs = bandwidth_changes(plan.links, seed=7), bandwidth_changes(VARYING.links, seed=7)
    assert [ours.until(float(t)) for t in range(20)] == [theirs.until(float(t)) for t in range(20)]


def test_only_fair_links_can_vary() -> None:
    with pytest.raises(InputError, match=r"use queue: fair"):
        plan_of(VARYING, "fifo")
    steady = replace(VARYING, links=NETWORK.links, up={}, down={})
    assert plan_of(steady, "fifo").jitter == VARYING.jitter


def packet(*, words: int = 5, fragment: int = 0, ports: bytes = b"\x01\x02\x03\x04") -> bytes:
    """A virtio header and an IPv4 packet from 10.0.0.1 to 10.0.0.2 with ``words`` of IP header."""
    ip = bytearray(4 * words)
    ip[0] = 0x40 | words
    ip[6:8] = fragment.to_bytes(2)
    ip[12:20] = bytes([10, 0, 0, 1, 10, 0, 0, 2])
    return bytes(10) + bytes(ip) + ports + bytes(16)


ADDRESSES = bytes([10, 0, 0, 1, 10, 0, 0, 2])


@pytest.mark.parametrize("words", [5, 6, 15])
def test_ports_tell_flows_apart_whatever_the_options(words: int) -> None:
    assert _flow(packet(words=words)) == ADDRESSES + b"\x01\x02\x03\x04"
    assert _flow(packet(words=words, ports=b"\x01\x02\x03\x05")) != _flow(packet(words=words))


@pytest.mark.parametrize("fragment", [0x2000, 0x2001, 0x0001, 0x0100])
def test_fragments_of_one_packet_are_one_flow(fragment: int) -> None:
    # More-fragments flag or an offset: only the first fragment would have ports.
    assert _flow(packet(fragment=fragment)) == ADDRESSES


def test_do_not_fragment_is_no_fragment() -> None:
    assert _flow(packet(fragment=0x4000)) == ADDRESSES + b"\x01\x02\x03\x04"


@pytest.mark.parametrize("words", [5, 6, 13])
@pytest.mark.parametrize("options", [0, 3])
def test_an_acknowledgement_has_no_contents(words: int, options: int) -> None:
    head = bytearray(packet(words=words))
    head[HEADER_BYTES + 9] = socket.IPPROTO_TCP
    head[HEADER_BYTES + 4 * words + 12] = (5 + options) << 4
    headers = 4 * words + 20 + 4 * options
    assert not _has_contents(bytes(head), headers)
    assert _has_contents(bytes(head), headers + 1)


def test_what_is_not_tcp_has_contents() -> None:
    assert _has_contents(packet(), 28)
    assert _has_contents(packet(fragment=0x2000), 28)


def test_the_start_of_a_run_is_parsed() -> None:
    sent = packet() + bytes(4)
    contents = protocol._START.pack(12.5, 2**63 + 1)
    assert protocol.parse((sent[: HEADER_BYTES + 28] + contents)[HEADER_BYTES:][protocol.CONTENTS]) == (
        12.5,
        2**63 + 1,
    )


def test_only_a_worker_in_a_lab_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    assert not protocol.in_lab()
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", Lab.interface)
    assert protocol.in_lab()
