"""``cluster.network.hosts``, and its TCP."""

from __future__ import annotations

import pytest
import torch

from paceline.sim.errors import InputError
from paceline.sim.experiments.prepare import prepare, resolve
from paceline.sim.experiments.simulate import simulate_job
from paceline.sim.network.network_settings import TcpSettings
from paceline.sim.scenario.schema import Scenario, dump, parse

TEXT = """
name: hosts
workload: {{timing_only: true, payload: 1 MB}}
cluster:
  workers: 2
  compute: {{time: 10 ms}}
  network: {{latency: 20 ms, bandwidth: 100 Mbit/s{network}}}
schemes: [all_reduce]
stop: {{max_iterations: 3}}
"""


def scenario(network: str = "") -> Scenario:
    return parse(TEXT.format(network=network and f", {network}"))


def test_tuned_hosts_are_the_default_and_have_no_windows() -> None:
    network = scenario().cluster.network
    assert (network.hosts, network.tcp) == ("tuned", None)


@pytest.mark.parametrize("network", ["hosts: stock", "tcp: {}"])
def test_stock_hosts_can_be_written_in_two_ways(network: str) -> None:
    settings = scenario(network).cluster.network
    assert (settings.hosts, settings.tcp) == ("stock", TcpSettings())


def test_the_resolved_scenario_names_every_setting() -> None:
    resolved = dump(scenario("hosts: stock"))
    for text in ("hosts: stock", "congestion: cubic", "initial_window: 10", "slow_start_after_idle: true"):
        assert text in resolved
    assert parse(resolved) == scenario("hosts: stock")
    assert dump(parse(resolved)) == resolved


@pytest.mark.parametrize(
    ("network", "message"),
    [
        ("hosts: stok", "stock"),
        ("hosts: tuned, tcp: {congestion: bbr}", "cluster.network.tcp: is of stock hosts"),
        ("tcp: {congestion: vegas}", "cluster.network.tcp.congestion"),
        ("tcp: {initial_window: 0}", "cluster.network.tcp.initial_window"),
        ("tcp: {send_buffer: 1 B}", "cluster.network.tcp.send_buffer"),
        ("tcp: {loss: 1}", "cluster.network.tcp.loss"),
        ("tcp: {congestoin: bbr}", "congestion"),
        ("hosts: stock, sharing: none", "cluster.network.hosts: 'stock' needs sharing"),
        ("queue: fifo, sharing: rtt", "cluster.network.queue: 'fifo' needs sharing: max_min"),
    ],
)
def test_bad_values_are_named(network: str, message: str) -> None:
    with pytest.raises(InputError, match=message.replace(".", r"\.")):
        scenario(network)


def test_a_token_bucket_is_the_labs_alone() -> None:
    shaped = scenario("queue: token_bucket")
    with pytest.raises(InputError, match="token_bucket drops packets"):
        resolve(shaped, torch.device("cpu"))
    with pytest.raises(InputError, match="token_bucket drops packets"):
        simulate_job(prepare(shaped, shaped.schemes[0], 0))


def test_stock_hosts_take_longer() -> None:
    tuned, stock = (
        simulate_job(prepare(each, each.schemes[0], 0)).wall_clock_s
        for each in (scenario(), scenario("hosts: stock"))
    )
    # 500 kB each way per round: windows of 10, 20 and 40 segments, 40 ms apart, the first time.
    assert tuned + 0.1 < stock < tuned + 1.0
