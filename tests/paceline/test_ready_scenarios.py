"""Ready scenarios: by their names, as copies, and a few steps of each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from docs.make.scenario import json_schema
from paceline.sim.scenario.ready import ready_scenarios
from paceline.sim.scenario.schema import load
from tests.paceline.test_command_line import ROOT, run


@pytest.mark.parametrize("command", ["simulate", "netem"])
def test_a_ready_scenario_goes_by_its_name(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    few = ["--set=stop.max_iterations=1", "--set=schemes=[all_reduce]", "--set=repeats=1"]
    code, out, err = run(monkeypatch, capsys, command, "two-workers", *few)
    assert (code, bool(out)) == (0, True), err


def test_new_copies_a_ready_scenario(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, capsys, "new", "two-sites", "my.yaml") == (
        0, "", "wrote my.yaml\nwrote paceline-schema.json\n",
    )  # fmt: skip
    modeline, text = Path("my.yaml").read_text().split("\n", 1)
    assert modeline == "# yaml-language-server: $schema=paceline-schema.json"
    assert text == (ROOT / "scenarios" / "two-sites.yaml").read_text()
    assert json.loads(Path("paceline-schema.json").read_text()) == json_schema()
    assert run(monkeypatch, capsys, "new", "one-rack", "my.yaml") == (
        2, "", "paceline: my.yaml is there already: choose another name\n",
    )  # fmt: skip
    code, _, err = run(monkeypatch, capsys, "new", "two-site", "other.yaml")
    assert (code, err) == (
        2, "paceline: two-site: no ready scenario or document has this name; did you mean 'two-sites'?\n",
    )  # fmt: skip
    assert sorted(path.name for path in tmp_path.iterdir()) == ["my.yaml", "paceline-schema.json"]


SLOW_SCENARIOS = ("resnet-20", "transformer")
READY = sorted(ready_scenarios().values())
QUICK = [path for path in READY if path.stem not in SLOW_SCENARIOS and "papers" not in path.parts][::9]
"""Those that every run of the tests looks at."""


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.stem, marks=[] if path in QUICK else [pytest.mark.slow]) for path in READY],
)
def test_ready_scenarios_load_and_run_a_few_steps(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from paceline.sim.experiments.prepare import prepare, resolve
    from paceline.sim.experiments.simulate import simulate_job

    monkeypatch.setattr("paceline.sim.experiments.prepare.typical_times_s", lambda runs, timer: [0.01])
    scenario = resolve(load(path).model_copy(update={"gradients": "looped"}), torch.device("cpu"))
    for entry in scenario.schemes[: 1 if path.stem in SLOW_SCENARIOS else None]:
        steps = 2 if scenario.evaluate.on == "mean" else 25  # an average that a scheme publishes comes later
        job = replace(prepare(scenario, entry, scenario.seed), max_iterations=steps)
        job = replace(job, scoring=replace(job.scoring, target=None))
        assert simulate_job(job).status == "completed"
