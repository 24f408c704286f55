"""What the switch is told, and how it tells flows apart."""

from __future__ import annotations

import math

import pytest

from realrun.lab.protocol import from_json, plan_of, to_json
from realrun.lab.queues import Path
from realrun.lab.switch import _flow
from sim.network.platform import Link, Network

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


def test_a_plan_crosses_the_pipe_unchanged() -> None:
    plan = plan_of(NETWORK, "fair")
    line = to_json(plan)
    assert "\n" not in line
    assert from_json(line) == plan


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
