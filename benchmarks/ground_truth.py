"""Own trainings of a GPT of a million parameters, in the tables own_4 and own_8 of the learning board.

    nice python -m benchmarks.ground_truth [TABLE...]   trains what is missing, one after the other
    python -m benchmarks.ground_truth --measured        writes measured.csv of both (docs/learning-board.md)

The scenario of a table, but with the real model on the King James Bible (``pip install 'paceline[data]'``):
causal attention on 64 bytes, 8 sequences a step of all workers, AdamW at 0.001 after 100 steps of warm-up,
8,000 steps. Scored every 100 steps: the loss of the model that a scheme publishes on the same 256 sequences
of the held-out tenth. Levels were set before any training: the loss of DDP after 4,000 and 7,000 steps.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import yaml
from torch import Tensor, nn

import paceline
from benchmarks.outer_steps import append_rows
from benchmarks.real_models import LENGTH, Language, loss
from paceline.sim.records.rates import seconds_to_levels
from paceline.sim.workloads.tasks.texts import read_text

ROWS: Final = Path(__file__).with_suffix(".csv")
TABLES: Final = Path(__file__).parent / "learning"
NAMES: Final = ("own_4", "own_8")
REFERENCE: Final = "DDP"
STEPS: Final = 8000
AT: Final = (4000, 7000)
"""Steps at which the losses of ``REFERENCE`` are the levels."""
_TEST: Final = 10
"""One stretch in this many is held out."""
_STRETCH: Final = 64
"""Sequences of a stretch."""
_LAST: Final = 10_000


def build() -> tuple[nn.Module, Callable[[Tensor, Tensor], Tensor], Any]:
    """The task: model, loss, and all sequences of the text, some tenth of them held out in stretches."""
    raw = np.frombuffer(read_text(None, "kjv").text, np.uint8)
    used, values = np.unique(raw, return_inverse=True)
    count = (len(values) - 1) // LENGTH
    letters = torch.from_numpy(values.astype(np.int64))
    inputs, targets = (letters[by : by + count * LENGTH].view(count, LENGTH) for by in (0, 1))
    held_out = torch.arange(count) // _STRETCH % _TEST == 0
    split = {name: (inputs[of], targets[of]) for name, of in (("train", ~held_out), ("test", held_out))}
    return Language(128, 5, len(used)), loss, split


def training(scenario: Mapping[str, Any], label: str) -> dict[str, Any]:
    """The scenario of a table with one scheme and the real model."""
    optimizer = {**scenario["workload"]["optimizer"], "schedule": {"warmup": "100 steps"}}
    return {
        **scenario,
        "workload": {
            "task": "benchmarks.ground_truth:build",
            "batch_size": scenario["workload"]["batch_size"],
            "optimizer": optimizer,
        },
        "schemes": [each for each in scenario["schemes"] if label_of(each) == label],
        "evaluate": {"every": "100 steps", "examples": 256, "on": "published"},
        "stop": {"max_iterations": STEPS},
        "events": "none",
    }


def read_scenario(name: str) -> dict[str, Any]:
    """The scenario of a table as it is written."""
    scenario: dict[str, Any] = yaml.safe_load((TABLES / name / "scenario.yaml").read_text(encoding="utf-8"))
    return scenario


def place_by_rule(entry: Mapping[str, Mapping[str, Any]]) -> int:
    """Place by the rule of two lines: all-reduce, then outer steps by period, then plain averages."""
    ((scheme, options),) = entry.items()
    if scheme == "all_reduce" and "outer" not in options:
        return 1
    outer = options.get("outer", {})
    return int(outer.get("period") or options["period"]) if outer else _LAST


def label_of(entry: Mapping[str, Mapping[str, Any]]) -> str:
    """Label of a scheme's entry."""
    (options,) = entry.values()
    return str(options["label"])


def train_missing(tables: Sequence[str]) -> None:
    """Add the curves of the trainings without one."""
    for table in tables:
        scenario = read_scenario(table)
        for label in map(label_of, scenario["schemes"]):
            if (table, label) in read_curves():
                continue
            metrics = paceline.simulate(training(scenario, label)).metrics
            scores = zip(metrics["step"], metrics["test_loss"], strict=True)
            append_rows(
                ROWS,
                ["table", "label", "step", "test_loss"],
                ([table, label, step, f"{value:.5f}"] for step, value in scores),
            )


def read_curves() -> dict[tuple[str, str], np.ndarray[Any, Any]]:
    """(Table, label) -> steps and losses [2, N]."""
    if not ROWS.exists():
        return {}
    curves: dict[tuple[str, str], list[tuple[float, float]]] = {}
    with ROWS.open(newline="") as file:
        for row in csv.DictReader(file):
            curve = curves.setdefault((row["table"], row["label"]), [])
            curve.append((float(row["step"]), float(row["test_loss"])))
    return {key: np.array(points).T for key, points in curves.items()}


def steps_to_levels(curves: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, list[float]]:
    """Label -> steps to each level; a scheme that never gets there has all steps of its training."""
    steps, losses = curves[REFERENCE]
    levels = np.interp(AT, steps, np.minimum.accumulate(losses))
    return {
        label: np.minimum(seconds_to_levels(steps, -losses, -levels), STEPS).tolist()
        for label, (steps, losses) in curves.items()
    }


def write_measured() -> None:
    """``measured.csv`` of each table with trainings of two schemes and more."""
    for name in NAMES:
        curves = {label: curve for (table, label), curve in read_curves().items() if table == name}
        if REFERENCE not in curves or len(curves) < 2:
            continue
        rule = {label_of(entry): place_by_rule(entry) for entry in read_scenario(name)["schemes"]}
        with (TABLES / name / "measured.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["label", "rule", *(f"steps to DDP's loss at {at:,}" for at in AT)])
            writer.writerows(
                [label, rule[label], *(f"{each:.0f}" for each in steps)]
                for label, steps in steps_to_levels(curves).items()
            )


if __name__ == "__main__":
    if sys.argv[1:] == ["--measured"]:
        write_measured()
    else:
        train_missing(sys.argv[1:] or NAMES)
