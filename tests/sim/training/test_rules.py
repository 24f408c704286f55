"""Optimisers by name: what a scenario may write, and what a user's own one may and may not do."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import torch
import yaml
from pydantic import ValidationError

from paceline.sim.errors import InputError, RunError
from paceline.sim.program.worker import Optimizer, Parameter
from paceline.sim.scenario.schema import dump, parse
from paceline.sim.training.optimizer import OptimizerSettings, make_optimizer
from tests.sim.scenario.test_schema import FLAT
from tests.support.both_drivers import assert_the_same
from tests.support.factory import make_job, simulated

OWN = "tests.support.own_rules:"
SCHEDULE: dict[str, Any] = {"warmup": "3 steps"}


def text_with(written: Any) -> str:
    """A scenario with this optimiser."""
    return FLAT.replace("{lr: 0.1}", json.dumps(written))


def rule_of(written: Any, parameters: tuple[Parameter, ...] = ()) -> Optimizer:
    return make_optimizer(OptimizerSettings.model_validate(written), 0, parameters)


@pytest.mark.parametrize(
    "scheme",
    [("all_reduce", {}), ("gossip", {"topology": "ring"}), ("ad_psgd", {}), ("diloco", {"period": 2})],
)
@pytest.mark.parametrize("schedule", [{}, SCHEDULE], ids=["constant", "warmup"])
def test_sgd_of_ones_own_is_sgd(scheme: tuple[str, dict[str, Any]], schedule: dict[str, Any]) -> None:
    name, options = scheme
    more = {"schedule": schedule} if schedule else {}
    given: dict[str, Any] = {"task": "digits-mlp", "workers": 4, "max_iterations": 6, "cv": 0.3}
    own = simulated(make_job(name, options, rule={f"{OWN}Plain": {"lr": 0.1}, **more}, **given))
    ours = simulated(make_job(name, options, rule={"lr": 0.1, **more}, **given))
    if schedule:  # scaled by a factor, in place of the rate itself
        scores = zip(own.evaluations, ours.evaluations, strict=True)
        assert all(a.metrics == pytest.approx(b.metrics, rel=1e-4) for a, b in scores)
    else:
        assert own.digest == ours.digest


@pytest.mark.parametrize("written", [f"{OWN}Lion", {f"{OWN}ByLayer": {"lr": 0.1}}, "muon"])
def test_both_drivers_give_a_rule_of_ones_own_the_same(written: Any) -> None:
    """Among them one by layers, with moments that are longer than the model."""
    assert_the_same(make_job("all_reduce", task="digits-mlp", workers=4, rule=written, every=2))


def test_rows_are_models_of_their_own() -> None:
    rule = rule_of({f"{OWN}Lion": {"lr": 0.5}})
    x, gradient = torch.arange(6.0).view(2, 3), torch.tensor([[1.0, -2, 3], [-1, 2, 0]])
    together, after = rule.update(x, gradient, rule.init(x))
    assert (after.updates, [m.shape for m in after.moments]) == (1, [(2, 3)])
    for row, own, moment in zip(x, gradient, after.moments[0], strict=True):
        alone, state = rule.update(row, own, rule.init(row))
        assert torch.equal(state.moments[0], moment)
        assert any(torch.equal(alone, each) for each in together)


def test_clipping_comes_first() -> None:
    rule = rule_of({f"{OWN}Plain": {"lr": 1.0}, "clip": 1.0})
    x = torch.zeros(2)
    assert rule.update(x, torch.tensor([3.0, 4.0]), rule.init(x))[0].tolist() == pytest.approx([-0.6, -0.8])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("InPlace", "writes in place, into what it was given; use new tensors"),
        (
            "Doubled",
            r"returned a tensor \[2\] \(torch.float64\) as the new x; it must be .* \(torch.float32",
        ),
        ("Alone", r"its update returned .*; it must return \(x, moments\)"),
        ("Remembers", "its update changes self.mean, but one object serves all workers; keep that among the"),
        ("Accumulates", "its update changes self.mean, but one object serves all workers"),
        (
            "Short",
            r"returned a tensor \[1\] \(torch.float32\) as the new x; it must be a tensor \[2\] ",
        ),
        ("Counting", "its init returned .* as moments; they must be a tuple of vectors"),
        ("Raising", r"raised ValueError: no \(own_rules.py, line \d+\)"),
    ],
)
def test_mistakes_of_a_rule_are_named(name: str, message: str) -> None:
    rule = rule_of({f"{OWN}{name}": {"lr": 0.1}})
    x = torch.zeros(2)
    with pytest.raises(RunError, match=f"'{OWN}{name}'.*{message}"):
        rule.update(x, torch.ones(2), rule.init(x))


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ({f"{OWN}Lion": {"lrr": 1.0}}, "unknown key; did you mean 'lr'?"),
        ({f"{OWN}Lion": {"lr": 1.0}, "lr": 0.1}, f"belongs to SGD; put it into '{OWN}Lion'"),
        ({f"{OWN}Lion": {}, "muon": {}}, f"give {OWN}Lion or muon, not both"),
        (f"{OWN}Lyon", "has no 'Lyon'; did you mean 'Lion'?"),
        (f"{OWN}SCHEDULE", "has no 'SCHEDULE'"),
        ({"muon": {"lr": -1.0}}, "must be more than 0"),
        (
            {"lion": {"lr": 0.1}},
            "unknown key; choose from: adam, adamw, clip, lr, momentum, muon, nesterov, package.module:name",
        ),
        ({"rule": {"muon": {}}}, "unknown key"),
        ({"weight_decy": 0.1}, "did you mean 'weight_decay'?"),
        ("moun", "must be a mapping of keys to values"),
    ],
)
def test_mistakes_of_a_scenario_are_named(written: Any, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        parse(text_with(written))


def test_what_makes_no_rule_is_refused() -> None:
    with pytest.raises(InputError, match=r"made 3; it must be a class, or a function"):
        rule_of({f"{OWN}nothing": {"lr": 0.1}})


@pytest.mark.parametrize(
    ("written", "full"),
    [
        (f"{OWN}Lion", {f"{OWN}Lion": {"lr": 0.001, "beta1": 0.9, "beta2": 0.99}}),
        ({f"{OWN}Plain": {"lr": 0.5}, "clip": 2.0}, {f"{OWN}Plain": {"lr": 0.5}, "clip": 2.0}),
    ],
)
def test_a_scenario_is_written_as_it_is_read(written: Any, full: Any) -> None:
    scenario = parse(text_with(written))
    again = dump(scenario)
    assert yaml.safe_load(again)["workload"]["optimizer"] == full
    assert parse(again) == scenario


def test_a_shard_is_no_gradient_for_a_rule_by_name() -> None:
    text = FLAT.replace("all_reduce", f"all_reduce: {{part_reduce: true, optimizer: '{OWN}Lion'}}")
    with pytest.raises(InputError, match=f"steps in shards, and {OWN}Lion needs the whole gradient"):
        parse(text)


def test_nothing_else_is_taken_for_a_rule() -> None:
    with pytest.raises(ValidationError):
        OptimizerSettings.model_validate({"rule": {"adam": {}}})
