"""Hosts of several GPUs: their links, who shares which, and what is refused."""

from __future__ import annotations

import pytest

from paceline.sim.errors import InputError
from paceline.sim.experiments.costs.check import route_kinds
from paceline.sim.network.network import Network
from paceline.sim.scenario.schema import parse
from tests.support.factory import network_of
from tests.support.gpu_hosts import HOST, hosts_scenario, two_sites


def _names(network: Network, source: int, destination: int) -> list[str]:
    return [network.links[link].name for link in network.route(source, destination).links]


def test_gpus_of_a_host_have_links_of_their_own_and_share_its_card() -> None:
    network = two_sites()
    assert network.node_of == (0, 0, 1, 1, 2, 2, 3, 3)
    assert _names(network, 0, 1) == ["gpu0 out", "gpu1 in"]
    assert _names(network, 0, 2) == ["host0 up", "host1 down"]
    assert _names(network, 1, 3) == ["host0 up", "host1 down"]
    assert _names(network, 3, 4) == ["host1 up", "a->b", "host2 down"]
    assert [network.route(0, other).latency_s for other in (1, 2, 4)] == [0.25, 0.5, 1.0]
    assert len(network.links) == 8 + 16 + 2


def test_hosts_of_a_graph_have_gpus_too() -> None:
    link = {"source": "x", "target": "y", "latency": "1 ms", "bandwidth": "8 Mbit/s"}
    network = network_of(4, graph={"hosts": ["x", "y"], "links": [link]}, host=HOST)
    assert _names(network, 0, 1) == ["gpu0 out", "gpu1 in"]
    assert _names(network, 1, 2) == ["x->y"]
    assert _names(network, 3, 0) == ["y->x"]


def test_one_gpu_is_a_host_as_ever() -> None:
    plain = {"latency": "1 ms", "bandwidth": "8 Mbit/s"}
    assert network_of(3, **plain, host={"memory": "80 GB"}) == network_of(3, **plain)


def test_check_groups_routes_inside_and_between_hosts() -> None:
    kinds = [
        (kind["from"], kind["to"], kind["pairs"], (kind["example"]["source"], kind["example"]["destination"]))
        for kind in route_kinds(two_sites())
    ]
    assert kinds == [
        ("a", "a", 4, (0, 1)), ("a", "a", 8, (0, 2)), ("a", "b", 16, (0, 4)),
        ("b", "a", 16, (4, 0)), ("b", "b", 4, (4, 5)), ("b", "b", 8, (4, 6)),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("sites", "host", "message"),
    [
        (
            "{a: 4, b: 5}",
            "{gpus: 2}",
            "network.sites.b: 5 workers do not fill hosts of 2 GPUs; write for example 4",
        ),
        ("{a: 4, b: 4}", "{gpu: 2}", "host.gpu: unknown key; did you mean 'gpus'?"),
        ("{a: 4, b: 4}", "{gpus: 0}", "network.host.gpus"),
    ],
)
def test_hosts_that_cannot_be_are_refused_by_line_and_key(sites: str, host: str, message: str) -> None:
    with pytest.raises(InputError, match="scenario:") as caught:
        parse(hosts_scenario(host, sites))
    assert message in str(caught.value)


def test_the_number_of_workers_has_to_fill_hosts() -> None:
    text = hosts_scenario("{gpus: 2}")
    flat = (
        text[: text.index("    sites")]
        + "    {latency: 1 ms, host: {gpus: 8}}\n"
        + text[text.index("schemes") :]
    )
    with pytest.raises(InputError, match="12 workers do not fill hosts of 8 GPUs; write for example 8"):
        parse(flat, changes=["cluster.workers=12"])
