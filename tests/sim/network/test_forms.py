"""Matrices of latencies between sites."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.sim.errors import InputError
from paceline.sim.scenario.schema import dump, load, parse
from tests.sim.scenario.test_schema import SITES


def test_a_latency_matrix_is_the_pairs_that_it_holds(tmp_path: Path) -> None:
    (tmp_path / "wan.csv").write_text("[ms],us,eu,asia\nus,-,40,90\neu,41,,95\nasia,90,95.5,0\n")
    text = SITES.replace("{us-eu: 40 ms, default: 90 ms}", "{}")
    pairs = "{us-eu: 40 ms, eu-us: 41 ms, us-asia: 90 ms, eu-asia: 95 ms, asia-eu: 95.5 ms}"
    (tmp_path / "s.yaml").write_text(text.replace("{latency: {}}", "{latency: wan.csv}"))
    scenario = load(tmp_path / "s.yaml")
    expected = parse(text.replace("{latency: {}}", f"{{latency: {pairs}}}"))
    assert scenario.cluster.network.of_pairs("latency") == expected.cluster.network.of_pairs("latency")
    assert parse(dump(scenario)) == scenario


def test_a_wrong_latency_matrix_is_named(tmp_path: Path) -> None:
    for text, message in {
        "[ms],us,mars\nus,0,40\nmars,41,0\n": "wan.csv: us-mars: no two sites have this name; did you mean",
        "[ms],us,eu\nus,0,x\n": "wan.csv:2: eu: 'x ms' is not a number with a unit",
        "[ms],us,eu\nus,0,40\n": "wan.csv: says nothing of 'us-asia', 'eu-asia'",
    }.items():
        (tmp_path / "wan.csv").write_text(text)
        (tmp_path / "s.yaml").write_text(SITES.replace("{us-eu: 40 ms, default: 90 ms}", "wan.csv"))
        with pytest.raises(InputError) as caught:
            load(tmp_path / "s.yaml")
        assert f"{tmp_path}/s.yaml:11: cluster.network.between.latency" in str(caught.value)
        assert message in str(caught.value)
