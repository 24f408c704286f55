"""What Python programs hand over: of the wrong type it is named at once, before anything is computed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import paceline
from paceline import InputError
from paceline.commands.console import say
from paceline.study import Study

SCENARIO: dict[str, Any] = {
    "name": "two",
    "workload": {"task": "quadratic", "batch_size": 4, "optimizer": {"lr": 0.1}},
    "cluster": {"workers": 2, "compute": {"time": "10 ms"}, "network": {"latency": "1 ms"}},
    "schemes": ["all_reduce"],
    "stop": {"max_iterations": 3},
}
RECURSIVE: dict[str, Any] = {**SCENARIO}
RECURSIVE["workload"] = RECURSIVE


def scenario(**changes: object) -> dict[str, Any]:
    return {**SCENARIO, **changes}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (5, "scenario: must be what load returns, a path, or a mapping, not 5"),
        (None, "scenario: must be .*, not nothing"),
        (b"x.yaml", "scenario: must be"),
        ([1], "scenario: must be .*, not a list"),
        (np.zeros(3), "scenario: must be .*, not a value of type ndarray"),
        (Path("no_such.yaml"), r"no_such\.yaml: there is no such file"),
        (
            scenario(seed=object()),
            r"scenario\.seed: holds a value of type object, which cannot stand in a file",
        ),
        (scenario(seed=math.nan), "seed"),
        (scenario(seed=np.float64("nan")), "seed"),
        (scenario(schemes=print), r"scenario\.schemes: holds a value of type builtin_function_or_method"),
        (scenario(name=b"x"), "name: the tag '!!binary' is not allowed"),
        (scenario(schemes={"all_reduce"}), "schemes: the tag '!!set' is not allowed"),
        ({5: 6}, "a key must be text, not '5'"),
        (RECURSIVE, "scenario: holds values that are nested too deeply"),
        (scenario(seed=10**5000), r"scenario\.seed: holds a value that cannot be written"),
    ],
)
def test_a_scenario_that_is_none(given: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        paceline.simulate(given, progress=False)


@pytest.mark.parametrize("path", [5, None, b"x", [], np.float64(1), SCENARIO])
def test_a_path_that_is_none(path: Any) -> None:
    with pytest.raises(InputError, match="path: must be the path of a file or folder, not "):
        paceline.load(path)


@pytest.mark.parametrize("changes", ["seed=3", 5, None, {"seed": 3}, [5], [None]])
def test_changes_that_are_none(changes: Any) -> None:
    with pytest.raises(InputError, match="changes: must be"):
        paceline.simulate(SCENARIO, changes=changes, progress=False)
    with pytest.raises(InputError, match="changes: must be"):
        paceline.load("one-rack", changes)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"jobs": 0}, "--jobs 0: must be at least 1"),
        ({"jobs": "2"}, "jobs: must be a whole number, not the text '2'"),
        ({"jobs": 1.5}, "jobs: must be a whole number, not 1.5"),
        ({"jobs": True}, "jobs: must be a whole number, not true"),
        ({"device": 5}, "device: must be 'auto', 'cpu' or 'cuda', not 5"),
        ({"device": torch.device("cpu")}, "device: must be .*, not a value of type device"),
        ({"engine": None}, "engine: must be 'auto', 'event' or 'lockstep', not nothing"),
        ({"progress": "no"}, "progress: must be True or False, not the text 'no'"),
        ({"task": "x:y"}, "task: must be a function, not the text 'x:y'"),
    ],
)
def test_options_that_are_none(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        paceline.simulate(SCENARIO, **{"progress": False, **options})


@pytest.mark.parametrize(
    ("grid", "says"),
    [
        (5, "grid: must be a mapping of dotted keys to lists, not 5"),
        ([], "grid: must be a mapping"),
        ({}, "nothing varies: add --grid"),
        ({5: [1]}, "grid: must be dotted keys as text, not 5"),
        ({"seed": 5}, "grid: seed: write a list of values"),
        ({"seed": np.array(5)}, "grid: seed: write a list of values"),
        ({"seed": [object()]}, "grid: seed: <object .* is no value that can stand in a scenario"),
        ({"seed": [math.nan]}, "grid: seed: nan is no value"),
        ({"seed": range(10**9)}, "1,000,000,000 settings"),
    ],
)
def test_grids_that_are_none(grid: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        paceline.sweep(SCENARIO, grid, progress=False)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"sample": "5"}, "sample: must be a whole number, not the text '5'"),
        ({"sample": 2.5}, "sample: must be a whole number, not 2.5"),
        ({"sample": True}, "sample: must be a whole number, not true"),
        ({"together": "no"}, "together: must be True or False, not the text 'no'"),
    ],
)
def test_options_of_a_sweep_that_are_none(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        paceline.sweep(SCENARIO, {"seed": [1, 2]}, progress=False, **options)


def test_a_seed_below_0_is_none() -> None:
    with pytest.raises(InputError, match="seed: must be a whole number from 0, not -1"):
        paceline.topology_plan("ring", 4, seed=-1)


def test_numbers_of_numpy_are_numbers() -> None:
    optimizer = {"lr": np.float64(0.1)}
    workload = {"task": "quadratic", "batch_size": np.int32(4), "optimizer": optimizer}
    one: Any = np.int64(1)
    given = scenario(seed=np.int64(3), workload=workload, evaluate={"on": np.array(["mean"])[0]})
    study = paceline.simulate(given, jobs=one, progress=False)
    assert (study.scenario.seed, study.scenario.workload.batch_size) == (3, 4)
    grid: Any = {"workload.optimizer.lr": np.array([0.1, 0.2]), "seed": [np.int64(1), torch.tensor(2)]}
    assert len(paceline.sweep(SCENARIO, grid, progress=False).studies) == 4


@pytest.fixture(scope="module")
def study() -> Study:
    return paceline.simulate(SCENARIO, progress=False)


@pytest.mark.parametrize("path", [5, None, b"x"])
def test_results_go_to_a_path(path: Any, study: Study) -> None:
    with pytest.raises(InputError, match="folder: "):
        study.save(path)
    with pytest.raises(InputError, match="out: "):
        study.report(path)
    with pytest.raises(InputError, match="metric: must be the name of a metric, not "):
        study.plot(5)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="metric: there is no ''"):
        study.plot("")


@pytest.fixture(scope="module")
def loop() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Linear(2, 2)
    return model, torch.optim.SGD(model.parameters(), 0.1)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model": 5}, "attach: model: must be a module of torch's, not 5"),
        ({"optimizer": None}, "attach: optimizer: must be an optimizer of torch's, not nothing"),
        ({"scheme": 5}, "attach: scheme: must be a scheme's name, or a mapping with its options, not 5"),
        ({"scheme": {}}, "attach: "),
        ({"scheme": "al_reduce"}, "did you mean 'all_reduce'"),
        ({"steps": "x"}, "attach: steps: must be a whole number, not the text 'x'"),
        ({"steps": 1.5}, "attach: steps: must be a whole number, not 1.5"),
        ({"steps": 0}, "attach: steps is 0"),
        ({"steps": 10**30}, "attach: steps"),
        ({"seed": None}, "attach: seed: must be a whole number from 0, not nothing"),
        ({"seed": -1}, "attach: seed"),
        ({"seed": 2**63}, "attach: seed"),
        ({"timeout_s": "x"}, "attach: timeout_s: must be seconds, not the text 'x'"),
        ({"timeout_s": math.nan}, "attach: timeout_s nan: must be at least 1"),
        ({"backend": 5}, "attach: backend: must be the name of a backend, not 5"),
        ({"records": 5}, "attach: records: must be the path of a file or folder, not 5"),
        ({}, "start this script with torchrun"),
    ],
)
def test_what_attach_cannot_take(
    changes: dict[str, Any],
    says: str,
    loop: tuple[torch.nn.Module, torch.optim.Optimizer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    given: dict[str, Any] = {"model": loop[0], "optimizer": loop[1], "scheme": "all_reduce", "steps": 3}
    given |= changes
    model, optimizer, scheme = (given.pop(name) for name in ("model", "optimizer", "scheme"))
    with pytest.raises(InputError, match=says), paceline.attach(model, optimizer, scheme, **given):
        pass


@pytest.mark.parametrize("off", [torch.no_grad, torch.inference_mode])
def test_gradients_must_be_on(off: Any) -> None:
    with off(), pytest.raises(InputError, match="gradients are off"):
        paceline.simulate(SCENARIO, progress=False)


def test_errors_have_no_control_characters() -> None:
    with pytest.raises(InputError) as caught:
        paceline.load("\x1b[31mred.yaml")
    assert str(caught.value).startswith("\\x1b[31mred.yaml: there is no such file")


def test_no_standard_error_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", None)
    say("nobody hears this")
