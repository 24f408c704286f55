"""Which result folders can be replayed, and what is said of the others."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.extras.replay.verify import verify_replay
from paceline.sim.errors import InputError, RunError
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


@pytest.mark.parametrize("validated", [False, True])
def test_a_run_that_the_target_ended_is_refused_with_the_reason(tmp_path: Path, validated: bool) -> None:
    why = "the target ended it before its workers were done; only a run without stop.target, or of"
    folder = folder_of(TO_TARGET, tmp_path / "r", validated)
    with pytest.raises(RunError, match=f"all_reduce, seed 0: {why}"):
        list(verify_replay(folder))


CODE = "import pathlib, networkx\npathlib.Path('ran').touch()\ndef row(n): return networkx.path_graph(n)\n"
NAMING = LIMITED.replace("all_reduce", "{gossip: {topology: 'sent.rows:row'}}").replace("30", "2")


@pytest.mark.parametrize(
    ("code", "results", "start"),
    [
        ("sent/rows.py", "sent/r", "."),
        ("sent/rows.py", "sent/deep/r", "."),
        ("0001/sent/rows.py", "0001", "0001"),
        ("sent/rows.py", "0001", "."),
        ("mine/sent/rows.py", "0001", "mine"),
    ],
    ids=["beside", "above", "in them", "in a sweep", "below a sweep"],
)
def test_what_lies_around_results_is_not_imported(
    code: str, results: str, start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stranger's folder is replayed in the user's, and within itself; the user's own file is imported."""
    for folder, place in (("home", "home/sent/rows.py"), ("given", f"given/{code}")):
        file = tmp_path / place
        file.parent.mkdir(parents=True)
        file.write_text(CODE)
        (tmp_path / folder).mkdir(exist_ok=True)
    (tmp_path / "given" / start).mkdir(exist_ok=True)
    monkeypatch.chdir(tmp_path / "home")
    made = folder_of(NAMING, tmp_path / "made", validated=False)
    for name in ("sent.rows", "sent"):
        del sys.modules[name]
    shutil.copytree(made, tmp_path / "given" / results, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path / "given" / start)
    with pytest.raises(InputError, match="supplies no code"):
        list(verify_replay(tmp_path / "given" / results))
    assert not list((tmp_path / "given").rglob("ran"))
    monkeypatch.chdir(tmp_path / "home")
    (replayed,) = verify_replay(tmp_path / "given" / results)
    assert replayed.same_bits
    for name in ("sent.rows", "sent"):
        del sys.modules[name]
