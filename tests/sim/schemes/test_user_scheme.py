"""A scheme of the user's: the same as ours on every driver, and told what was expected."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.realrun.launch.cells import RunRequest, with_length
from paceline.sim.errors import InputError, SchemeError
from paceline.sim.experiments.prepare import prepare
from paceline.sim.experiments.simulate import simulate_job
from paceline.sim.scenario.schema import dump, parse
from paceline.sim.schemes import SCHEMES, find_scheme
from tests.sim.scenario.test_schema import FLAT
from tests.support.factory import make_job, run_events, scored, simulated
from tests.support.lockstep import run_lockstep

WORKLOAD: dict[str, Any] = {"task": "digits-mlp", "momentum": 0.9, "max_iterations": 7, "cv": 0.2}


def own(name: str) -> str:
    return f"tests.support.own_schemes:{name}"


@pytest.mark.parametrize("name", ["lazy", "REGISTERED"])
def test_it_does_what_the_same_scheme_of_ours_does(name: str) -> None:
    ours = simulated(scored(make_job("local_sgd", {"period": 3}, **WORKLOAD), on="mean"))
    job = scored(make_job(own(name), {"period": 3}, **WORKLOAD), on="mean")
    theirs = simulated(job)
    assert (theirs.digest, theirs.wall_clock_s) == (ours.digest, ours.wall_clock_s)
    assert theirs.evaluations == ours.evaluations
    assert theirs.scheme == own(name)
    lockstep = run_lockstep(job)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(lockstep, run_events(job).finals, strict=True))


@pytest.mark.parametrize(
    ("name", "synchronous"),
    [("lazy", True), ("REGISTERED", True), ("pairs", False), ("with_a_service", False)],
)
def test_a_trial_shows_whether_it_is_synchronous(name: str, synchronous: bool) -> None:
    scheme = find_scheme(own(name))
    options = {"period": 3} if name == "REGISTERED" else {}
    assert scheme.in_step(scheme.options.model_validate(options)) is synchronous


def test_the_names_of_its_options_are_its_own() -> None:
    """A scheme is known by what it does: no option of the user's is taken for one of ours."""
    entry = f"{own('own_words')}: {{}}"
    scenario = parse(FLAT.replace("local_sgd: {period: 8}", entry).replace("all_reduce", own("lazy")))
    job = prepare(scenario, scenario.schemes[1], 0)
    assert job.synchronous
    assert job.units == job.workers
    assert job.scheme.cycle(job.options, job.workers) == 5  # of its averages
    assert job.scheme.num_buckets(job.options, 1e6) == 0
    run = simulate_job(job)
    assert (run.engine, run.engine_reason) == ("lockstep", "")
    requested = with_length(RunRequest("", 1, 0), scenario, scenario.schemes[1], run)
    assert requested.max_iterations == run.iterations


@pytest.mark.parametrize(
    ("name", "options", "cycle"),
    [
        ("lazy", {"period": 7}, 7),
        ("lazy", {"period": 400}, 400),
        ("lazy", {"period": 1}, 1),
        ("pairs", {}, 1),
        ("stumbles", {}, 1),
    ],
)
def test_a_trial_shows_after_how_many_steps_it_repeats_itself(name: str, options: Any, cycle: int) -> None:
    scheme = find_scheme(own(name))
    assert scheme.cycle(scheme.options.model_validate(options), 4) == cycle


def test_a_point_to_point_scheme_runs() -> None:
    run = simulated(make_job(own("pairs"), **WORKLOAD))
    assert run.status == "completed"
    assert run.iterations == 7


def test_each_worker_and_run_has_a_start_of_its_own() -> None:
    job = make_job(own("in_place"), **WORKLOAD)
    before = job.start.clone()
    for finals in (run_events(job).finals, run_events(job).finals):
        assert all(torch.allclose(final, before + 7) for final in finals)
    assert torch.equal(job.start, before)


def test_it_stands_in_a_scenario_with_its_options() -> None:
    text = FLAT.replace("local_sgd: {period: 8}", f"{own('lazy')}: {{period: 4, rates: [1, 0.5]}}")
    found = parse(text)
    assert [entry.label for entry in found.schemes] == ["all_reduce", "lazy"]
    assert found.schemes[1].options.model_dump() == {"period": 4, "rates": (1.0, 0.5)}
    assert parse(dump(found)) == found
    bare = parse(FLAT.replace("local_sgd: {period: 8}", own("pairs")))
    assert bare.schemes[1].name == own("pairs")


def test_what_it_raises_is_told_with_its_place() -> None:
    job = make_job(own("stumbles"), max_iterations=5)
    with pytest.raises(
        SchemeError, match=r"stumbles' raised ValueError: no such thing \(own_schemes.py, line \d+\)"
    ):
        run_events(job)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("tests.support.own_schemes:lazi", "'tests.support.own_schemes' has no 'lazi'; did you mean 'lazy'?"),
        (
            "tests.support.own_schemes:NOT_A_SCHEME",
            "'tests.support.own_schemes:NOT_A_SCHEME' is no scheme; it must be an 'async def' that takes a "
            "worker and its options",
        ),
        (
            "tests.support.own_schemes:takes_nothing",
            "'tests.support.own_schemes:takes_nothing': it takes 0 parameters; it needs 1 before its options",
        ),
    ],
)
def test_a_scenario_that_names_no_scheme_is_refused(entry: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(FLAT.replace("local_sgd: {period: 8}", entry), "f.yaml")
    assert str(caught.value) == f"f.yaml:12: schemes.1.{entry}: {said}"


def test_options_are_checked() -> None:
    with pytest.raises(InputError) as caught:
        parse(FLAT.replace("local_sgd: {period: 8}", f"{own('lazy')}: {{perid: 4}}"), "f.yaml")
    assert (
        str(caught.value) == f"f.yaml:12: schemes.1.{own('lazy')}.perid: unknown key; did you mean 'period'?"
    )


def test_a_plain_function_is_refused() -> None:
    with pytest.raises(InputError, match="returned Tensor; it must be an 'async def', or return a Program"):
        run_events(make_job(own("not_async")))


@pytest.mark.slow
def test_records_say_what_a_scheme_does_also_without_docstrings() -> None:
    names = [*SCHEMES, own("lazy")]
    code = f"from paceline.sim.schemes import find_scheme as find; print([find(x).does for x in {names}])"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, "-OO", "-c", code]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert ast.literal_eval(ended.stdout) == [find_scheme(name).does for name in names]
