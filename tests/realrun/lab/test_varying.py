"""Latencies and bandwidths that vary, measured on this machine, with room for a busy one."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

import pytest

from paceline.realrun.lab import Lab
from paceline.realrun.lab.lab import python_environment
from paceline.sim.jitter import Jitter
from paceline.sim.network.forms import Variation
from paceline.sim.network.network import Link, Network
from paceline.sim.network.variation import Factors

pytestmark = [pytest.mark.lab, pytest.mark.timeout(120)]

MBIT = 125_000.0
LATENCY_S = 0.02
SEED = 11


def pair(bandwidth: float = 100 * MBIT) -> Network:
    links = (Link("up 0", bandwidth), Link("up 1", bandwidth))
    return Network(("here",), (0, 0), links, ((LATENCY_S,),), ((math.inf,),), up={0: 0, 1: 1})


# What follows a datagram: a pause, or (null) the receiver's answer, so that nothing is under way however late
# this machine runs them.
DATAGRAMS = """
import json, socket, sys, time
from paceline.realrun.lab import protocol
role, address, gaps = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
times = []
if role == "receive":
    datagrams.bind((address, 7000))
    print("ready", flush=True)
    for _ in gaps:
        number, sender = datagrams.recvfrom(100)
        times.append((int(number), time.monotonic()))
        datagrams.sendto(number, sender)
else:
    for number, gap in enumerate(gaps):
        if number == 1:
            protocol.tell(time.monotonic(), int(sys.argv[4]))
        times.append((number, time.monotonic()))
        datagrams.sendto(str(number).encode(), (address, 7000))
        if gap is None:
            datagrams.recv(100)
        else:
            time.sleep(gap)
print(json.dumps(times))
"""


def exchanged(lab: Lab, code: str, *arguments: str) -> tuple[list[tuple[float, float]], ...]:
    """What the sender in host 0 and the receiver in host 1 print at their ends."""
    command = [sys.executable, "-c", code]
    found = [lab.address(1), *arguments]
    environment = python_environment()
    receiver = lab.popen(1, [*command, "receive", *found], environment, stdout=subprocess.PIPE)
    assert receiver.stdout is not None
    assert receiver.stdout.readline() == b"ready\n"
    sender = lab.popen(0, [*command, "send", *found], environment, stdout=subprocess.PIPE)
    return tuple(json.loads(process.communicate()[0]) for process in (sender, receiver))


def drawn(jitter: Jitter, count: int) -> list[float]:
    factors = Factors(jitter, 2, SEED)
    return [factors.draw(0) for _ in range(count)]


def test_latencies_are_those_that_the_simulator_draws() -> None:
    jitter = Jitter.model_validate({"gamma": {"cv": 0.7}})
    # The first datagram goes before the run starts.
    expected = [LATENCY_S * factor for factor in [1.0, *drawn(jitter, 40)]]
    with Lab(replace(pair(), jitter=jitter)) as lab:
        sent, received = exchanged(lab, DATAGRAMS, json.dumps([None] * 41), str(SEED))
    assert [number for number, _ in received] == list(range(41))
    late = [b - a - latency for (_, a), (_, b), latency in zip(sent, received, expected, strict=True)]
    assert min(late) > -0.0005
    assert median(late) < 0.003


def test_packets_of_a_burst_keep_their_order_and_their_latency() -> None:
    jitter = Jitter.model_validate({"pareto": {"shape": 1.5}})
    gaps = [None, *[0.001] * 30]
    with Lab(replace(pair(), jitter=jitter)) as lab:
        sent, received = exchanged(lab, DATAGRAMS, json.dumps(gaps), str(SEED))
    assert [number for number, _ in received] == list(range(31))
    latency = LATENCY_S * drawn(jitter, 1)[0]
    late = [b - a - latency for (_, a), (_, b) in zip(sent[1:6], received[1:6], strict=True)]
    assert min(late) > -0.0005
    assert min(late) < 0.01, "the nominal latency would be more than that"


STREAM = """
import json, socket, sys, time
from paceline.realrun.lab import protocol
role, address, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
times = []
if role == "receive":
    with socket.create_server((address, 7000)) as server:
        print("ready", flush=True)
        connection = server.accept()[0]
        connection.recv(1), connection.sendall(b"x")
        received = 0
        while received < size:
            received += len(connection.recv(1 << 16))
            times.append((time.monotonic(), received))
else:
    connection = socket.create_connection((address, 7000))
    connection.sendall(b"x"), connection.recv(1)
    zero_s = time.monotonic() + 0.05
    protocol.tell(zero_s, 0)
    time.sleep(max(0, zero_s - time.monotonic()))
    times.append((zero_s, 0))
    connection.sendall(bytes(size))
print(json.dumps(times))
"""


def rate(times: Sequence[tuple[float, float]], from_s: float, to_s: float) -> float:
    """Bytes per second in a window, between the first and the last reading in it."""
    inside = [(time, count) for time, count in times if from_s <= time <= to_s]
    return (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0])


def test_bandwidth_follows_its_table() -> None:
    steps = [(0.0, 100), (0.6, 20), (1.2, 60)]
    trace = {"steps": [{"at": f"{at} s", "bandwidth": f"{mbit} Mbit/s"} for at, mbit in steps]}
    varying = Variation.model_validate({"links": "up 0", "trace": trace})
    network = pair(200 * MBIT)
    network = replace(network, links=(replace(network.links[0], variation=varying), network.links[1]))
    size = 12_000_000  # 7.5 MB and 1.5 MB in the first two periods, 3 MB in 0.4 s of the third
    with Lab(network) as lab:
        sent, received = exchanged(lab, STREAM, str(size))
    zero_s = sent[0][0] + LATENCY_S
    times = [(time - zero_s, count) for time, count in received]
    assert times[-1][0] == pytest.approx(1.6, rel=0.05)
    for (at, mbit), until in zip(steps, (0.6, 1.2, 1.6), strict=True):
        assert rate(times, at + 0.1, until - 0.05) == pytest.approx(mbit * MBIT, rel=0.1)


def test_an_outage_holds_up_what_is_sent_and_loses_nothing() -> None:
    outages = [{"at": "0.4 s", "duration": "0.5 s"}]
    varying = Variation.model_validate({"links": "up 0", "outages": outages})
    network = pair(100 * MBIT)
    network = replace(network, links=(replace(network.links[0], variation=varying), network.links[1]))
    size = 10_000_000  # 5 MB by 0.4 s, the rest from 0.9 to 1.3 s
    with Lab(network) as lab:
        sent, received = exchanged(lab, STREAM, str(size))
    zero_s = sent[0][0] + LATENCY_S
    times = [(time - zero_s, count) for time, count in received]
    assert times[-1][0] == pytest.approx(1.3, rel=0.05)
    assert times[-1][1] == size
    inside = [count for time, count in times if 0.45 <= time <= 0.88]
    assert not inside, "nothing arrives in an outage"
    assert rate(times, 0.95, 1.25) == pytest.approx(100 * MBIT, rel=0.15)


def test_latencies_follow_their_table() -> None:
    """Before the run the nominal 20 ms; then 50 ms are added, which end while datagrams are under way."""
    steps = [(0.0, 50), (0.4, 0)]
    trace = {
        "steps": [{"at": f"{at} s", "bandwidth": "100 Mbit/s", "latency": f"{ms} ms"} for at, ms in steps]
    }
    varying = Variation.model_validate({"links": "up 0", "trace": trace})
    network = pair()
    network = replace(network, links=(replace(network.links[0], variation=varying), network.links[1]))
    with Lab(network) as lab:
        sent, received = exchanged(lab, DATAGRAMS, json.dumps([None, *[0.01] * 60]), str(SEED))
    assert [number for number, _ in received] == list(range(61)), "nothing overtakes"
    late = [b - a for (_, a), (_, b) in zip(sent, received, strict=True)]
    zero_s = sent[1][1]
    began = [a - zero_s for _, a in sent]
    assert late[0] == pytest.approx(LATENCY_S, abs=0.005)
    high = [each for each, at in zip(late, began, strict=True) if 0 <= at < 0.3]
    low = [each for each, at in zip(late, began, strict=True) if at > 0.48]
    assert median(high) == pytest.approx(LATENCY_S + 0.05, abs=0.005)
    assert median(low) == pytest.approx(LATENCY_S, abs=0.005)
