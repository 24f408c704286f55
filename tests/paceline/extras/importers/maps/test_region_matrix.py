"""Region matrices: nothing is guessed, directions are kept, half of a table is a whole one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.extras.importers.maps.region_matrix import read as read_table
from paceline.extras.importers.readings import Answers, ForeignFile
from paceline.sim.errors import InputError
from tests.paceline.extras.importers.maps.samples import CSV, HTML, MARKDOWN, network_of, read

AMBIGUOUS = {
    "what the latency is": (CSV.replace("RTT", "latency"), "--latency-is"),
    "one-way and round trip": (CSV.replace("RTT", "one-way from RTT"), "--latency-is"),
    "half of the round trips": (CSV.replace("RTT", "RTT/2"), "--latency-is"),
    "what the numbers are": (",us,eu\nus,,80\neu,80,\n", "--latency-unit"),
    "the unit": ("ping,us,eu\nus,,80\neu,80,\n", "--latency-unit ms"),
    "two units": ("ping ms or us,us,eu\nus,,80\neu,80,\n", "--latency-unit ms"),
    "the unit of a rate": ("bandwidth,us,eu\nus,,80\neu,80,\n", "--bandwidth-unit"),
    "which way rows are": ("Gbit/s,us,eu\nus,,80\neu,90,\n", "--rows send"),
    "which way one-way rows are": ("one-way ms,us,eu\nus,,80\neu,90,\n", "--rows send"),
    "rows both ways": ("Gbit/s rows send rows receive,us,eu\nus,,80\neu,90,\n", "--rows send"),
    "two numbers": ("ping,us,eu\nus,,80/1\neu,80/1,\n", "units beside them"),
    "a decimal comma": ("ping;us;eu\nus;;80,5 ms\neu;80,5 ms;\n", "with a point"),
    "thousands or decimals": ('ping,us,eu\nus,,"80,500 ms"\neu,,\n', "with a point"),
    "bits or bytes": (",us,eu\nus,,80 GBPS\neu,80 GBPS,\n", "unknown unit"),
    "a range": (CSV.replace("80,150", "10-20,150"), "'10-20' is not one number, or two"),
    "a zero": ("ping,us,eu\nus,,0 ms\neu,80 ms,\n", "above 0"),
    "a hole": (CSV.replace("210,\n", ",\n"), "but none in row asia, column eu"),
    "one number or two": ("RTT,us,eu\nus,,80 ms/1 Gbit/s\neu,80 ms,\n", "in some cells"),
    "latency or rate": (",us,eu\nus,,80 ms\neu,1 Gbit/s,\n", "other kinds"),
    "a latency twice": (",us,eu\nus,,80 ms/81 ms\neu,80 ms/81 ms,\n", "other kinds"),
    "a name twice": (CSV.replace("us,eu,asia", "us,eu,eu"), "two rows or columns 'eu'"),
    "too many cells": (CSV.replace("80,150", "80,150,1"), "file:2: has 5 cells"),
    "no matrix": ("a,b,c\nd,1,2\ne,3,4\na", "is no matrix"),
}


@pytest.mark.parametrize("what", AMBIGUOUS)
def test_it_asks(what: str) -> None:
    text, asks = AMBIGUOUS[what]
    with pytest.raises(InputError, match=r"^file(:\d+)?: ") as error:
        read_table(ForeignFile("file", text))
    assert asks in str(error.value)


def test_csv_of_round_trips() -> None:
    readings = read(CSV)
    assert [(path.source, path.target) for path in readings.paths] == [
        ("us", "eu"),
        ("us", "asia"),
        ("eu", "asia"),
    ]
    assert [path.latency_s for path in readings.paths] == pytest.approx([0.04, 0.075, 0.105])
    assert all(path.both_ways for path in readings.paths)
    assert readings.notes == ("latency: half of the round trips of the table, in ms",)


def test_markdown_with_two_numbers_a_cell() -> None:
    back, there = read(MARKDOWN).paths
    assert (there.source, there.target) == ("eu", "us")  # rows receive
    assert (there.latency_s, there.bandwidth_bytes_per_s) == pytest.approx((0.0335, 790e6 / 8))
    assert (back.latency_s, back.bandwidth_bytes_per_s) == pytest.approx((0.0345, 1150e6 / 8))
    assert not there.both_ways


def test_second_table_of_a_page() -> None:
    readings = read(HTML)
    (path,) = readings.paths
    assert path.latency_s == pytest.approx(0.06025)
    assert (path.source, path.target) == ("us-east-1", "S\u00e3o Paulo (sa)")


@pytest.mark.parametrize(
    ("unit", "bytes_per_s"),
    [
        ("Mbps", 125e3),
        ("gbps", 125e6),
        ("Gb/s", 125e6),
        ("Mbits/sec", 125e3),
        ("MB/s", 1e6),
        ("MiB/s", 2**20),
        ("MBytes/sec", 1e6),
    ],
)
def test_units_of_rates(unit: str, bytes_per_s: float) -> None:
    (path,) = read(f",us,eu\nus,,2 {unit}\neu,2{unit},\n").paths
    assert path.bandwidth_bytes_per_s == pytest.approx(2 * bytes_per_s)


def test_the_answers_count() -> None:
    text = ",us,eu\nus,,80/2\neu,80/4,\n"
    answers = Answers("one-way", "us", "GB/s", rows="receive")
    with pytest.raises(InputError, match="units beside"):
        read(text, answers)
    _, there = read("latency / bandwidth\n" + text, answers).paths
    assert there.source == "eu"
    assert (there.latency_s, there.bandwidth_bytes_per_s) == pytest.approx((80e-6, 2e9))


_MS = st.integers(1, 4000).map(lambda n: n / 8)


@given(cells=st.lists(_MS, min_size=6, max_size=6), lower=st.booleans())
def test_half_a_table_is_the_symmetric_one(cells: list[float], lower: bool) -> None:
    names = "abcd"
    values = dict(zip([(i, j) for j in range(4) for i in range(j)], cells, strict=True))

    def table(wanted: Callable[[int, int], bool]) -> str:
        rows = [
            ",".join(
                [names[i], *(str(values[min(i, j), max(i, j)]) if wanted(i, j) else "" for j in range(4))]
            )
            for i in range(4)
        ]
        return "\n".join([f"RTT ms,{','.join(names)}", *rows]) + "\n"

    whole = network_of(table(lambda i, j: i != j))
    half = network_of(table(lambda i, j: i > j if lower else i < j))
    for (i, j), ms in values.items():
        for network in (whole, half):
            for a, b in ((i, j), (j, i)):
                assert network.route(a, b).latency_s == pytest.approx(ms / 2000, rel=1e-5)


@given(cells=st.lists(st.integers(1, 10**5), min_size=6, max_size=6), sends=st.booleans())
def test_directions_are_kept(cells: list[int], sends: bool) -> None:
    pairs = [(i, j) for i in range(3) for j in range(3) if i != j]
    values = dict(zip(pairs, cells, strict=True))
    rows = [
        "|".join(["", "abc"[i], *(f"{values[i, j]} Mbit/s" if i != j else "-" for j in range(3)), ""])
        for i in range(3)
    ]
    paths = read(
        "\n".join(["||a|b|c|", "|---|---|---|---|", *rows]), Answers(rows="send" if sends else "receive")
    ).paths
    rates = {(p.source, p.target): p.bandwidth_bytes_per_s for p in paths}
    for path in paths:
        if path.both_ways:
            rates.setdefault((path.target, path.source), path.bandwidth_bytes_per_s)
    for (i, j), rate in values.items():
        ends = ("abc"[i], "abc"[j]) if sends else ("abc"[j], "abc"[i])
        assert rates[ends] == pytest.approx(rate * 1e6 / 8)
