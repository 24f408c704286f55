"""``cluster: {file: ...}``: keys from a file, below those beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.sim.errors import InputError
from paceline.sim.scenario.schema import dump, load, parse

SCENARIO = """\
name: filed
workload: {timing_only: true, payload: 10 MB}
cluster:
  file: measured/cluster.yaml
  compute: {time: 50 ms}
  network: {overhead: 1 us}
schemes: [all_reduce]
stop: {max_iterations: 20}
"""
CLUSTER = """\
# Measured.
cluster:
  workers: 4
  compute: {time: 9 s}
  network:
    latency: 1 ms
    bandwidth: 1 Gbit/s
    overhead: 7 s
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    (tmp_path / "measured").mkdir()
    (tmp_path / "measured/cluster.yaml").write_text(CLUSTER)
    path = tmp_path / "scenario.yaml"
    path.write_text(SCENARIO)
    return path


def test_keys_beside_the_file_take_precedence_and_the_resolved_scenario_has_all(scenario: Path) -> None:
    loaded = load(scenario)
    network = loaded.cluster.network
    assert (loaded.cluster.workers, loaded.cluster.compute.time) == (4, 0.05)
    assert (network.latency, network.bandwidth, network.overhead) == (0.001, 125e6, 1e-6)
    assert loaded.cluster.file is None
    assert parse(dump(loaded)) == loaded


def test_set_changes_the_file_and_what_it_holds(scenario: Path) -> None:
    other = CLUSTER.replace("1 ms", "2 ms").replace("workers: 4", "workers: 8")
    (scenario.parent / "other.yaml").write_text(other)
    changed = load(scenario, ["cluster.network.latency=5 ms", "cluster.workers=6", "cluster.file=other.yaml"])
    assert (changed.cluster.workers, changed.cluster.network.latency) == (6, 0.005)
    assert load(scenario, ["cluster.file=other.yaml"]).cluster.workers == 8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            CLUSTER.replace("1 ms", "1 mss"),
            r"/measured/cluster\.yaml:6: cluster\.network\.latency: '1 mss' has an",
        ),
        (CLUSTER.replace("workers", "wrkers"), r"/measured/cluster\.yaml:3: cluster\.wrkers: unknown key"),
        (
            CLUSTER + "name: x\n",
            r"scenario\.yaml:4: cluster\.file: .*cluster\.yaml must have one key, cluster",
        ),
        (CLUSTER.replace("  workers: 4", "  file: x"), r"must have one key, cluster"),
        ("", r"must have one key, cluster"),
        ("cluster: [", r"scenario\.yaml:4: cluster\.file: .*cluster\.yaml:1: not valid YAML"),
        ("PING h (10.0.0.2)", r"cluster\.yaml: is output of ping; read it with 'paceline import "),
    ],
)
def test_mistakes_name_the_file_and_its_line(scenario: Path, text: str, message: str) -> None:
    (scenario.parent / "measured/cluster.yaml").write_text(text)
    with pytest.raises(InputError, match=message):
        load(scenario)


def test_no_such_file(scenario: Path) -> None:
    with pytest.raises(
        InputError, match=r"^--set cluster\.file=x\.yaml: cluster\.file: .*x\.yaml: there is no"
    ):
        load(scenario, ["cluster.file=x.yaml"])
