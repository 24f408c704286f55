"""Output of iperf3 -J."""

from __future__ import annotations

import json
from typing import Any

import pytest

from paceline.extras.importers.measured.iperf3 import read
from paceline.extras.importers.readings import ForeignFile
from paceline.sim.errors import InputError
from paceline.sim.foreign import foreign_kind


def made(
    rates_mbit: list[float], back_mbit: list[float] | None = None, reverse: int = 0, **changes: Any
) -> str:
    """A document as of iperf3 3.12, without its intervals."""
    each = [(rate, not reverse) for rate in rates_mbit] + [(rate, False) for rate in back_mbit or ()]
    streams = [
        {
            "sender": {"socket": 5, "bits_per_second": 1.1e6 * rate, "mean_rtt": 9000, "sender": there},
            "receiver": {"socket": 5, "bits_per_second": 1e6 * rate, "sender": there},
        }
        for rate, there in each
    ]
    setting = {"protocol": "TCP", "num_streams": len(rates_mbit), "omit": 0, "reverse": reverse}
    end = {
        "streams": streams,
        "sum_received": {"bits_per_second": 1e6 * sum(rates_mbit), "sender": not reverse},
    }
    start = {"connected": [], "version": "iperf 3.12", "test_start": setting}
    return json.dumps({"start": start, "intervals": [], "end": end} | changes, indent="\t") + "\n"


def paths_of(text: str, ends: tuple[str, str] = ("us", "eu")) -> dict[tuple[str, str], tuple[Any, Any]]:
    """(Bandwidth, per flow) in Mbit/s by the ends of each path."""
    assert foreign_kind(text) == "iperf3"
    paths = read(ForeignFile("i.json", text, ends)).paths
    mbit = [
        tuple(v and round(v / 125e3, 6) for v in (p.bandwidth_bytes_per_s, p.per_flow_bytes_per_s))
        for p in paths
    ]
    return {(p.source, p.target): (a, b) for p, (a, b) in zip(paths, mbit, strict=True)}


OLD = """{"start":{"version":"iperf 3.1.3","test_start":{"protocol":"TCP","num_streams":2,"reverse":0}},
 "end":{"sum_sent":{"bits_per_second":9e8},"sum_received":{"bits_per_second":8e8}}}"""


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        (made([900.0]), {("us", "eu"): (None, 900)}),
        (made([900.0], reverse=1), {("eu", "us"): (None, 900)}),
        (made([300.0, 500.0]), {("us", "eu"): (800, 400)}),
        (made([900.0], [300.0]), {("us", "eu"): (None, 900), ("eu", "us"): (None, 300)}),
        (made([1.0]) + made([3.0]) + "\n" + made([9.0]), {("us", "eu"): (None, 3)}),
        (OLD, {("us", "eu"): (800, 400)}),
    ],
)
def test_received_rates(text: str, paths: dict[tuple[str, str], tuple[Any, Any]]) -> None:
    assert paths_of(text) == paths


def test_without_names_both_directions_must_be_alike_and_the_slower_counts() -> None:
    assert paths_of(made([900.0], [880.0]), ("", "")) == {("", ""): (None, 880)}
    with pytest.raises(InputError, match=r"^i\.json: carries 900 Mbit/s there, 300 Mbit/s back: name"):
        paths_of(made([900.0], [300.0]), ("", ""))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (made([1.0]).replace('"TCP"', '"UDP"'), r"^i\.json: is a test of UDP, not of TCP"),
        (made([1.0], error="unable to connect"), r"^i\.json: is of a test that failed: unable to connect"),
        (made([1.0], end={}), r"says of no bytes that they were received"),
        (made([0.0]), r"says of no bytes that they were received"),
        (made([1.0]) + made([1.0, 1.0]), r"all of as many streams"),
        (made([1.0]).replace('"num_streams": 1', '"num_streams": 8'), r"has 1 of 8 streams; give all"),
        (
            made([1.0]).replace('"num_streams": 1', '"num_streams": "1"'),
            r"no whole test of iperf3: .*num_s",
        ),
        (made([1.0]).replace("1000000.0", "true", 1), r"says of no bytes that they were received"),
        (made([1.0]).replace('"reverse": 0', '"reverse": "no"'), r"num_streams, reverse"),
        (made([1.0]).replace('"sender": true', '"sender": "no"'), r"were received, or by whom"),
        (made([1.0])[:-3], r"^i\.json:\d+: is no whole JSON of 'iperf3 -J'"),
        (made([1.0]) + "iperf Done.", r"^i\.json:\d+: is no whole JSON of 'iperf3 -J'"),
        (
            "Connecting to host h, port 5201\n[  5] 0-1 sec 1 MBytes",
            r"^i\.json:1: is no whole JSON of 'iperf3 -J'",
        ),
        ('{"event":"start","data":{"test_start": {}}}', r"is no whole test of iperf3"),
    ],
)
def test_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        paths_of(text)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"target_bitrate": 1e8}, "(-b 100 Mbit/s)"),
        ({"fqrate": 1e8}, "(--fq-rate 100 Mbit/s)"),
        ({"sock_bufsize": 262144}, "(-w 262 kB)"),
        ({"target_bitrate": 1e9, "fqrate": 0, "sock_bufsize": 0}, None),  # it did not bind
    ],
)
def test_what_limited_the_test_itself_is_named(setting: dict[str, float], said: str | None) -> None:
    whole = json.loads(made([99.0]))
    for part in (whole["start"], whole["start"]["test_start"]):
        (document := json.loads(made([99.0])))["start"] = whole["start"] | setting
        if part is whole["start"]["test_start"]:
            document["start"] = whole["start"] | {"test_start": part | setting}
        notes = read(ForeignFile("i.json", json.dumps(document))).notes
        assert [n for n in notes if "limited by the test itself" in n] == (
            [f"limited by the test itself {said}: the path may carry more"] if said else []
        )
