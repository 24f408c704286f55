"""Output of ping."""

from __future__ import annotations

import pytest

from paceline.sim.errors import InputError
from paceline.sim.foreign import foreign_kind
from paceline.sim.importers.measured.ping import read
from paceline.sim.importers.readings import ForeignFile

LINUX = """\
PING 10.0.0.2 (10.0.0.2) 56(84) bytes of data.
64 bytes from 10.0.0.2: icmp_seq=1 ttl=64 time=40.3 ms
64 bytes from 10.0.0.2: icmp_seq=2 ttl=64 time=40.9 ms

--- 10.0.0.2 ping statistics ---
2 packets transmitted, 2 received, 0% packet loss, time 1001ms
rtt min/avg/max/mdev = 40.312/40.606/40.901/0.294 ms
"""


def test_half_of_the_median_round_trip() -> None:
    assert foreign_kind(LINUX) == "ping"
    (path,) = read(ForeignFile("ping.txt", LINUX)).paths
    assert path.latency_s == pytest.approx(0.0203)


def test_no_packet_came_back() -> None:
    with pytest.raises(InputError, match=r"^ping\.txt: has no round trip"):
        read(ForeignFile("ping.txt", LINUX.splitlines()[0]))
