"""Routes of many pairs at once are those of each pair."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from paceline.sim.network.network import Network
from paceline.sim.network.transfer import TransferModel, find_routes, route_pairs
from tests.sim.network.test_network_graphs import campus, written
from tests.support.factory import network_of
from tests.support.gpu_hosts import two_sites

SITES = {
    "sites": {"a": 2, "b": 3, "c": 1},
    "within": {"latency": "1 ms", "bandwidth": "1 Gbit/s"},
    "between": {"latency": {"a-b": "7 ms", "a-c": "9 ms", "b-c": "4 ms"}, "bandwidth": "1 Mbit/s"},
}


def networks(folder: Path) -> list[Network]:
    """Networks of all forms: flat with and without links, sites with and without uplinks, GPUs, a graph."""
    return [
        network_of(3, latency="1 ms"),
        network_of(3, latency="1 ms", bandwidth="1 Gbit/s"),
        network_of(6, **SITES),
        network_of(6, **SITES, uplink={"a": "2 Mbit/s"}),
        two_sites(),
        network_of(4, graph=str(written(campus(), folder / "campus.json"))),
    ]


@pytest.mark.parametrize("number", range(6))
def test_each_is_the_route_of_its_pair(number: int, tmp_path: Path) -> None:
    network = networks(tmp_path)[number]
    pairs = list(itertools.permutations(range(network.num_hosts), 2))
    routes = find_routes(network, *np.array(pairs).T)
    for pair, links, latency_s, cap in zip(
        pairs, routes.links.tolist(), routes.latency_s, routes.bytes_per_s, strict=True
    ):
        expected = network.route(*pair)
        assert tuple(link for link in links if link >= 0) == expected.links
        assert (latency_s, cap) == (expected.latency_s, expected.per_flow_bytes_per_s)


def test_a_lone_message_is_limited_by_the_slowest_link() -> None:
    pair = np.array([0]), np.array([1])
    inside = route_pairs(*pair, (0, 1), TransferModel(network_of(6, **SITES), efficiency=0.5))
    assert inside.bytes_per_s.tolist() == [0.5 * 1.25e8]
    free = TransferModel(network_of(2, latency="1 ms"))
    assert math.isinf(route_pairs(*pair, (0, 1), free).bytes_per_s[0])
