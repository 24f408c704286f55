"""The estimate of memory: what it adds up, and how it is said that there is not enough."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from paceline.sim.errors import InputError, KeyedError
from paceline.sim.experiments import memory, prepare
from paceline.sim.scenario.overrides import name_lines
from paceline.sim.scenario.schema import load, parse

TEXT = """\
name: large
workload:
  task: quadratic
  dimension: 1000
  examples: 500
  batch_size: 10
  optimizer: {lr: 0.1, momentum: 0.9}
cluster:
  workers: 100
  compute: {time: 1 ms}
  network: {latency: 1 ms}
schemes: [all_reduce]
stop: {max_iterations: 10}
"""


def test_its_parts_follow_from_the_scenario() -> None:
    parts = memory.estimate_bytes(parse(TEXT))
    assert parts[memory.MODELS] == 100 * 1000 * 4 * 8  # seven models and one moment
    assert parts[memory.EXAMPLES] == 500 * (6 * 1000 * 4 + 3 * 8)
    # Of a worker the examples of 16 batches, and those of the epochs that are shuffled at once.
    assert parts[memory.BATCHES] == 10 * (6000 + 2 * 1000) * 4 + 100 * (10 * 16 + 4096) * 8
    assert memory.KEPT not in parts
    timing = parse(TEXT.replace("batch_size: 10", "batch_size: 10\n  timing_only: true\n  payload: 4 kB"))
    assert set(memory.estimate_bytes(timing)) == {memory.WORKERS}


@pytest.mark.parametrize(
    ("keep", "models"), [("", 10), ("all", 10), ("every 5 steps", 2), ("'every 2 steps, then 1 %'", 5)]
)
def test_models_between_two_scorings_count_where_there_is_a_target(keep: str, models: int) -> None:
    target = "stop: {target: {metric: train_loss, value: 0.5}, max_iterations: 10}"
    text = TEXT.replace("stop: {max_iterations: 10}", target)
    scenario = parse(text + (f"evaluate: {{keep: {keep}}}\n" if keep else ""))
    assert memory.estimate_bytes(scenario)[memory.KEPT] == 100 * models * 1000 * 4


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ("workload.dimension=100", r"large.yaml:6: workload.batch_size: the batches need about 3.44 MB"),
        (
            "workload.batch_size=1000000",
            r"--set workload.batch_size=1000000: workload.batch_size: the batches",
        ),
        ("workload.examples=100000", r"large.yaml:3: workload.task: the training examples need about 2.4 GB"),
    ],
)
def test_the_message_names_file_line_and_key(
    change: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "large.yaml"
    text = TEXT
    if not change.startswith("workload.batch"):
        key, _, value = change.rpartition(".")[2].partition("=")
        text = "\n".join(
            f"{each.partition(key)[0]}{key}: {value}" if f" {key}:" in each else each
            for each in TEXT.splitlines()
        )
    path.write_text(text)
    changes = [change] if text == TEXT else []
    monkeypatch.setattr(memory, "free_bytes", lambda: 1e6)
    with pytest.raises(InputError, match=line), name_lines(path, changes):
        prepare.resolve(load(path, changes), torch.device("cpu"))


def test_without_a_file_the_key_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda: 1e6)
    with pytest.raises(KeyedError, match=r"^workload\.task: the training examples need about 12 MB"):
        prepare.resolve(parse(TEXT), torch.device("cpu"))
