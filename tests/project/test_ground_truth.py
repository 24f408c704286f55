"""Own trainings: their scenarios, levels and rows."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.ground_truth import (
    NAMES,
    STEPS,
    label_of,
    place_by_rule,
    read_curves,
    read_scenario,
    steps_to_levels,
    training,
)
from paceline.sim.scenario.schema import resolve_scenario


@pytest.mark.parametrize("name", NAMES)
def test_a_training_is_the_table_with_one_scheme_and_the_real_model(name: str) -> None:
    scenario = read_scenario(name)
    for label in map(label_of, scenario["schemes"]):
        resolved = resolve_scenario(training(scenario, label), None, (), None)
        assert [entry.label for entry in resolved.schemes] == [label]
        assert resolved.workload.batch_size == 8 / resolved.cluster.workers
        assert resolved.workload.layer_profile is None


def test_the_rule_has_two_lines() -> None:
    entries = read_scenario("own_8")["schemes"]
    assert [place_by_rule(entry) for entry in entries] == [1, 100, 20, 100, 500, 10_000, 10_000]


def test_levels_are_those_of_ddp_and_who_never_arrives_has_all_steps() -> None:
    steps = np.arange(0, STEPS + 1, 1000)
    falling = np.array([steps, 5 - steps / 2000])
    twice, never = np.array([steps, 5 - steps / 1000]), np.array([steps, 5 - 0 * steps])
    assert steps_to_levels({"DDP": falling, "twice": twice, "never": never}) == {
        "DDP": [4000, 7000],
        "twice": [2000, 3500],
        "never": [STEPS, STEPS],
    }


def test_its_curves_are_whole() -> None:
    labels = {(name, label_of(entry)) for name in NAMES for entry in read_scenario(name)["schemes"]}
    curves = read_curves()
    assert curves.keys() <= labels
    assert all(curve[0].tolist() == list(range(0, STEPS + 1, 100)) for curve in curves.values())
