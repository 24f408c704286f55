import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from paceline.sim.errors import InputError
from paceline.sim.network.build import build_network
from paceline.sim.network.network import Network
from paceline.sim.network.network_settings import NetworkSettings
from paceline.sim.network.variation import changes_per_s
from paceline.sim.scenario.schema import parse
from tests.sim.scenario.test_schema import FLAT
from tests.support.factory import make_job, network_of, one_message, run_events


def _settings(**given: object) -> NetworkSettings:
    return NetworkSettings.model_validate(given)


def _names(network: Network, source: int, destination: int) -> list[str]:
    return [network.links[link].name for link in network.route(source, destination).links]


def test_the_flat_form_is_one_site_with_access_links() -> None:
    network = build_network(_settings(latency="5 ms", bandwidth="100 Mbit/s"), 3)
    assert network.num_hosts == 3
    assert network.sites == ("all",)
    assert _names(network, 0, 2) == ["host0 up", "host2 down"]
    assert {link.bandwidth_bytes_per_s for link in network.links} == {12.5e6}
    assert len(network.links) == 6
    route = network.route(0, 2)
    assert (route.latency_s, route.per_flow_bytes_per_s) == (0.005, math.inf)


def test_without_bandwidth_there_are_no_links() -> None:
    network = build_network(_settings(latency="5 ms"), 3)
    assert network.links == ()
    assert network.route(1, 0).links == ()


SITES = {
    "sites": {"us": 2, "eu": 1, "asia": 1},
    "within": {"latency": "0.1 ms", "bandwidth": "10 Gbit/s"},
    "between": {
        "latency": {"eu-us": "40 ms", "us-asia": "75 ms", "asia-us": "80 ms", "default": "90 ms"},
        "bandwidth": "1 Gbit/s",
        "per_flow": "300 Mbit/s",
    },
    "uplink": {"eu": "2 Gbit/s"},
}


def test_routes_between_sites_cross_uplinks_and_the_pipe() -> None:
    network = build_network(_settings(**SITES), 4)
    assert network.site_of == (0, 0, 1, 2)
    assert _names(network, 0, 1) == ["host0 up", "host1 down"]
    assert _names(network, 0, 3) == ["host0 up", "us->asia", "host3 down"]
    assert _names(network, 1, 2) == ["host1 up", "us->eu", "eu in", "host2 down"]
    assert _names(network, 2, 3) == ["host2 up", "eu out", "eu->asia", "host3 down"]
    bandwidths = {link.name: link.bandwidth_bytes_per_s for link in network.links}
    assert bandwidths["host0 up"] == 1.25e9
    assert bandwidths["us->eu"] == bandwidths["eu->us"] == 125e6
    assert bandwidths["eu out"] == bandwidths["eu in"] == 250e6
    assert len(network.links) == len(bandwidths) == 4 * 2 + 3 * 2 + 2


def test_latency_is_symmetrical_unless_both_directions_are_given() -> None:
    network = build_network(_settings(**SITES), 4)
    assert network.latency_s == (
        (0.0001, 0.04, 0.075),
        (0.04, 0.0001, 0.09),
        (0.08, 0.09, 0.0001),
    )
    cap = 37.5e6
    assert network.per_flow_bytes_per_s == ((math.inf, cap, cap), (cap, math.inf, cap), (cap, cap, math.inf))


def test_site_names_are_letters_of_any_script_and_dashes() -> None:
    between = {"latency": {"us-east-us-west": "30 ms", "köln-us-east": "40 ms", "us-west-köln": "70 ms"}}
    network = build_network(
        _settings(sites={"us-east": 1, "us-west": 1, "köln": 1}, within={"latency": "0 s"}, between=between),
        3,
    )
    assert network.latency_s == ((0.0, 0.03, 0.04), (0.03, 0.0, 0.07), (0.04, 0.07, 0.0))


def test_one_latency_may_hold_for_all_pairs() -> None:
    network = build_network(
        _settings(sites={"a": 1, "b": 1}, within={"latency": "1 ms"}, between={"latency": "9 ms"}), 2
    )
    assert network.latency_s == ((0.001, 0.009), (0.009, 0.001))
    assert network.links == ()


def test_a_single_site_needs_no_between() -> None:
    network = build_network(_settings(sites={"here": 2}, within={"latency": "1 ms"}), 2)
    assert network.route(0, 1).latency_s == 0.001


def test_another_number_of_workers_is_refused() -> None:
    with pytest.raises(InputError, match="the sites hold 4 workers, not 5"):
        build_network(_settings(**SITES), 5)


@given(st.lists(st.integers(1, 3), min_size=1, max_size=4), st.booleans(), st.booleans())
def test_every_route_starts_and_ends_at_its_hosts(counts: list[int], uplinks: bool, pipes: bool) -> None:
    names = [f"s{number}" for number in range(len(counts))]
    network = build_network(
        _settings(
            sites=dict(zip(names, counts, strict=True)),
            within={"latency": "1 ms", "bandwidth": "1 Gbit/s"},
            between={"latency": "7 ms", **({"bandwidth": "1 Mbit/s"} if pipes else {})},
            uplink=dict.fromkeys(names, "2 Mbit/s") if uplinks else {},
        ),
        sum(counts),
    )
    home = [name for name, count in zip(names, counts, strict=True) for _ in range(count)]
    for source in range(sum(counts)):
        for destination in set(range(sum(counts))) - {source}:
            a, b = home[source], home[destination]
            middle = []
            if a != b:
                middle = [f"{a} out"] * uplinks + [f"{a}->{b}"] * pipes + [f"{b} in"] * uplinks
            assert _names(network, source, destination) == [
                f"host{source} up",
                *middle,
                f"host{destination} down",
            ]
            assert network.route(source, destination).latency_s == (0.001 if a == b else 0.007)


def test_hosts_send_slower_than_they_receive() -> None:
    flat = network_of(2, latency="1 ms", bandwidth="500 Mbit/s", upload="110 Mbit/s")
    rates = {link.name: link.bandwidth_bytes_per_s for link in flat.links}
    assert (rates["host0 up"], rates["host0 down"]) == (13.75e6, 62.5e6)
    sites = network_of(
        2, sites={"us": 2}, within={"latency": "1 ms", "bandwidth": "500 Mbit/s", "upload": "110 Mbit/s"}
    )
    assert sites.links == flat.links
    with pytest.raises(ValidationError, match="needs bandwidth"):
        network_of(2, latency="1 ms", upload="110 Mbit/s")


def test_each_direction_between_sites_may_have_its_own_rate(tmp_path: Path) -> None:
    matrix = tmp_path / "rates.csv"
    matrix.write_text("[Mbit/s],us,eu,asia\nus,,800,400\neu,600,,80\nasia,300,70,\n")
    rates = {"us-eu": "800 Mbit/s", "eu-us": "600 Mbit/s", "us-asia": "400 Mbit/s", "default": "80 Mbit/s"}
    between = {
        "latency": "40 ms",
        "bandwidth": rates,
        "per_flow": {"us-eu": "100 Mbit/s", "default": "1 Gbit/s"},
    }
    network = network_of(3, sites={"us": 1, "eu": 1, "asia": 1}, within={"latency": "1 ms"}, between=between)
    pipes = {link.name: link.bandwidth_bytes_per_s / 125_000 for link in network.links}
    assert pipes == {
        "us->eu": 800, "eu->us": 600, "us->asia": 400, "asia->us": 400, "eu->asia": 80, "asia->eu": 80,
    }  # fmt: skip
    assert network.route(1, 0).per_flow_bytes_per_s == network.route(0, 1).per_flow_bytes_per_s == 12.5e6
    assert network.route(0, 2).per_flow_bytes_per_s == 125e6
    settings = NetworkSettings.model_validate(
        {
            "sites": {"us": 1, "eu": 1, "asia": 1}, "within": {"latency": "1 ms"},
            "between": {"latency": "40 ms", "bandwidth": "rates.csv"},
        },
        context={"folder": tmp_path},
    )  # fmt: skip
    assert settings.of_pairs("bandwidth")["asia", "eu"] == 70 * 125_000
    matrix.write_text(matrix.read_text() + "us,,100,400\n")
    with pytest.raises(ValidationError, match=r"rates\.csv:5: has a second value of us-eu"):
        NetworkSettings.model_validate(
            {**settings.model_dump(mode="json"), "between": {"latency": "1 ms", "bandwidth": "rates.csv"}},
            context={"folder": tmp_path},
        )
    with pytest.raises(ValidationError, match="no two sites have this name"):
        NetworkSettings.model_validate(
            {
                "sites": {"us": 2, "eu": 1}, "within": {"latency": "1 ms"},
                "between": {"latency": "1 ms", "bandwidth": {"us-mars": "1 Gbit/s"}},
            }
        )  # fmt: skip
    with pytest.raises(ValidationError, match="there is one site, and nothing between sites; leave"):
        NetworkSettings.model_validate(
            {
                "sites": {"us": 3}, "within": {"latency": "1 ms"},
                "between": {"latency": {"us-eu": "40 ms", "us-asia": "80 ms"}},
            }
        )  # fmt: skip


def test_a_network_from_a_function() -> None:
    network = network_of(2, model="tests.support.own_models:near")
    assert run_events(one_message(network, 64)).wall_s == 0.25


def test_an_all_reduce_from_a_function() -> None:
    job = make_job(
        "all_reduce", workers=4, max_iterations=1, latency_s=0.5, bandwidth_bytes_per_s=16.0,
        bytes_per_parameter=32, all_reduce="tests.support.own_models:star",
    )  # fmt: skip
    # 1 s of computation, then three messages of 32 bytes over the centre's access link, in and out again
    assert run_events(job).wall_s == 1.0 + 2 * (3 * 32 / 16 + 0.5)


@pytest.mark.parametrize(
    ("variation", "changes"),
    [
        ("markov: {slow: 1 s, fast: 3 s, factor: 0.5}", 4 * 0.5),  # each of four links twice in four seconds
        (
            "trace: {steps: [{at: 0 s, bandwidth: 1 Mbit/s}, {at: 1 s, bandwidth: 2 Mbit/s}], period: 4 s}",
            4 * 0.5,
        ),
        ("trace: {steps: [{at: 0 s, bandwidth: 1 Mbit/s}, {at: 1 s, bandwidth: 2 Mbit/s}]}", 0.0),
        ("outages: [{at: 1 s, duration: 1 s}]", 0.0),
    ],
)
def test_how_often_links_change(variation: str, changes: float) -> None:
    text = FLAT.replace("100 Mbit/s}", f"100 Mbit/s, variation: [{{links: 'host? up', {variation}}}]}}")
    network = build_network(parse(text).cluster.network, 4)
    assert changes_per_s(network.links) == changes
