"""Bytes between sites and on links, by hand."""

from __future__ import annotations

from pathlib import Path

from paceline.sim.network.network import bytes_carried
from tests.sim.network.test_network_graphs import campus, written
from tests.support.factory import network_of

SENT = [{1: 10, 2: 1}, {0: 20}, {0: 300}]


def test_bytes_from_site_to_site_and_on_pipes() -> None:
    network = network_of(
        3, sites={"us": 2, "eu": 1}, within={"latency": "1 ms", "bandwidth": "1 MB/s"},
        between={"latency": "40 ms", "bandwidth": "1 MB/s"}, uplink={"eu": "1 MB/s"},
    )  # fmt: skip
    between, links = bytes_carried(network, SENT)
    assert between == {"us": {"us": 30, "eu": 1}, "eu": {"us": 300, "eu": 0}}
    assert links == {"us->eu": 1, "eu->us": 300, "eu out": 300, "eu in": 1}  # not on access links


def test_bytes_on_the_links_of_a_graph(tmp_path: Path) -> None:
    """0 and 1 hang on one switch, 2 on another; all pass the way of least latency, one trunk."""
    network = network_of(4, graph=str(written(campus(), tmp_path / "campus.json")))
    between, links = bytes_carried(network, [*SENT, {}])
    assert between == {}
    assert {name: count for name, count in links.items() if count} == {
        "a->s1": 11, "s1->a": 320, "b->s1": 20, "s1->b": 10, "s1->s2": 1, "s2->s1": 300, "c->s2": 300,
        "s2->c": 1,
    }  # fmt: skip


def test_one_site_without_shared_links_carries_nothing_worth_a_line() -> None:
    assert bytes_carried(network_of(3, latency="1 ms", bandwidth="1 MB/s"), SENT) == ({}, {})
