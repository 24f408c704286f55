"""The model after a step of a recorded run: the one that was scored there, to the bit."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from paceline import model_at
from paceline.commands.app import main
from paceline.sim.errors import InputError
from paceline.sim.experiments.prepare import prepare
from paceline.sim.experiments.simulate import simulate, simulate_job
from paceline.sim.network.profile import dump as dump_profile
from paceline.sim.records.folder import read_results, runs_of, write_results
from paceline.sim.records.run import Run, Source
from paceline.sim.scenario.schema import dump, parse
from tests.support.made_measurements import exact_fit
from tests.support.own_tasks import tied

TASK = "tests.support.own_tasks:tied"
OWN = f"{{task: '{TASK}', batch_size: 8, optimizer: {{lr: 0.1}}}}"
QUADRATIC = "{task: quadratic, dimension: 4, noise: 0.1, batch_size: 4, optimizer: {lr: 0.1}}"


def recorded(
    folder: Path,
    scheme: str = "ad_psgd",
    workload: str = OWN,
    more: str = "events: none",
    source: Source = "simulated",
    target: float = 0.0,
    repeats: int = 1,
) -> list[Run]:
    """Simulate a scheme, write its folder, and return its runs; ``source``: what they are called there."""
    scenario = parse(f"""\
name: q
workload: {workload}
cluster:
  workers: 3
  compute: {{time: 10 ms, jitter: {{lognormal: {{cv: 0.4}}}}}}
  network: {{latency: 1 ms, bandwidth: 100 Mbit/s}}
evaluate: {{every: 3 steps, on: workers}}
schemes: [{scheme}]
stop: {{max_iterations: 11, target: {{metric: train_loss, value: {target}}}}}
repeats: {repeats}
{more}
""")
    runs = [replace(run, source=source) for run in simulate(scenario)]
    write_results(folder, dump(scenario), scenario.name, runs)
    return runs


def score_of(state: dict[str, Tensor]) -> float:
    """Training loss of the user's own model, once it has loaded a state."""
    with torch.random.fork_rng():
        model, loss, (inputs, targets) = tied()
    model.load_state_dict(state)
    with torch.no_grad():
        return float(loss(model.eval()(inputs), targets))


@pytest.mark.slow
@pytest.mark.parametrize(
    "scheme", ["ad_psgd", "all_reduce", "{local_sgd: {period: 2}}", "{gossip: {topology: ring}}"]
)
def test_models_of_a_simulated_run_score_as_it_did(tmp_path: Path, scheme: str) -> None:
    """Also asynchronous ones, whose workers are at different steps when they are scored."""
    (run,) = recorded(tmp_path / "r", scheme)
    assert any(len(set(each.steps)) > 1 for each in run.evaluations) == (scheme == "ad_psgd")
    for each in run.evaluations:
        scores = [score_of(model_at(tmp_path / "r", *at[::-1])) for at in enumerate(each.steps)]
        assert each.metrics["train_loss"] == math.fsum(scores) / 3


def test_a_measured_run_is_followed_by_its_events_or_else_in_step(tmp_path: Path) -> None:
    """Without events an asynchronous one is refused; a synchronous one needs none."""
    for scheme, more in (("ad_psgd", "events: all"), ("{gossip: {topology: ring}}", "gradients: looped")):
        (run,) = recorded(tmp_path / scheme, scheme, more=more, source="measured")
        scores = [
            score_of(model_at(tmp_path / scheme, *at[::-1])) for at in enumerate(run.evaluations[2].steps)
        ]
        assert run.evaluations[2].metrics["train_loss"] == math.fsum(scores) / 3
    recorded(tmp_path / "none", source="measured")
    with pytest.raises(InputError, match="ad_psgd has no events; run it with 'events: all'"):
        model_at(tmp_path / "none", 3)


@pytest.mark.slow
def test_a_prediction_is_followed_under_its_own_profile(tmp_path: Path) -> None:
    """That of its folder: an asynchronous scheme's models depend on it."""
    profile = exact_fit().profile
    recorded(tmp_path / "nominal")
    text = (tmp_path / "nominal" / "scenario.yaml").read_text()
    scenario = parse(text)
    run = simulate_job(prepare(scenario, scenario.schemes[0], 0), profile=profile)
    write_results(tmp_path / "r", text, "q", [run], added={"profile.yaml": dump_profile(profile)})
    for each in run.evaluations:
        scores = [score_of(model_at(tmp_path / "r", *at[::-1])) for at in enumerate(each.steps)]
        assert each.metrics["train_loss"] == math.fsum(scores) / 3
    (nominal,) = runs_of(read_results(tmp_path / "nominal"))
    assert nominal.digest != run.digest


def test_any_step_of_a_run_that_its_target_ended_and_none_beyond(tmp_path: Path) -> None:
    (run,) = recorded(tmp_path / "r", workload=QUADRATIC, target=30.0)
    assert run.reached_target
    steps = run.evaluations[-1].steps
    for worker, last in enumerate(steps):
        assert {name: each.shape for name, each in model_at(tmp_path / "r", last, worker).items()} == {
            "x": (4,)
        }
        with pytest.raises(
            InputError, match=f"--at {last + 1}: worker {worker} took {last} steps in .*0 to {last}"
        ):
            model_at(tmp_path / "r", last + 1, worker)


def replay(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["paceline", "replay", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_the_command_writes_a_file_that_torch_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded(tmp_path / "r", repeats=2)
    out = tmp_path / "m.pt"
    for _ in range(2):  # an older file of this command is replaced
        assert (
            replay(
                monkeypatch,
                tmp_path / "r",
                "--at",
                7,
                "--worker",
                2,
                "--run",
                "ad_psgd, seed 1",
                "--out",
                out,
            )
            == 0
        )
    known = model_at(tmp_path / "r", 7, 2, "ad_psgd, seed 1")
    loaded = torch.load(out, weights_only=True)
    assert loaded.keys() == known.keys()
    assert all(torch.equal(each, known[name]) for name, each in loaded.items())
    assert not torch.equal(known["0.weight"], model_at(tmp_path / "r", 7, 2, "ad_psgd, seed 0")["0.weight"])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--at 12 --out m.pt", "worker 0 took 11 steps in all_reduce, seed 0, simulated; write 0 to 11"),
        ("--at -1 --out m.pt", "--at -1: steps count from 0, the initial model; write 0 or more"),
        ("--at 2 --worker 3 --out m.pt", "--worker 3: the run has 3 workers; write 0 to 2"),
        ("--at 2 --worker -1 --out m.pt", "--worker -1: the run has 3 workers; write 0 to 2"),
        ("--at 2 --run all_reduce,seed --out m.pt", "did you mean 'all_reduce, seed 0, simulated'?"),
        ("--at 2", "--at STEP needs --out MODEL.pt"),
        ("--out m.pt", "--out, --worker and --run need --at"),
        ("--at 2 --out r/scenario.yaml", "is there already, and it is no older file of this command"),
        ("--at 2 --out no/m.pt", "there is no folder no"),
    ],
)  # fmt: skip
def test_what_is_not_there_is_refused_in_a_line(
    words: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(tmp_path / "r", "all_reduce", QUADRATIC)
    monkeypatch.chdir(tmp_path)
    assert replay(monkeypatch, "r", *words.split()) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert says in err
    assert not Path("m.pt").exists()


def test_one_of_several_runs_has_to_be_named(tmp_path: Path) -> None:
    recorded(tmp_path / "r", "all_reduce", QUADRATIC, repeats=2)
    with pytest.raises(
        InputError,
        match=r"there are 2 runs in .*; write one of: all_reduce, seed 0, .* after --run",
    ):
        model_at(tmp_path / "r", 1)
