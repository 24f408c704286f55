"""SimGrid's platforms: latency and bandwidth of a pair are those of its route."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.sim.errors import InputError
from paceline.sim.network.network import rate_of
from tests.paceline.extras.importers.maps.samples import FLOYD, PLATFORM, network_of, read


def test_a_route_of_two_links() -> None:
    network = network_of(PLATFORM)
    there, back = network.route(0, 1), network.route(1, 0)
    assert there.latency_s == back.latency_s == pytest.approx(2.1e-3)
    shared = set(there.links) & set(back.links)
    assert [network.links[n].bandwidth_bytes_per_s for n in shared] == [125e6]  # one capacity for both ways
    assert len(there.links) == len(back.links) == 2


def test_what_is_not_read_is_named() -> None:
    text = PLATFORM.replace('latency="2ms"', 'latency="2ms" bandwidth_file="b.txt"').replace(
        "<router", "<prop id='x'/><router"
    )
    assert read(text).notes[-1] == "not used: speeds of hosts, <prop>, bandwidth_file"


def test_the_way_through_routers_has_the_fewest_links() -> None:
    network = network_of(FLOYD)
    assert network.route(0, 1).latency_s == pytest.approx(2.1e-3)
    assert network.route(0, 2).latency_s == pytest.approx(12.1e-3)
    assert rate_of(network, network.route(0, 2)) == pytest.approx(125e6)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('id="b" bandwidth="1Gbps"', 'id="b" bandwidth="1Gb"', r"link 'b': '1Gb' is no quantity"),
        ('latency="100us"', 'latency="100 parsecs"', r"link 'a': '100 parsecs'"),
        ("SPLITDUPLEX", "WIFI", r"sharing_policy 'WIFI' is not read"),
        ('link_ctn id="a"', 'link_ctn id="z"', r"there is no link 'z'"),
        ("<router id", "<peer id", r"has a <peer>, which is not read"),
        ("<router id", "<cluster id", r"has a <cluster>, which is not read"),
        ('<router id="r"/>', '<zone id="r"/>', r"has 2 zones; one"),
        ('dst="h2"', 'dst="r"', r"no route from 'h1' to 'h2'"),
        ('host id="h2"', 'host id="h1"', r"'h1' twice"),
        ('routing="Full"', 'routing="Vivaldi"', r"no route from .*routing Vivaldi"),
        (
            "<!DOCTYPE platform SYSTEM",
            "<!DOCTYPE platform [<!ENTITY a 'a'>] SYSTEM",
            r"file:2: declares entities",
        ),
        ("</platform>", "", r"file:\d+: is no whole XML"),
    ],
)
def test_refused(old: str, new: str, message: str) -> None:
    assert old in PLATFORM
    with pytest.raises(InputError, match=message):
        read(PLATFORM.replace(old, new))


def test_a_fatpipe_that_limits_is_refused() -> None:
    text = FLOYD.replace('bandwidth="1.25GBps"', 'bandwidth="1MBps"')
    with pytest.raises(InputError, match="FATPIPE"):
        read(text)


def test_routes_that_are_not_the_shortest_are_refused() -> None:
    links = "".join(
        f'<link id="{n}" bandwidth="1Gbps" latency="{ms}ms"/>' for n, ms in (("x", 1), ("y", 1), ("z", 9))
    )
    routes = "".join(
        f'<route src="{a}" dst="{b}"><link_ctn id="{n}"/></route>'
        for a, b, n in (("1", "2", "x"), ("2", "3", "y"), ("1", "3", "z"))
    )
    hosts = "".join(f'<host id="{n}" speed="1Gf"/>' for n in "123")
    text = f'<platform version="4.1"><zone id="all" routing="Full">{hosts}{links}{routes}</zone></platform>'
    with pytest.raises(InputError, match="route from 1 to 3 takes z, but x y has less latency"):
        read(text)


_LINK = st.tuples(st.integers(1, 10**6), st.integers(1, 10**5), st.booleans())


@settings(max_examples=30)
@given(uplinks=st.lists(_LINK, min_size=3, max_size=5), middle=_LINK, left=st.integers(1, 2))
def test_a_route_is_the_sum_of_its_links(
    uplinks: list[tuple[int, int, bool]], middle: tuple[int, int, bool], left: int
) -> None:
    """Hosts on two sides of a link: each pair crosses the links of its ends, and of two sides the middle."""
    links = {**{f"u{n}": link for n, link in enumerate(uplinks)}, "m": middle}
    lines = [
        f'<link id="{name}" bandwidth="{rate}kBps" latency="{us}us" '
        f'sharing_policy="{"SPLITDUPLEX" if split else "SHARED"}"/>'
        for name, (us, rate, split) in links.items()
    ]

    def crossed(a: int, b: int) -> list[tuple[str, str]]:
        over = [("m", "UP")] if (a < left) != (b < left) else []
        return [(f"u{a}", "UP"), *over, (f"u{b}", "DOWN")]

    count = range(len(uplinks))
    for a in count:
        lines.insert(0, f'<host id="h{a}" speed="1Gf"/>')
    for a, b in ((a, b) for a in count for b in count if a < b):
        ctn = "".join(
            f'<link_ctn id="{name}"' + (f' direction="{way}"/>' if links[name][2] else "/>")
            for name, way in crossed(a, b)
        )
        lines.append(f'<route src="h{a}" dst="h{b}">{ctn}</route>')
    text = f'<platform version="4.1"><zone id="z" routing="Full">{"".join(lines)}</zone></platform>'
    ranks = {name: rank for rank, name in enumerate(read(text).hosts)}
    network = network_of(text)
    for a in count:
        for b in count:
            if a != b:
                route = network.route(ranks[f"h{a}"], ranks[f"h{b}"])
                names = [name for name, _ in crossed(a, b)]
                assert route.latency_s == pytest.approx(
                    sum(links[name][0] for name in names) * 1e-6, rel=1e-4
                )
                assert rate_of(network, route) == pytest.approx(
                    min(links[name][1] for name in names) * 1e3, rel=1e-4
                )
