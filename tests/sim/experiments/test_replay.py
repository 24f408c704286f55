"""Which result folders can be replayed, and what is said of the others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from paceline.sim.errors import RunError
from paceline.sim.experiments.replay import verify_replay
from paceline.sim.experiments.simulate import simulate
from paceline.sim.records.folder import write_results
from paceline.sim.scenario.schema import dump, parse

LIMITED = """\
name: q
workload: {task: quadratic, dimension: 4, noise: 0.1, batch_size: 4, optimizer: {lr: 0.1}}
cluster: {workers: 2, compute: {time: 10 ms}, network: {latency: 1 ms}}
evaluate: {every: 2 steps}
schemes: [all_reduce]
stop: {max_iterations: 30}
"""
TO_TARGET = LIMITED.replace("30", "30, target: {metric: suboptimality, value: 0.5}")


def folder_of(text: str, folder: Path, validated: bool) -> Path:
    """Write the runs of a scenario; ``validated``: beside copies that are called measured."""
    scenario = parse(text)
    runs = list(simulate(scenario))
    measured = [replace(run, source="measured") for run in runs] if validated else []
    write_results(folder, dump(scenario), scenario.name, [*runs, *measured])
    return folder


@pytest.mark.parametrize("validated", [False, True])
def test_runs_of_the_scenarios_length_are_replayed(tmp_path: Path, validated: bool) -> None:
    replayed = list(verify_replay(folder_of(LIMITED, tmp_path / "r", validated)))
    assert [each.same_bits for each in replayed] == [True] * (1 + validated)


@pytest.mark.parametrize(
    ("validated", "why"),
    [
        (True, "this prediction of 'paceline validate' cannot be replayed, .* validate --steps N' can be"),
        (False, "the target ended it before its workers were done; only a run without stop.target can be"),
    ],
)
def test_a_run_that_the_target_ended_is_refused_with_the_reason(
    tmp_path: Path, validated: bool, why: str
) -> None:
    folder = folder_of(TO_TARGET, tmp_path / "r", validated)
    with pytest.raises(RunError, match=f"all_reduce, seed 0: {why}"):
        list(verify_replay(folder))
