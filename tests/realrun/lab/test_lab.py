"""The lab on this machine. Times are compared with the nominal ones with room for a busy machine."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from paceline.realrun.lab import Lab
from paceline.realrun.lab.lab import python_environment
from paceline.realrun.lab.self_test import LabCheck, check, render
from paceline.sim.errors import InputError, RunError
from paceline.sim.network.network import Link, Network
from paceline.sim.network.network_settings import TcpSettings

pytestmark = [pytest.mark.lab, pytest.mark.timeout(180)]

MBIT = 125_000.0
PROGRAM = sys.executable
GRACE_S = 60.0


def star(hosts: int, bandwidth: float, latency_s: float) -> Network:
    links = tuple(Link(f"{way} {h}", bandwidth) for h in range(hosts) for way in ("up", "down"))
    up, down = {h: 2 * h for h in range(hosts)}, {h: 2 * h + 1 for h in range(hosts)}
    return Network(("star",), (0,) * hosts, links, ((latency_s,),), ((math.inf,),), up, down)


def descendants() -> set[int]:
    """Processes whose command line is the lab's."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if b"paceline.realrun.lab.switch" in command or b"lab-test-sleeper" in command:
                found.add(int(entry.name))
    return found


def gone(processes: set[int]) -> bool:
    until = time.monotonic() + GRACE_S
    while time.monotonic() < until:
        if not processes & descendants():
            return True
        time.sleep(0.05)
    return False


SLEEPER = [PROGRAM, "-c", "import time; time.sleep(1000)", "lab-test-sleeper"]

OWNER = """
import signal, sys, time
from paceline.realrun.lab import Lab
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
sys.path.insert(0, {here!r})
from test_lab import SLEEPER, star
with Lab(star(2, 1e6, 0.01)) as lab:
    children = [lab.popen(0, SLEEPER), lab.popen(1, SLEEPER)]
    time.sleep(0.5)
    print(lab._switch.pid, *(child.pid for child in children), flush=True)
    sys.stdin.readline()
    {then}
"""


def start_owner(then: str) -> tuple[subprocess.Popen[bytes], set[int]]:
    code = OWNER.format(here=str(Path(__file__).parent), then=then)
    owner = subprocess.Popen(
        [PROGRAM, "-c", code],
        env=python_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert owner.stdin is not None
    assert owner.stdout is not None
    started = {int(word) for word in owner.stdout.readline().split()}
    owner.stdout.close()
    assert len(started) == 3
    assert started <= descendants()
    owner.stdin.write(b"go\n")
    owner.stdin.close()
    return owner, started


class TestNothingIsLeft:
    @pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
    def test_after_a_signal_to_the_owner(self, end: signal.Signals) -> None:
        # In short sleeps: Python takes a signal that comes just before a sleep's system call after it.
        owner, started = start_owner("while True: time.sleep(0.05)")
        owner.send_signal(end)
        owner.wait(GRACE_S)
        assert gone(started)

    @pytest.mark.parametrize("then", ["pass", "raise SystemExit(3)", "1 / 0"])
    def test_after_success_and_failure(self, then: str) -> None:
        owner, started = start_owner(then)
        owner.wait(GRACE_S)
        assert gone(started)

    def test_no_descriptor_stays_open(self) -> None:
        before = len(list(Path("/proc/self/fd").iterdir()))
        with Lab(star(2, 1e6, 0.0)) as lab:
            lab.popen(0, ["true"]).wait()
        assert len(list(Path("/proc/self/fd").iterdir())) == before


class TestHosts:
    def test_tuned_settings_are_read_back(self) -> None:
        with Lab(star(2, 1e6, 0.0)) as lab:
            assert len(lab.settings) == 2
            for settings in lab.settings:
                assert settings["net.ipv4.tcp_congestion_control"] == "reno"
                assert settings["net.ipv4.tcp_slow_start_after_idle"] == "0"
                assert settings["initcwnd"] == settings["initrwnd"] == "12000"
                assert settings["mtu"] == "1500"
            inside = lab.popen(1, ["cat", "/proc/sys/net/ipv4/tcp_rmem"], stdout=subprocess.PIPE)
            output, _ = inside.communicate()
            assert output.split() == lab.settings[1]["net.ipv4.tcp_rmem"].encode().split()

    def test_stock_hosts_are_left_alone(self) -> None:
        with Lab(star(1, 1e6, 0.0), tcp=TcpSettings(congestion="reno")) as lab:
            (settings,) = lab.settings
            assert settings["initcwnd"] == settings["initrwnd"] == settings["rto_min_ms"] == "default"

    def test_stock_hosts_have_what_a_scenario_says(self) -> None:
        given = {"congestion": "reno", "initial_window": 4, "slow_start_after_idle": False}
        tcp = TcpSettings.model_validate({**given, "send_buffer": "1 MiB"})
        with Lab(star(2, 1e6, 0.0), tcp=tcp) as lab:
            for settings in lab.settings:
                assert settings["net.ipv4.tcp_congestion_control"] == "reno"
                assert settings["net.ipv4.tcp_slow_start_after_idle"] == "0"
                assert settings["net.ipv4.tcp_wmem"] == "4096 16384 1048576"
                assert settings["net.ipv4.tcp_rmem"] == "4096 131072 6291456"
                assert settings["initcwnd"] == "4"

    def test_what_no_lab_has_is_refused(self) -> None:
        for tcp in (TcpSettings(loss=0.01), TcpSettings(connections=2)):
            with pytest.raises(InputError, match=r"leave tcp\.(loss|connections) out"):
                Lab(star(2, 1e6, 0.0), tcp=tcp)

    def test_loopback_is_up_and_the_outside_is_not_there(self) -> None:
        code = (
            "import socket as s; a = s.create_server(('127.0.0.1', 0)); s.create_connection(a.getsockname());"
            "print([name for _, name in s.if_nameindex()])"
        )
        with Lab(star(1, 1e6, 0.0)) as lab:
            output, _ = lab.popen(0, [PROGRAM, "-c", code], stdout=subprocess.PIPE).communicate()
            assert sorted(eval_list(output)) == ["lo", lab.interface]

    def test_the_environment_is_the_one_given(self) -> None:
        with Lab(star(1, 1e6, 0.0)) as lab:
            child = lab.popen(0, ["/usr/bin/env"], env={"RANK": "3"}, stdout=subprocess.PIPE)
            assert child.communicate()[0] == b"RANK=3\n"
            assert child.returncode == 0

    def test_a_program_that_is_not_there_says_so(self) -> None:
        with Lab(star(1, 1e6, 0.0)) as lab:
            child = lab.popen(0, ["no-such-program"], stderr=subprocess.PIPE)
            assert b"cannot start no-such-program" in child.communicate()[1]
            assert child.returncode == 1


def eval_list(output: bytes) -> list[str]:
    names: list[str] = json.loads(output.decode().replace("'", '"'))
    return names


MEASURE = """
import socket, sys, time
role, address, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
if role == "receive":
    with socket.create_server((address, 7000)) as server:
        print("ready", flush=True)
        connection = server.accept()[0]
        connection.recv(1), connection.sendall(b"x")
        left = size
        while left:
            left -= len(connection.recv(min(left, 1 << 18)))
        print(time.monotonic(), flush=True)
else:
    connection = socket.create_connection((address, 7000))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(b"x"), connection.recv(1)
    data = bytes(size)
    print(time.monotonic(), flush=True)
    connection.sendall(data)
"""


def transfer(lab: Lab, size_bytes: int) -> float:
    """Seconds from sending to receiving so many bytes from host 0 to host 1, on an open connection."""
    arguments = [lab.address(1), str(size_bytes)]
    receiver = lab.popen(1, [PROGRAM, "-c", MEASURE, "receive", *arguments], stdout=subprocess.PIPE)
    assert receiver.stdout is not None
    assert receiver.stdout.readline() == b"ready\n"
    sender = lab.popen(0, [PROGRAM, "-c", MEASURE, "send", *arguments], stdout=subprocess.PIPE)
    start, end = (float(process.communicate()[0]) for process in (sender, receiver))
    return end - start


def queueing(lab: Lab) -> str:
    """What host 0 has for its packets."""
    shown = lab.popen(0, ["tc", "qdisc", "show", "dev", lab.interface], stdout=subprocess.PIPE)
    return shown.communicate()[0].decode()


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab(star(2, 100 * MBIT, 0.02)) as lab:
        yield lab


class TestTime:
    @pytest.mark.parametrize(
        ("mbit", "latency_s", "size_bytes"),
        [(100, 0.02, 64), (100, 0.02, 2_500_000), (400, 0.05, 5_000_000), (1000, 0.002, 5_000_000)],
    )
    def test_size_over_bandwidth_plus_latency(
        self, lab: Lab, mbit: int, latency_s: float, size_bytes: int
    ) -> None:
        lab.reconfigure(star(2, mbit * MBIT, latency_s))
        nominal = size_bytes / (mbit * MBIT) + latency_s
        measured = min(transfer(lab, size_bytes) for _ in range(3))
        assert nominal <= measured + 1e-4
        assert measured <= nominal * 1.03 + 0.004
        assert lab.statistics().drops == 0

    def test_a_token_bucket_is_the_kernels_and_goes_again(self, lab: Lab) -> None:
        lab.reconfigure(star(2, 20 * MBIT, 0.001), queue="token_bucket")
        assert "tbf" in queueing(lab)
        # Headers count: 1,448 of 1,500 bytes are payload; the first 32 KiB pass at once.
        nominal = (2_500_000 * 1500 / 1448 - 32_768) / (20 * MBIT)
        assert nominal <= transfer(lab, 2_500_000) <= nominal * 1.05 + 0.01
        lab.reconfigure(star(2, 20 * MBIT, 0.001))
        assert "tbf" not in queueing(lab)

    def test_reconfigure_to_fewer_hosts_cuts_the_others_off(self, lab: Lab) -> None:
        lab.reconfigure(star(1, 100 * MBIT, 0.0))
        code = f"import socket; socket.socket(2, 2).sendto(b'x', ('{lab.address(1)}', 9))"
        lab.popen(0, [PROGRAM, "-c", code]).wait()
        until = time.monotonic() + GRACE_S
        while lab.statistics().packets == 0 and time.monotonic() < until:
            time.sleep(0.01)
        assert lab.statistics().unroutable == 1

    def test_reconfigure_to_more_hosts_is_refused(self, lab: Lab) -> None:
        with pytest.raises(InputError, match="a network of 3 does not fit"):
            lab.reconfigure(star(3, 1e6, 0.0))

    def test_two_labs_do_not_meet(self, lab: Lab) -> None:
        lab.reconfigure(star(2, 100 * MBIT, 0.001))
        with Lab(star(2, 100 * MBIT, 0.05)) as other:
            assert lab.address(1) == other.address(1)
            assert transfer(other, 64) > 0.05
            assert min(transfer(lab, 64) for _ in range(3)) < 0.04
            assert other.statistics().packets > 0


class TestFailure:
    def test_a_lost_switch_is_an_error(self) -> None:
        with Lab(star(1, 1e6, 0.0)) as lab:
            assert lab._switch is not None
            os.kill(lab._switch.pid, signal.SIGKILL)
            lab._switch.wait()
            with pytest.raises(RunError, match="switch has ended"):
                lab.statistics()

    def test_before_entry_there_is_no_lab(self) -> None:
        with pytest.raises(RunError, match="not running"):
            Lab(star(1, 1e6, 0.0)).statistics()


@pytest.fixture(scope="module")
def found() -> LabCheck:
    return check(star(2, 100 * MBIT, 0.02))


class TestCheck:
    def test_a_given_network(self, found: LabCheck) -> None:
        (route,) = found.routes
        assert (route.source, route.destination) == (0, 1)
        assert route.measured_latency_s == pytest.approx(0.02, rel=0.1)
        assert abs(route.bandwidth_error) < 0.05
        assert found.fastest_bytes_per_s in (0.0, 100 * MBIT)

    def test_the_table_shows_it(self, found: LabCheck) -> None:
        text = StringIO()
        Console(file=text, width=120).print(render(found))
        assert "100.0 Mbit/s" in text.getvalue()
        assert "20.00 ms" in text.getvalue()
