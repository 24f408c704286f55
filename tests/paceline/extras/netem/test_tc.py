"""The commands that make one site play a wide area, and whether tc understands them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from paceline.commands.app import app
from paceline.extras.netem import tc
from paceline.sim.errors import InputError
from paceline.sim.network.network import Network
from tests.sim.scenario.test_schema import FLAT
from tests.support.factory import network_of

SITES = {
    "sites": {"us": 2, "eu": 2},
    "within": {"latency": "1 ms", "bandwidth": "1 Gbit/s"},
    "between": {"latency": "40 ms", "bandwidth": "100 Mbit/s", "per_flow": "30 Mbit/s"},
    "uplink": {"us": "200 Mbit/s"},
}


def addresses(network: Network) -> list[str]:
    return [f"10.0.0.{host + 1}" for host in range(network.num_hosts)]


def scripts(network: Network) -> list[tc.Script]:
    return tc.scripts(network, addresses(network), "eth0")


def test_two_hosts_word_for_word() -> None:
    first, second = scripts(network_of(2, latency="5 ms", bandwidth="100 Mbit/s"))
    rate = "htb rate 100000000bit ceil 100000000bit quantum 15000"
    assert first.play == (
        "tc qdisc add dev eth0 root handle 1: htb default 0",
        f"tc class add dev eth0 parent 1: classid 1:11 {rate}",
        f"tc class add dev eth0 parent 1:11 classid 1:1001 {rate}",
        "tc qdisc add dev eth0 parent 1:1001 handle 1001: netem delay 5000us limit 1063",
        "tc filter add dev eth0 parent 1: protocol ip prio 1 u32 match ip dst 10.0.0.2/32 flowid 1:1001",
    )
    assert first.undo == (
        "tc qdisc del dev eth0 root 2>/dev/null || true",
        "tc qdisc del dev eth0 ingress 2>/dev/null || true",
        "ip link del ifb-paceline 2>/dev/null || true",
    )
    assert first.inexact == second.inexact == ()


CLASS = re.compile(
    r"tc class add dev (\S+) parent 1:(\S*) classid 1:(\S+) htb rate (\d+)bit ceil (\d+)bit .*"
)


def classes(script: tc.Script, device: str = "eth0") -> dict[str, tuple[str, int, int]]:
    """Class -> parent, rate, ceiling."""
    found = [match.groups() for line in script.play if (match := CLASS.fullmatch(line))]
    return {minor: (parent, int(rate), int(ceil)) for on, parent, minor, rate, ceil in found if on == device}


def test_the_links_of_a_route_are_classes_inside_each_other() -> None:
    three = {**SITES, "sites": {"us": 2, "eu": 2, "asia": 1}}
    first = scripts(network_of(5, **three))[0]
    found = classes(first)
    megabit = 10**6
    assert found["11"] == ("", 1000 * megabit, 1000 * megabit)  # the host's access link
    # three of four peers are in other sites: the uplink, and in it the pipe to two of them
    assert found["12"] == ("11", 200 * megabit, 200 * megabit)
    assert found["13"] == ("12", 100 * megabit, 100 * megabit)
    assert "14" not in found  # the pipe to asia leads to one host, which shapes it on arrival
    assert found["1001"] == ("11", 250 * megabit, 1000 * megabit)
    assert found["1002"] == found["1003"] == ("13", 30 * megabit, 30 * megabit)
    assert found["1004"] == ("12", 30 * megabit, 30 * megabit)
    delays = [line.split("delay ")[1].split()[0] for line in first.play if "netem" in line]
    assert delays == ["1000us", "40000us", "40000us", "40000us"]
    # what comes in is shaped where the link has many senders and one receiver
    assert classes(first, tc.IFB)["11"] == ("", 1000 * megabit, 1000 * megabit)
    assert "ip link add ifb-paceline type ifb" in first.play


def test_links_that_hosts_share_are_named() -> None:
    first, _, third, _ = scripts(network_of(4, **SITES))
    assert first.inexact == ("us->eu", "us out")
    assert third.inexact == ("eu->us", "us in")
    assert scripts(network_of(3, latency="1 ms", bandwidth="1 Gbit/s"))[0].inexact == ()
    alone = {**SITES, "sites": {"us": 1, "eu": 1, "asia": 1}, "uplink": {}}
    assert [script.inexact for script in scripts(network_of(3, **alone))] == [()] * 3


RATES = st.sampled_from(["10 Mbit/s", "100 Mbit/s", "1 Gbit/s"])


@st.composite
def networks(draw: st.DrawFn) -> Network:
    sizes = draw(st.lists(st.integers(1, 3), min_size=2, max_size=4))
    between = {"latency": draw(st.sampled_from(["20 ms", "0 s"])), "bandwidth": draw(RATES)}
    optional: Any = draw(st.fixed_dictionaries({}, optional={"per_flow": RATES}))
    return network_of(
        sum(sizes),
        sites={f"s{k}": size for k, size in enumerate(sizes)},
        within={"latency": "1 ms", "bandwidth": draw(RATES)},
        between={**between, **optional},
        uplink=draw(st.dictionaries(st.just("s0"), RATES)),
    )


@settings(max_examples=40)
@given(networks())
def test_nobody_is_promised_more_than_there_is(network: Network) -> None:
    every = scripts(network)
    for script in every:
        for device in ("eth0", tc.IFB):
            found = classes(script, device)
            for minor, (_, _, ceiling) in found.items():
                inside = [rate for parent, rate, _ in found.values() if parent == minor]
                assert sum(inside) <= ceiling + len(inside)  # rates are rounded to a bit
            for parent, rate, ceiling in found.values():
                assert rate <= ceiling <= (found[parent][2] if parent else ceiling)
        for peer in range(network.num_hosts):
            if peer != script.host:
                route = network.route(script.host, peer)
                (flow,) = [
                    line.split("flowid 1:")[1] for line in script.play if f"dst 10.0.0.{peer + 1}/32" in line
                ]
                slowest = min(network.links[link].bandwidth_bytes_per_s for link in route.links)
                limits = [classes(script)[flow][2]]
                if f"src 10.0.0.{script.host + 1}/32" in "\n".join(every[peer].play):
                    limits.append(classes(every[peer], tc.IFB)[f"{0x1000 + script.host:x}"][2])
                assert min(limits) == round(8 * min(slowest, route.per_flow_bytes_per_s))


def test_what_tc_cannot_play_is_refused() -> None:
    with pytest.raises(InputError, match="reorders"):
        scripts(network_of(2, latency="1 ms", jitter={"gamma": {"cv": 1.0}}))
    markov = {"slow": "1 s", "fast": "1 s", "factor": 0.5}
    variation = ({"links": "*", "markov": markov},)
    with pytest.raises(InputError, match="sets a rate once"):
        scripts(network_of(2, latency="1 ms", bandwidth="1 Gbit/s", variation=variation))
    links = tuple(
        {"source": f"n{k}", "target": f"n{k + 1}", "latency": "1 ms", "bandwidth": f"{20 - k} Mbit/s"}
        for k in range(9)
    )
    chain = {"hosts": tuple(f"n{k}" for k in range(10)), "links": links}
    with pytest.raises(InputError, match="more links of different bandwidths than HTB has levels"):
        scripts(network_of(10, graph=chain))


def test_addresses_are_checked() -> None:
    assert tc.validate_addresses("10.0.0.1, 10.0.0.2", 2) == ["10.0.0.1", "10.0.0.2"]
    for text, message in {
        "10.0.0.1,node2": "'node2' is no IPv4 address",
        "10.0.0.1": "needs 2 different addresses",
        "10.0.0.1,10.0.0.1": "needs 2 different addresses",
        "10.0.0.1;reboot,10.0.0.2": "is no IPv4 address",
    }.items():
        with pytest.raises(InputError, match=message):
            tc.validate_addresses(text, 2)


def test_the_text_says_what_is_not_exact_and_how_to_undo_it() -> None:
    network = network_of(4, **SITES)
    text = tc.render(scripts(network), addresses(network))
    assert "#   us->eu\n" in text
    assert text.count("# host ") == 4
    assert text.endswith("#" + " ip link del ifb-paceline 2>/dev/null || true\n")
    undo = tc.render(scripts(network)[:1], addresses(network), undo=True)
    assert " add " not in undo
    assert "tc qdisc del dev eth0 root" in undo


def in_a_namespace(commands: str) -> subprocess.CompletedProcess[str]:
    argv = ["unshare", "--user", "--map-root-user", "--net", "sh", "-c", commands]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60)


def test_tc_understands_every_command() -> None:
    if not all(shutil.which(tool) for tool in ("unshare", "tc", "ip")):
        pytest.skip("needs unshare, ip and tc")
    ready = "ip link add eth0 type veth peer name far && ip link set eth0 up && ip link set far up"
    if in_a_namespace(f"{ready} && tc qdisc add dev eth0 root handle 1: htb default 0").returncode:
        pytest.skip("this kernel gives no network namespace with veth and htb")
    no_netem = in_a_namespace(f"{ready}; tc qdisc add dev eth0 root netem delay 1ms").stderr.strip()
    network = network_of(4, **SITES)
    script = scripts(network)[0]
    lines = [f"({line}) 2>&1 | sed 's/^/complaint: {k}: /'" for k, line in enumerate(script.play)]
    lines += ["echo classes: $(tc class show dev eth0 | grep -c htb)"]
    lines += ["echo filters: $(tc filter show dev eth0 | grep -c flowid)", *script.undo]
    lines += ["echo left: $(tc class show dev eth0)$(ip link show ifb-paceline 2>/dev/null)"]
    said = in_a_namespace("\n".join([ready, *lines])).stdout.splitlines()
    for line in said:
        if line.startswith("complaint: "):
            # where the kernel lacks netem, tc has understood its options all the same
            _, number, text = line.split(": ", 2)
            assert "netem" in script.play[int(number)], line
            assert text in no_netem
    assert f"classes: {len(classes(script))}" in said
    assert "filters: 3" in said
    assert "left:" in said


def test_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(FLAT)
    hosts = "10.1.0.1,10.1.0.2,10.1.0.3,10.1.0.4"
    shown = CliRunner().invoke(app, ["netem", str(path), "--hosts", hosts, "--interface", "ens5"]).stdout
    assert "tc filter add dev ens5 parent 1: protocol ip prio 1 u32 match ip dst 10.1.0.4/32" in shown
    shown = CliRunner().invoke(app, ["netem", str(path), "--host", "2"]).stdout
    assert "# host 2: $HOST2" in shown
    assert "# host 1" not in shown
    for wrong, message in {
        ("--host", "4"): "ranks go from 0 to 3",
        ("--interface", "eth0; reboot"): "is no name of a network device",
    }.items():
        caught = CliRunner().invoke(app, ["netem", str(path), *wrong]).exception
        assert isinstance(caught, InputError)
        assert message in str(caught)
