"""Ranges and distributions: one spelling, values inside, and a message for what is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.sim.config import yaml_file
from paceline.sim.config.units import parse_number
from paceline.sim.errors import InputError
from paceline.sim.scenario.ranges import Range, ranges_of, read_range
from paceline.sim.scenario.schema import load, resolve_scenario
from tests.paceline.test_command_line import TINY

ends = st.tuples(st.integers(1, 9_999), st.integers(1, 9_999)).filter(lambda pair: pair[0] < pair[1])
shares = st.floats(0, 1, exclude_max=True)


def number_at(drawn: Range | None, share: float) -> float:
    assert drawn is not None
    known = parse_number(drawn.at(share))
    assert known is not None
    return known[0]


@given(ends=ends, unit=st.sampled_from(["ms", "Mbit/s", "MB", "Gflop/s"]), two=st.tuples(shares, shares))
def test_values_lie_between_the_ends_and_rise_with_their_share(
    ends: tuple[int, int], unit: str, two: tuple[float, float]
) -> None:
    drawn = read_range(f"{ends[0]} {unit} to {ends[1]} {unit}")
    low, high = (number_at(read_range(f"{end} {unit} to {10 * end} {unit}"), 0.0) for end in ends)
    first, second = (number_at(drawn, share) for share in sorted(two))
    assert low * 0.995 <= first <= second <= high * 1.005


@given(ends=ends, share=shares)
def test_two_spellings_and_a_unit_given_once_are_one_range(ends: tuple[int, int], share: float) -> None:
    low, high = ends
    spelled = (f"{low} ms to {high} ms", f"{low} ms..{high} ms", f"{low} to {high} ms", f"{low}..{high} ms")
    assert len({number_at(read_range(text), share) for text in spelled}) == 1


@given(ends=ends, share=shares)
def test_whole_numbers_stay_whole(ends: tuple[int, int], share: float) -> None:
    drawn = read_range(f"{ends[0]} to {ends[1]}")
    assert drawn is not None
    assert isinstance(drawn.at(share), int)
    assert ends[0] <= drawn.at(share) <= ends[1]
    assert (drawn.at(0.0), drawn.at(1.0)) == ends


def test_the_median_is_that_of_the_logarithm_where_a_range_spans_a_decade() -> None:
    assert number_at(read_range("1 ms to 100 ms"), 0.5) == pytest.approx(10e-3)
    assert number_at(read_range("10 ms to 90 ms"), 0.5) == pytest.approx(50e-3)
    assert number_at(read_range("0 ms to 100 ms"), 0.5) == pytest.approx(50e-3)


def test_distributions_have_their_spread_and_end_at_three_deviations() -> None:
    normal, lognormal = read_range("normal 10 ms +- 2 ms"), read_range("lognormal 10 ms by factor 2")
    one = 0.841345  # of all values are less than one deviation above the mean
    for share, two in (
        (one, (12e-3, 20e-3)),
        (0.5, (10e-3, 10e-3)),
        (1 - one, (8e-3, 5e-3)),
        (1.0, (16e-3, 80e-3)),
    ):
        assert [number_at(each, share) for each in (normal, lognormal)] == pytest.approx(two, rel=1e-3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2 ms to 1 ms", "the lower one first"),
        ("5 ms to 5 ms", "the lower one first"),
        ("1 ms to 2 MB", "two ends of one kind"),
        ("1 to 2 parsec", "two ends of one kind"),
        ("1 ms..2", "two ends of one kind"),
        ("10 ms +- 2 ms", "two ends of one kind"),
        ("normal 10 ms +- 4 ms", "a mean above three deviations"),
        ("lognormal 0 ms by factor 2", "a median above zero"),
        ("lognormal 1 ms by factor 1", "a factor above 1"),
        ("lognormal 1 ms by factor 1e300", "a factor above 1"),
        ("lognormal 1 ms by factor 2 ms", "a factor above 1"),
    ],
)
def test_a_wrong_range_has_one_message(text: str, message: str) -> None:
    with pytest.raises(InputError, match=f"is no range; write .*{message}"):
        read_range(text)


@pytest.mark.parametrize("value", ["../a to b", "a..b", "1 ms", 3, None, "first 10 steps", "1 to"])
def test_other_values_are_none(value: object) -> None:
    assert read_range(value) is None


RANGES = {
    "cluster.network.latency": "1 ms to 3 ms",
    "cluster.network.bandwidth": "lognormal 1 MB/s by factor 2",
    "cluster.workers": "4 to 8",
    "workload.optimizer.lr": "0.01 to 0.03",
}
MIDDLE = [
    "cluster.network.latency=2 ms", "cluster.network.bandwidth=1 MB/s", "cluster.workers=6",
    "workload.optimizer.lr=0.02",
]  # fmt: skip


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY)
    return path


def test_a_scenario_with_ranges_is_the_one_with_their_medians(tiny: Path) -> None:
    changes = [f"{key}={text}" for key, text in RANGES.items()]
    assert load(tiny, changes) == load(tiny, MIDDLE)
    assert {key: each.text for key, each in ranges_of(tiny, changes).items()} == RANGES
    assert ranges_of(tiny, [*changes, *MIDDLE]) == {}
    assert ranges_of(load(tiny, changes)) == {}


def test_a_mapping_has_ranges_too() -> None:
    content: dict[str, Any] = yaml_file.parse(TINY, "tiny").value
    changed = {**content, "seed": "3 to 5"}
    assert list(ranges_of(changed)) == ["seed"]
    assert resolve_scenario(changed).seed == 4


@given(st.sampled_from(["name: 1 to 2", "schemes: [{gossip: {label: 1 to 2}}]"]))
def test_names_are_no_ranges(line: str) -> None:
    assert ranges_of(yaml_file.parse(line, "names").value) == {}


def test_a_wrong_range_is_named_with_file_line_and_key(tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(f"{TINY}\nevents: 9 ms to 1 ms\n")
    line = path.read_text().splitlines().index("events: 9 ms to 1 ms") + 1
    with pytest.raises(InputError, match=rf"wrong\.yaml:{line}: events: '9 ms to 1 ms' is no range"):
        load(path)
