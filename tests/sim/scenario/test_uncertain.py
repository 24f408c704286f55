"""Ranges in a scenario stand at their middle, and are listed by their keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.sim.config import yaml_file
from paceline.sim.errors import InputError
from paceline.sim.scenario.schema import load, resolve_scenario
from paceline.sim.scenario.uncertain import ranges_of
from tests.paceline.test_command_line import TINY

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
